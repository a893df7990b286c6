"""Priority for what forwards, sends and samples, so that other programs hold hardly a frame up.

A nice value alone does not do it: with autogroups (a group for each session, and every daemon is a session of its own)
it counts within a session only, and a program that runs finishes its slice of some 3 ms first. So three settings, each
where the kernel has it: the nice value, that of the session's autogroup (/proc/PID/autogroup, sched(7)), and a short
slice (sched_setattr(2), from Linux 6.12 on), with which a thread that wakes takes over at once. Real-time scheduling
was tried and is worse: at saturation agents and daemons starved the kernel's own threads and each other.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable
from pathlib import Path

#: Nice values: agents and engine keep what they have in flight short, so switches come after them; a sampler that is
#: late has missed a peak. All of them are far above other programs (0), whose weight is a ninth of the least of these.
SWITCHES, AGENTS, SAMPLER = -10, -15, -20
#: The shortest that the kernel takes is 0.1 ms.
SLICE_NS = 200_000
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}.get(platform.machine())
_libc = ctypes.CDLL(None, use_errno=True)


def favour(pids: Iterable[int], nice: int) -> bool:
    """For all threads of these processes; what they start inherits it. False where the machine refused any of it.

    The nice value is also that of the processes' sessions, which a daemon should have for itself.

    A process that has ended needs nothing.
    """
    done = True
    for pid in pids:
        try:
            threads = [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
            for thread in threads:
                os.setpriority(os.PRIO_PROCESS, thread, nice)
                _short_slice(thread, nice)
            group = Path(f"/proc/{pid}/autogroup")
            if group.exists():
                group.write_text(str(nice))
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            done = False
    return done


def _short_slice(thread: int, nice: int) -> None:
    """Kernels before 6.12 take the call and keep their own slice."""
    if _SCHED_SETATTR is not None:
        # struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period
        attributes = struct.pack("IIQiIQQQ", 48, os.SCHED_OTHER, 0, nice, 0, SLICE_NS, 0, 0)
        if _libc.syscall(_SCHED_SETATTR, thread, attributes, 0):
            raise OSError(ctypes.get_errno(), "sched_setattr")
