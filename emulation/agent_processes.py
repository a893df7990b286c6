"""The processes of the traffic agents: each serves some GPUs, and is told what to do for each of them on a socket."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from emulation.network import EmulatedNetwork

_PATIENCE_S = 60.0


def by_process(by_server: Sequence[Sequence[str]], cores: int) -> list[list[str]]:
    """The GPUs that each agent process serves: servers in turn, one process for two cores, at least one.

    Switches need the other cores, and more processes only take the core, and its caches, from each other: with one a
    server a frame of UDP costs twice the CPU time (docs/transports.md). In turn, because neighbours are apt to send at
    the same time.
    """
    count = min(len(by_server), max(1, cores // 2))
    return [[gpu for gpus in by_server[first::count] for gpu in gpus] for first in range(count)]


class AgentProcesses:
    """`sockets`: GPU -> ours of a pair, whose other end its agent has; `poller` says which have something to read."""

    def __init__(self, network: EmulatedNetwork) -> None:
        self._network = network
        self.sockets: dict[str, socket.socket] = {}
        self.name_by_fd: dict[int, str] = {}
        self.poller = select.epoll()
        self.pids: dict[str, int] = {}  # by what to call each
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(
        self, gpus: Sequence[str], log: IO[bytes], program: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """One process for these GPUs. It makes its sockets in their network namespaces."""
        inherited: list[int] = []
        command = [sys.executable, "-I", *program]
        for name in gpus:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            namespace = os.open(f"/proc/{self._network.node_pid(name)}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            inherited += [theirs.detach(), namespace]
            command.append(f"{inherited[-2]}:{namespace}")
            ours.settimeout(_PATIENCE_S)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            self.sockets[name] = ours
            self.name_by_fd[ours.fileno()] = name
            self.poller.register(ours.fileno(), select.EPOLLIN)
        self.processes.append(
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=inherited, env=environment
            )
        )
        servers = ", ".join(dict.fromkeys(self._network.fabric.gpu_by_name[name].server for name in gpus))
        self.pids[f"the agent of {', '.join(gpus)} ({servers})"] = self.processes[-1].pid
        for fd in inherited:
            os.close(fd)

    def close(self) -> None:
        """End them: they leave when their socket closes."""
        for sock in self.sockets.values():
            sock.close()
        for process in self.processes:
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                process.kill()
