"""Whether the processes that a run measures with are there and run: without one it would go on, and be wrong.

A process that ended is seen by its pidfd (or by its pipe, or by its control socket). One that is stopped has neither
ended nor closed anything: its state in /proc is T (proc_pid_stat(5)).
"""

from __future__ import annotations

import os
import select
from collections.abc import Mapping
from pathlib import Path

from scenario.errors import RunError

_NEXT = "continue or end what stopped it (kill -STOP, a debugger, a frozen container), then start the run again"


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal. One that is traced, or gone, is not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text[text.rindex(")") + 2] == "T"  # the name before it may hold anything


class Liveness:
    """Looks after processes; `processes` has what to call each, and its PID."""

    def __init__(self, processes: Mapping[str, int]) -> None:
        """Raises RunError for one that is gone already."""
        self._pids = dict(processes)
        self._stopped: set[str] = set()
        self._name_by_pidfd: dict[int, str] = {}
        for name, pid in self._pids.items():
            try:
                self._name_by_pidfd[os.pidfd_open(pid)] = name
            except ProcessLookupError:
                raise _ended(name) from None

    def check(self) -> None:
        """Raise RunError when one has ended, or is stopped at this look as at the one before: a process that goes on
        at once has been late, which the checks of a run tell."""
        ended, _, _ = select.select(list(self._name_by_pidfd), [], [], 0)
        for pidfd in ended:
            raise _ended(self._name_by_pidfd[pidfd])
        before, self._stopped = self._stopped, {name for name, pid in self._pids.items() if is_stopped(pid)}
        for name in sorted(before & self._stopped):
            raise RunError(f"{name} was stopped while serving (state T)\n  {_NEXT}")

    def close(self) -> None:
        """Look no more."""
        for pidfd in self._name_by_pidfd:
            os.close(pidfd)
        self._name_by_pidfd.clear()
        self._pids.clear()


def _ended(name: str) -> RunError:
    return RunError(f"{name} ended while serving; see the logs in the run folder")
