"""The state of the installation on a private Unix socket: whoever connects gets the JSON once. Only its owner can.

A folder's path may be longer than a socket's address may be (108 bytes), so both ends go through /proc/self/fd.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from controller.status import state_of

#: Name of the socket in a run folder.
NAME = "controller.sock"


def serve(path: Path, status_path: Path) -> None:
    """Listen on `path` (mode 0600) from a thread, and answer with this process's state in the status file."""
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


def ask(path: Path, timeout_s: float = 3.0) -> dict[str, Any]:
    """What the controller at `path` says, with `host_pid`: its process as the caller sees it (`pid` is its number in
    the run's namespace). Raises OSError when none answers, ValueError when the answer is cut short."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout_s)
        with _short(path) as address:
            client.connect(address)
        parts = []
        while data := client.recv(1 << 16):
            parts.append(data)
        # The kernel gives the listener's pid as it is in the namespace of whoever asks: unix(7), SO_PEERCRED.
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        found: dict[str, Any] = json.loads(b"".join(parts))
        return {**found, "host_pid": struct.unpack("3i", credentials)[0]}


def _answer(listener: socket.socket, status_path: Path) -> None:
    while True:
        client, _ = listener.accept()
        with client, contextlib.suppress(OSError, ValueError):
            client.settimeout(2)
            client.sendall(json.dumps(state_of(status_path, os.getpid())).encode())


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
