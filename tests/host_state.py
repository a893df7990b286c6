"""What a run could leave on the host: read before and after, compared whole."""

from __future__ import annotations

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


def processes() -> list[str]:
    """Command lines of what a run starts."""
    marks = ("ovs-vswitchd", "ovsdb-server", "mininet:", "emulation.", "controller.launch", "agent.py", "iperf3")
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            if any(mark in command for mark in marks) and "pytest" not in command:
                found.append(command)
    return sorted(found)


def namespaces() -> set[str]:
    """Network namespaces that some process is in."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add(os.readlink(entry / "ns/net"))
            except OSError:
                continue
    return found


def snapshot() -> dict[str, object]:
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
        after = snapshot()
        different = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
        if not different or time.monotonic() > deadline:
            return different
        time.sleep(0.1)
