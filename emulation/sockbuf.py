"""Deep socket buffers for ovs-vswitchd, without touching a sysctl of the host.

One AF_PACKET socket sends for a whole ovs-vswitchd, and its send buffer (212,992 B by default) is charged for every
packet that waits in any egress queue: past it Open vSwitch drops, with idle links beside it. The sockets are taken
with pidfd_getfd(2) once they exist, that is after the first packet, and enlarged with SO_SNDBUFFORCE.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

#: The daemon's send buffer must hold every queue of the switch; what a socket receives must wait while OVS is busy.
SEND_BYTES, RECEIVE_BYTES = 512 << 20, 64 << 20
_PIDFD_GETFD = 438
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_libc = ctypes.CDLL(None, use_errno=True)


def packet_sockets(pid: int) -> list[int]:
    """File descriptors (in process `pid`) that are AF_PACKET sockets."""
    inodes = {line.split()[8] for line in Path(f"/proc/{pid}/net/packet").read_text().splitlines()[1:]}
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry))
        except FileNotFoundError:
            continue
        if match and match[1] in inodes:
            found.append(int(entry.name))
    return sorted(found)


def taken(pid: int, descriptors: Iterable[int]) -> Iterator[socket.socket]:
    """Copies of another process's sockets. The caller closes each. Raises OSError."""
    pidfd = os.pidfd_open(pid)
    try:
        for descriptor in descriptors:
            copy = _libc.syscall(_PIDFD_GETFD, pidfd, descriptor, 0)
            if copy < 0:
                raise OSError(ctypes.get_errno(), "pidfd_getfd")
            yield socket.socket(fileno=copy)
    finally:
        os.close(pidfd)


def deepen(pid: int, send_bytes: int = SEND_BYTES, receive_bytes: int = RECEIVE_BYTES) -> int:
    """Enlarge all AF_PACKET sockets of process `pid`; how many there were. Raises OSError."""
    count = 0
    for sock in taken(pid, packet_sockets(pid)):
        with sock:
            sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, send_bytes)
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, receive_bytes)
        count += 1
    return count
