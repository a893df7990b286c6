"""The state of the installation on a private Unix socket: whoever connects gets the JSON once. Only its owner can.

A folder's path may be longer than a socket's address may be (108 bytes), so both ends go through /proc/self/fd.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

#: Name of the socket in a run folder.
NAME = "controller.sock"


def serve(path: Path, status_path: Path) -> None:
    """Listen on `path` (mode 0600) from a thread of its own, and answer with the content of the status file."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o177)
    try:
        with _short(path) as address:
            listener.bind(address)
    finally:
        os.umask(old)
    listener.listen(8)
    threading.Thread(target=_answer, args=(listener, status_path), name="status", daemon=True).start()


def ask(path: Path, timeout_s: float = 3.0) -> str:
    """What the controller at `path` says. Raises OSError when none answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout_s)
        with _short(path) as address:
            client.connect(address)
        parts = []
        while data := client.recv(1 << 16):
            parts.append(data)
        return b"".join(parts).decode()


def _answer(listener: socket.socket, status_path: Path) -> None:
    while True:
        client, _ = listener.accept()
        with client, contextlib.suppress(OSError):
            client.settimeout(2)
            client.sendall(status_path.read_bytes())


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
