"""A run lives in private network, mount and PID namespaces; when it dies, however it dies, the kernel clears up.

Chain of processes: caller -> setpriv -> unshare -> PID 1 of the sandbox (`emulation.init`) -> runner. Each link dies
with the one before: setpriv's death signal, unshare's `--kill-child`, and a socket on which PID 1 sees the caller go.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from scenario.errors import MachineError, TestbedError

#: tmpfs inside the sandbox; the directory exists wherever Open vSwitch is installed, and is hidden, not changed.
STATE_DIR = Path("/etc/openvswitch")

REPOSITORY = Path(__file__).resolve().parent.parent

REQUIRED_TOOLS = {
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "mnexec": "mininet",
    "ovs-vswitchd": "openvswitch-switch",
    "ovsdb-server": "openvswitch-switch",
    "iperf3": "iperf3",
    "ethtool": "ethtool",
    "ip": "iproute2",
    "tc": "iproute2",
    "ping": "iputils-ping",
}
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def tool(name: str) -> str | None:
    """Full path of a program, also when the user's PATH lacks the sbin folders."""
    return shutil.which(name) or shutil.which(name, path=_SYSTEM_PATH)


def require_machine() -> None:
    """Raise MachineError (exit code 3) unless this process may build a sandbox and finds its programs."""
    if sys.platform != "linux":
        raise MachineError("the emulation needs Linux", "run it in the virtual machine: cd vagrant && vagrant up")
    missing = sorted({package for name, package in REQUIRED_TOOLS.items() if tool(name) is None})
    if missing:
        raise MachineError(
            f"Debian package(s) missing: {' '.join(missing)}", "make setup    # or: bash vagrant/setup.sh"
        )
    if not STATE_DIR.is_dir():
        raise MachineError(f"{STATE_DIR} is missing", "install openvswitch-switch again: bash vagrant/setup.sh")
    if os.geteuid() != 0:
        raise MachineError(
            "the sandbox (network, mount and PID namespaces) needs root",
            "sudo .venv/bin/zcube " + " ".join(sys.argv[1:]),
        )
    if subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True).returncode:
        raise MachineError(
            "the kernel or a container refuses new network, mount or PID namespaces",
            "run on a machine or VM where `unshare --net --mount --pid --fork true` works as root",
        )


def telling_errors(work: Callable[[], None]) -> int:
    """Exit status of a process inside a sandbox that does `work`: what goes wrong is one message for the caller."""
    try:
        work()
    except TestbedError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return error.exit_code
    return 0


class Sandbox:
    """One command in a sandbox of its own. Use as a context manager; leaving it ends everything inside."""

    def __init__(self, argv: Sequence[str], *, stdout: int | IO[bytes] = subprocess.PIPE, stderr: IO[bytes]) -> None:
        """Start Python with `argv` (such as -m, a module, its arguments) as the sandbox's runner."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        command = [
            *("setpriv", "--pdeathsig", "KILL"),
            *("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"),
            *("--propagation", "private"),
            *(sys.executable, "-m", "emulation.init", "--"),
            *(sys.executable, *argv),
        ]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        environment["PATH"] = f"{environment.get('PATH', '')}:{_SYSTEM_PATH}"
        self.process = subprocess.Popen(
            command,
            stdin=theirs.fileno(),
            stdout=stdout,
            stderr=stderr,
            env=environment,
            cwd=REPOSITORY,
            start_new_session=True,  # Ctrl-C reaches the caller alone, which then asks for an orderly end
        )
        theirs.close()

    def interrupt(self) -> None:
        """Ask the runner to stop and keep what it measured."""
        with contextlib.suppress(OSError):  # it may be gone already
            self._control.send(b"i")

    def wait(self, timeout_s: float | None = None) -> int:
        """Exit code of the runner. Raises subprocess.TimeoutExpired."""
        return self.process.wait(timeout_s)

    def end(self) -> None:
        """End everything inside, at once, without waiting for it: PID 1 sees its caller go."""
        self._control.close()

    def close(self) -> None:
        """End everything inside, at once."""
        self.end()
        if self.process.poll() is None:
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGKILL)
                self.process.wait()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
