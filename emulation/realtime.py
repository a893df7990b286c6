"""Real-time scheduling for what forwards, sends and samples: other programs then cannot hold a frame up.

Under the fair scheduler a switch whose frames have come waits for the slice of whatever runs, milliseconds on a machine
that is shared, and a lower nice value does not help: with autogroups it counts within a session only. SCHED_FIFO runs
at once. Where it is refused (a container without CAP_SYS_NICE, a cgroup without a real-time budget) all stays as it
was, and the run says so in meta.json.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

#: Of switches, agents and engine alike: first come, first served, as packets are.
FORWARDING = 1
#: Above them: the sampler looks for some 0.1 ms and must be on time.
SAMPLING = 2


def promote(priority: int, threads: Iterable[int] = (0,)) -> bool:
    """SCHED_FIFO for threads (0: the calling one; what it starts inherits it). False where the machine refuses."""
    if os.environ.get("ZX") == "off":
        return False
    try:
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(priority))
    except PermissionError:
        return False
    except ProcessLookupError:  # a thread that has ended needs nothing
        return True
    return True


def demote() -> None:
    """Back to the fair scheduler: the calling thread."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def threads_of(pid: int) -> list[int]:
    """All threads of a process."""
    return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
