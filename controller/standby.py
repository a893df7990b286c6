"""A controller that has loaded and waits: it takes over in the time of its connections, not of Python's imports.

Before a controller serves it forks. The child has all that took time (the library, the rules, the prepared repairs) in
memory that it shares with its parent, and sleeps on a socket until whoever started the first one sends it an order; a
second later, on a busy machine ten, is what a process that starts anew would need. The child that is called does the
same before it serves, so there is always one in reserve. When the other end of the socket closes it ends.

Datagrams keep their bounds (SOCK_SEQPACKET). Up: {"standby_pid": N}, in the namespace of whoever reads. Down: an Order.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
from dataclasses import asdict, dataclass

_DATAGRAM_BYTES = 4096


@dataclass(frozen=True)
class Order:
    """Where to listen, and whether to ask for the cabling (again)."""

    port: int
    discover: bool


def leave_behind(fd: int, order: Order) -> Order:
    """Fork a standby and return the order to serve by: in the parent at once `order`, in the child what it is told.

    To be called before there are threads. A child that is not called never returns from here.
    """
    gc.freeze()  # a collection would write into every page that both could share
    line = socket.socket(fileno=os.dup(fd))
    while os.fork() == 0:
        with contextlib.suppress(OSError):
            line.send(json.dumps({"standby_pid": os.getpid()}).encode())
        told = b""
        with contextlib.suppress(OSError):  # reset: whoever could call has gone with what was sent above unread
            told = line.recv(_DATAGRAM_BYTES)
        if not told:
            os._exit(0)
        order = Order(**json.loads(told))
    line.close()
    return order


class Line:
    """The other end, with whoever starts controllers: knows the standby and calls it. One for each controller that is
    started, and those that follow from it."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._waiting: int | None = None

    @property
    def descriptor(self) -> int:
        """To be inherited by the first controller, as its --standby-fd."""
        return self.theirs.fileno()

    def call(self, order: Order) -> int | None:
        """Send the standby its order; its PID, or None where none is waiting."""
        while (pid := self._next()) is not None:
            self._waiting = pid
        pid, self._waiting = self._waiting, None
        if pid is None or not _alive(pid):
            return None
        self._ours.send(json.dumps(asdict(order)).encode())
        return pid

    def _next(self) -> int | None:
        try:
            told = self._ours.recv(_DATAGRAM_BYTES)
        except BlockingIOError:
            return None
        return int(json.loads(told)["standby_pid"]) if told else None

    def close(self) -> None:
        """End the standby, if there is one."""
        self._ours.close()
        self.theirs.close()


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
