"""A process that somebody else has started, with as much of `subprocess.Popen` as its keeper needs."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess


class Adopted:
    """Held by a pidfd, so that its number cannot come to mean another. `returncode` is not known to who is no parent:
    None while it lives, UNKNOWN when it has ended."""

    UNKNOWN = -255

    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError when there is none."""
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """`returncode`, looked up."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            if not poller.poll(None if timeout_s is None else timeout_s * 1000):
                raise subprocess.TimeoutExpired(["process", str(self.pid)], timeout_s or 0.0)
            os.close(self._pidfd)
            self.returncode = self.UNKNOWN
        return self.returncode

    def send_signal(self, number: int) -> None:
        """As long as it lives."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)
