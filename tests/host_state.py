"""What a run could leave on the host: read before and after, compared whole.

Of processes and their network namespaces only those below this process: other runs may come and go beside. Nothing that
a test starts gets away, as orphans become children of this process (it is their subreaper) and not of init.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import time
from pathlib import Path

SYSCTL_ROOTS = ("/proc/sys/net", "/proc/sys/kernel", "/proc/sys/fs", "/proc/sys/vm")
#: Change by themselves all the time.
RESTLESS = {
    *("/proc/sys/fs/dentry-state", "/proc/sys/fs/file-nr", "/proc/sys/fs/inode-nr", "/proc/sys/fs/inode-state"),
    *("/proc/sys/fs/aio-nr", "/proc/sys/fs/quota/syncs", "/proc/sys/kernel/ns_last_pid", "/proc/sys/kernel/random"),
    *("/proc/sys/kernel/pty/nr", "/proc/sys/net/netfilter/nf_conntrack_count"),
}


def sysctls() -> dict[str, str]:
    found = {}
    for root in SYSCTL_ROOTS:
        for folder, _, names in os.walk(root):
            for name in names:
                path = os.path.join(folder, name)
                if path in RESTLESS or folder in RESTLESS:
                    continue
                try:
                    found[path] = Path(path).read_text(errors="replace")
                except OSError:
                    continue
    return found


def adopt_orphans() -> None:
    """From now on all that descends from this process stays below it."""
    pr_set_child_subreaper = 36
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def descendants(pid: int) -> list[int]:
    """All descendants of a process, parents first."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, task.read_text().split())
    return found[1:]


def _reap() -> None:
    """Collect adopted children that have ended: they would count as processes for ever."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)


def processes() -> list[str]:
    """Command lines below this process; in brackets the name of one that ended and was not collected."""
    found = []
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            found.append(command or f"[{Path(f'/proc/{pid}/comm').read_text().strip()}]")
    return sorted(found)


def namespaces() -> set[str]:
    """Network namespaces that this process or one below it is in."""
    found = set()
    for pid in (os.getpid(), *descendants(os.getpid())):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/ns/net"))
    return found


def snapshot() -> dict[str, object]:
    """The host now. Orphans are adopted from here on, so take the first one before anything is started."""
    adopt_orphans()
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    state = Path("/etc/openvswitch")
    return {
        "interfaces": sorted(line.split(":")[1].strip() for line in links.splitlines()),
        "mounts": sorted(Path("/proc/self/mounts").read_text().splitlines()),
        "namespaces": namespaces(),
        "named namespaces": sorted(os.listdir("/run/netns")) if Path("/run/netns").is_dir() else [],
        "processes": processes(),
        "sysctls": sysctls(),
        "ovs state": sorted(os.listdir(state)) if state.is_dir() else [],
    }


def settled(before: dict[str, object], seconds: float = 10.0) -> dict[str, object]:
    """Differences to `before` that are still there after `seconds`; empty when all is as it was."""
    deadline = time.monotonic() + seconds
    while True:
        _reap()
        after = snapshot()
        different = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
        if not different or time.monotonic() > deadline:
            return different
        time.sleep(0.1)
