"""The event loop of an agent process, and the network namespaces that its sockets are made in. Standard library only.

All sockets are non-blocking; epoll is level-triggered. epoll counts in milliseconds and frames do not, so before a
timer that is near the wait is a `select` on the epoll descriptor, which has microseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import itertools
import os
import select
import time
from collections.abc import Callable, Iterator

_CLONE_NEWNET = 0x40000000

#: From here on a millisecond more does not matter.
_FAR_S = 0.02
#: A buffer for them is made each time.
_EVENTS_AT_ONCE = 64


class Loop:
    """Calls handlers of descriptors with their event mask, and timers when they are due, until `stop`."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], object]] = {}
        self._timers: list[tuple[int, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._stopped = False

    def watch(self, fd: int, mask: int, handler: Callable[[int], object]) -> None:
        """Call `handler` on these events of a descriptor that is new."""
        self._handlers[fd] = handler
        self.epoll.register(fd, mask)

    def change(self, fd: int, mask: int) -> None:
        """Other events of a known descriptor."""
        self.epoll.modify(fd, mask)

    def forget(self, fd: int) -> None:
        """No events any more; before the descriptor is closed."""
        del self._handlers[fd]
        self.epoll.unregister(fd)

    def call_at(self, at_ns: int, callback: Callable[[], object]) -> None:
        """Call once at a monotonic time. There is no way to cancel: a callback looks whether it is still wanted."""
        heapq.heappush(self._timers, (at_ns, next(self._numbers), callback))

    def stop(self) -> None:
        """End `run` after this event."""
        self._stopped = True

    def run(self) -> None:
        """Serve until `stop`."""
        waiting = [self.epoll.fileno()]
        self._stopped = False
        while True:
            left_s = (self._timers[0][0] - time.monotonic_ns()) / 1e9 if self._timers else _FAR_S
            if 0 < left_s < _FAR_S:
                select.select(waiting, [], [], left_s)
                left_s = 0.0
            events = self.epoll.poll(max(0.0, left_s) if self._timers else None, _EVENTS_AT_ONCE)
            for fd, mask in events:
                handler = self._handlers.get(fd)
                if handler is not None:  # one of the same batch may have closed it
                    handler(mask)
            if self._stopped:
                return
            while self._timers and self._timers[0][0] <= time.monotonic_ns():
                heapq.heappop(self._timers)[2]()


class Namespace:
    """A network namespace, by an open descriptor of it; None is the process's own."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Sockets made meanwhile are in the namespace and stay in it. Raises OSError."""
        if self._fd is None:
            yield
            return
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _setns(self._fd)
            try:
                yield
            finally:
                _setns(home)
        finally:
            os.close(home)


def _setns(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
