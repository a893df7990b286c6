"""Interfaces of the fabric's nodes up or down, in the order in which it was asked for, without making anybody wait.

One thread sets the flags by ioctl on a socket in the node's namespace: no process is started, and the kernel, which
may take milliseconds for an interface that goes down, does not hold up the engine.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Callable, Mapping

from emulation.netns import entered
from emulation.worker import Worker
from scenario.errors import RunError

# linux/sockios.h, linux/if.h
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_IFREQ = struct.Struct("16sh22x")

#: Node and interface name -> up.
Wanted = Mapping[tuple[str, str], bool]


class Interfaces:
    """Sets the state of interfaces. `pid_of` gives a process in a node's network namespace."""

    def __init__(self, pid_of: Callable[[str], int]) -> None:
        self._pid_of = pid_of
        self._sockets: dict[str, socket.socket] = {}
        self._worker: Worker[Wanted] = Worker("interfaces", self._change)

    def set(self, wanted: Wanted) -> None:
        """Ask for it; what was asked before is done before. Raises RunError when a change before was refused."""
        for node, _ in wanted:
            if node not in self._sockets:
                with entered(self._pid_of(node)):  # this thread only: the sockets stay where they were made
                    self._sockets[node] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._worker.ask(wanted)

    def finish(self) -> None:
        """Wait until all is done. Raises RunError when a change was refused."""
        self._worker.join()
        for each in self._sockets.values():
            each.close()
        self._sockets.clear()
        self._worker.finish()

    def _change(self, wanted: Wanted) -> None:
        refused = ""
        for (node, name), up in wanted.items():
            try:
                _set(self._sockets[node], name, up)
            except OSError as error:
                refused = refused or f"{name} {'up' if up else 'down'}: {error.strerror}"
        if refused:
            raise RunError(f"an interface could not be changed: {refused}")


def _set(sock: socket.socket, name: str, up: bool) -> None:
    asked = _IFREQ.pack(name.encode(), 0)
    flags = _IFREQ.unpack(fcntl.ioctl(sock, _SIOCGIFFLAGS, asked))[1]
    flags = flags | _IFF_UP if up else flags & ~_IFF_UP
    fcntl.ioctl(sock, _SIOCSIFFLAGS, _IFREQ.pack(name.encode(), flags))
