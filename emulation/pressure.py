"""How long switches and everybody else waited for a core while serving: the kernel's own accounts.

CPU that is not used says little: a switch whose daemon is ready and waits for its turn delays every frame it holds, on
a machine that is half idle over the second. The kernel keeps two accounts, and either may be missing:
/proc/PID/task/TID/schedstat (time run, time waited, turns; CONFIG_SCHED_INFO) and /proc/pressure/cpu (time in which
anything waited; CONFIG_PSI). What is missing is NaN and not judged.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Waits:
    """`mean_wait_s`: per turn of the switches' threads, of the switch with the longest mean; `waited_share`: of the
    serving time that a switch spent waiting for a core, the same switch's; `some_share`: of the serving time in which
    anything on the machine waited. NaN where the kernel keeps no such account."""

    mean_wait_s: float = math.nan
    waited_share: float = math.nan
    some_share: float = math.nan


class Pressure:
    """The accounts since it was made. `daemons`: PIDs of the switches' daemons; empty where the kernel forwards."""

    def __init__(self, daemons: Sequence[int]) -> None:
        self._daemons = daemons
        self._began_s, self._some_us = time.monotonic(), some_us(_text(Path("/proc/pressure/cpu")))
        self._before = {pid: _waited(pid) for pid in daemons}

    def finish(self) -> Waits:
        """Read everything again."""
        wall_s = max(1e-9, time.monotonic() - self._began_s)
        worst = max(
            (mean_wait(self._before[pid], _waited(pid)) for pid in self._daemons), default=(math.nan, math.nan)
        )
        return Waits(
            worst[0],
            worst[1] / wall_s,
            (some_us(_text(Path("/proc/pressure/cpu"))) - self._some_us) / 1e6 / wall_s,
        )


def some_us(text: str) -> float:
    """Microseconds in which some task waited for a core, of /proc/pressure/cpu; NaN when it is not there."""
    for line in text.splitlines():
        if line.startswith("some ") and "total=" in line:
            return float(line.rpartition("total=")[2])
    return math.nan


def mean_wait(before: Mapping[str, tuple[float, int]], after: Mapping[str, tuple[float, int]]) -> tuple[float, float]:
    """(mean wait per turn, whole wait), in seconds, of threads between two readings: thread -> (seconds waited, turns).

    Threads that ended or began in between count from what is known of them. NaN without a reading.
    """
    if not after:
        return math.nan, math.nan
    waited = sum(seconds - before.get(thread, (0.0, 0))[0] for thread, (seconds, _) in after.items())
    turns = sum(count - before.get(thread, (0.0, 0))[1] for thread, (_, count) in after.items())
    return (waited / turns if turns else 0.0), waited


def _waited(pid: int) -> dict[str, tuple[float, int]]:
    found = {}
    for task in Path(f"/proc/{pid}/task").glob("*"):
        parts = _text(task / "schedstat").split()
        if len(parts) == 3:
            found[task.name] = (int(parts[1]) / 1e9, int(parts[2]))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
