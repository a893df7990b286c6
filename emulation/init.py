"""PID 1 of the sandbox: starts the runner, reaps orphans, and ends (with everything) when the runner or caller does."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

from emulation.sandbox import STATE_DIR

_STOPPED_BY_CALLER = 137


def _mount_private_state() -> None:
    """Empty folders, private to this mount namespace, over those that Open vSwitch and `ip netns` share."""
    for folder in (STATE_DIR, "/run/openvswitch", "/run/netns"):
        if os.path.isdir(folder):
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0700", "zcube", str(folder)], check=True)


def main(argv: list[str]) -> int:
    """Run `argv` under this PID 1; returns its exit status (128 + signal when it was killed)."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    _mount_private_state()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    runner = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # after the runner has started, which must not inherit it
    poller = select.poll()
    poller.register(0, select.POLLIN)
    poller.register(woken, select.POLLIN)
    while True:
        for fd, _ in poller.poll():
            if fd == 0:
                asked = os.read(0, 1)
                if not asked:
                    return _STOPPED_BY_CALLER  # the caller is gone: PID 1 ends, the kernel ends the rest
                os.kill(runner.pid, signal.SIGINT)
            else:
                os.read(woken, 512)
                status = _reap(runner.pid)
                if status is not None:
                    return status


def _reap(runner_pid: int) -> int | None:
    """Collect every child that ended; the runner's status when it is among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == runner_pid:
            code = os.waitstatus_to_exitcode(status)
            found = code if code >= 0 else 128 - code


if __name__ == "__main__":
    if sys.argv[1:2] == ["--"] and os.getpid() == 1:
        os._exit(main(sys.argv[2:]))
    sys.exit("emulation.init is the sandbox's first process; use `zcube run`")
