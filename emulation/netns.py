"""Enter a node's network namespace for a moment, or run a command in it."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000


def _setns(fd: int) -> None:
    if _libc.setns(fd, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


@contextmanager
def entered(pid: int) -> Iterator[None]:
    """This thread is in the network namespace of process `pid`. Sockets made meanwhile stay in it."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _setns(there)
        try:
            yield
        finally:
            _setns(home)
    finally:
        os.close(there)
        os.close(home)


def write_sysctls(pid: int, values: Mapping[str, str]) -> None:
    """Set sysctls of the namespace of `pid`; names with slashes below /proc/sys; missing ones are left out."""
    with entered(pid):
        for name, value in values.items():
            path = f"/proc/sys/{name}"
            if os.path.exists(path):
                with open(path, "w", encoding="ascii") as file:
                    file.write(value)


def read_sysctls(pid: int, names: Sequence[str]) -> dict[str, str]:
    """Sysctls as they are in the namespace of `pid`."""
    found = {}
    with entered(pid):
        for name in names:
            try:
                with open(f"/proc/sys/{name}", encoding="ascii") as file:
                    found[name] = file.read().strip()
            except FileNotFoundError:
                found[name] = "absent"
    return found


def inside(pid: int, argv: Sequence[str]) -> list[str]:
    """The argument list that runs `argv` in the network namespace of `pid`."""
    return ["nsenter", f"--net=/proc/{pid}/ns/net", *argv]


class Batch:
    """Commands that run at the same time; `finish` waits for all and raises on the first failure."""

    def __init__(self) -> None:
        self._running: list[tuple[Sequence[str], subprocess.Popen[str]]] = []

    def start(self, argv: Sequence[str], text: str | None = None, env: Mapping[str, str] | None = None) -> None:
        """Start one command, with `text` as its input."""
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=None if env is None else {**os.environ, **env},
        )
        if text is not None and process.stdin is not None:
            process.stdin.write(text)
            process.stdin.close()
            process.stdin = None
        self._running.append((argv, process))

    def finish(self, timeout_s: float = 30.0) -> list[str]:
        """Outputs in the order of the starts. Raises RuntimeError naming the command that failed."""
        outputs = []
        failed: list[str] = []
        for argv, process in self._running:
            output, _ = process.communicate(timeout=timeout_s)
            outputs.append(output)
            if process.returncode:
                failed.append(f"{' '.join(argv)}: exit {process.returncode}: {output.strip()[:300]}")
        self._running = []
        if failed:
            raise RuntimeError(failed[0])
        return outputs
