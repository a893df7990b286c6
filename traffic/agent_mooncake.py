"""The traffic agent of one GPU whose handoffs are writes of the Mooncake Transfer Engine over its TCP transport.

Started as `python -I agent_mooncake.py CONTROL:NAMESPACE`, see `traffic.agent` for both; the process enters the
namespace for good before it makes engines, whose threads stay in it. An engine is made for each port of the GPU: it
answers to that port's address. Which port a write leaves by follows from its destination's address (the GPU's routes).

Writes are one-sided: the receiver's process learns nothing. Each GPU registers one piece of memory, the arena, and the
runner says where in it a handoff belongs. `done` therefore comes from the sender, when its engine has the
acknowledgement that all bytes are in the receiver's memory; after that the runner lets the receiver compare them
(`check`), which is no part of the handoff.

Orders
    {"op": "open", "kind": "mooncake", "listen": [ip, ...], "arena_bytes": n, "look_ns": n}
    {"op": "connect", "qps": [[qp, src_ip, dst_ip, rpc_port, address], ...]}       address: of LEAST_BYTES to write to
    {"op": "send", "id": t, "address": a, "parts": [[qp, offset, size], ...]}      address: of the handoff's first byte
    {"op": "check", "id": t, "address": a, "parts": [[qp, offset, size], ...]}     the same, to the receiver
    {"op": "connections"}   {"op": "stats"}
Reports
    {"ev": "open", "engines": [[ip, rpc_port], ...], "arena": address}
    {"ev": "connected", "flows": [[qp, src_ip, src_port, dst_ip, dst_port], ...], "failed": [[qp, text], ...]}
    {"ev": "done", "id": t, "t_ns": n, "parts": [[qp, size, t_ns], ...]}   {"ev": "error", "text": ...}
    {"ev": "corrupt", "id": t, "qp": q, "offset": o, "text": ...}          {"ev": "checked", "id": t}
    {"ev": "connections", "flows": as above}                               {"ev": "stats", ...}
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import socket
import stat
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

if __name__ == "__main__":  # -I leaves the project's folder out of the path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from traffic.agent import Orders
from traffic.agent_loop import Loop, Namespace
from traffic.endpoint import LEAST_BYTES, MOST_COMPLAINTS, report
from traffic.pattern import PERIOD, content, mismatch, place
from traffic.tcp_sockets import retransmits

#: Compared at once: while that takes, nobody looks whether a write has ended.
CHECKED_AT_ONCE_BYTES = 128 * 1024
#: After which a comparison goes on, so that orders and other timers get their turn.
_GIVE_WAY_NS = 300_000
_MAP_NORESERVE = 0x4000  # linux/mman.h
_FIRST_SOURCE_BYTES = 4 << 20
_CONNECT_S = 20.0


class Memory:
    """Anonymous memory that the kernel provides when it is touched."""

    def __init__(self, size: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self.size, self.map = size, mmap.mmap(-1, size, flags=flags)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.view = memoryview(self.map)


class Write:
    """A part of a handoff that an engine was told to write."""

    __slots__ = ("batch", "size", "transfer")

    def __init__(self, transfer: int, size: int, batch: int) -> None:
        self.transfer, self.size, self.batch = transfer, size, batch


class Link:
    """A queue pair: the engine that writes, the peer's engine, and what has not ended, in order."""

    __slots__ = ("addresses", "engine", "number", "peer", "writes")

    def __init__(self, number: int, engine: Any, peer: str, addresses: tuple[str, str]) -> None:
        self.number, self.engine, self.peer, self.addresses = number, engine, peer, addresses
        self.writes: deque[Write] = deque()


class MooncakeEndpoint:
    """One GPU."""

    def __init__(self, loop: Loop, control: socket.socket, namespace: Namespace) -> None:
        self.loop, self.control, self.namespace = loop, control, namespace
        self.engines: dict[str, Any] = {}  # by address
        self.links: dict[int, Link] = {}  # by queue pair
        self.source = self.arena = Memory(mmap.PAGESIZE)
        self.sources: list[Memory] = []  # an engine may read of an old one yet
        self.ended: dict[int, list[tuple[int, int, int]]] = {}  # transfer -> queue pair, bytes, monotonic ns
        self.missing: dict[int, int] = {}  # transfer -> parts that have not ended
        self.look_ns = 1_000_000
        self.looking = False
        self.complaints = 0

    def report(self, **message: object) -> None:
        """Send one report."""
        report(self.control, **message)

    def order_open(self, listen: list[str], arena_bytes: int, look_ns: int) -> None:
        """Make the engines and the arena. `look_ns`: how often is looked whether a write has ended."""
        from mooncake.engine import TransferEngine

        self.look_ns = look_ns
        self.arena = Memory(arena_bytes)
        for ip in listen:
            engine = TransferEngine()
            # The protocol's name is not obeyed where there are RDMA devices; MC_FORCE_TCP is (the runner sets it).
            if engine.initialize(ip, "P2PHANDSHAKE", "tcp", ""):
                self.report(ev="error", text=f"Mooncake: no engine for {ip}; see agents.log in the run folder")
                return
            self.engines[ip] = engine
            self.register(engine, self.arena)
        self.grow_source(_FIRST_SOURCE_BYTES)
        ports = [[ip, engine.get_rpc_port()] for ip, engine in self.engines.items()]
        self.report(ev="open", engines=ports, arena=self.arena.address)

    def register(self, engine: Any, memory: Memory) -> None:
        """Let an engine read and write memory."""
        if engine.register_memory(memory.address, memory.size):
            self.report(ev="error", text=f"Mooncake: {memory.size} bytes of memory could not be registered")

    def grow_source(self, size: int) -> None:
        """All handoffs are sent from one table of the pattern, which holds the content of any up to `size` bytes."""
        self.source = Memory(size + PERIOD)
        self.sources.append(self.source)
        once = content(0, 0, PERIOD)
        for at in range(0, self.source.size, PERIOD):
            self.source.view[at : at + PERIOD] = once[: self.source.size - at]
        for engine in self.engines.values():
            self.register(engine, self.source)

    def order_connect(self, qps: list[list[Any]]) -> None:
        """Write a few bytes over each queue pair: its engine then has a connection, which it keeps."""
        failed: list[list[object]] = []
        for qp, src_ip, dst_ip, rpc_port, address in qps:
            link = self.links[qp] = Link(qp, self.engines[src_ip], f"{dst_ip}:{rpc_port}", (src_ip, dst_ip))
            batch = link.engine.transfer_submit_write(link.peer, self.source.address, address, LEAST_BYTES)
            deadline = time.monotonic() + _CONNECT_S
            while batch and not (status := link.engine.transfer_check_status(batch)) and time.monotonic() < deadline:
                time.sleep(0.001)
            if not batch or status != 1:
                failed.append([qp, f"Mooncake: {src_ip} does not reach the engine {link.peer}"])
        flows = self.flows()
        found = {flow[0] for flow in flows}
        failed += [
            [qp, f"Mooncake: the connection {src_ip} -> {dst_ip} left by another port, or is not there"]
            for qp, src_ip, dst_ip, *_ in qps
            if qp not in found
        ]
        wanted = {qp for qp, *_ in qps}
        self.report(ev="connected", flows=[flow for flow in flows if flow[0] in wanted], failed=failed)

    def flows(self) -> list[list[object]]:
        """Queue pair, addresses and ports of the connections that the engines have made."""
        numbers = {link.addresses: link.number for link in self.links.values()}
        found: list[list[object]] = []
        for sock in outgoing_connections():
            (src_ip, src_port), (dst_ip, dst_port) = sock.getsockname()[:2], sock.getpeername()[:2]
            number = numbers.get((src_ip, dst_ip))
            if number is not None:
                found.append([number, src_ip, src_port, dst_ip, dst_port])
        return found

    def order_connections(self) -> None:
        """Report them."""
        self.report(ev="connections", flows=self.flows())

    def order_send(self, id: int, address: int, parts: list[list[int]]) -> None:
        """Start a handoff."""
        longest = max(size for _, _, size in parts)
        if longest > self.source.size - PERIOD:
            self.grow_source(2 * longest)
        self.missing[id], self.ended[id] = len(parts), []
        for qp, offset, size in parts:
            link = self.links[qp]
            source = self.source.address + place(id, offset)
            batch = link.engine.transfer_submit_write(link.peer, source, address + offset, size)
            if not batch:
                self.report(ev="error", text=f"Mooncake: a write of {size} bytes to {link.peer} was not accepted")
                return
            link.writes.append(Write(id, size, batch))
        if not self.looking:
            self.looking = True
            self.loop.call_at(time.monotonic_ns() + self.look_ns, self.look)

    def look(self) -> None:
        """See which writes have ended. Those of a queue pair end in order: it has one connection."""
        busy = False
        for link in self.links.values():
            while link.writes:
                status = link.engine.transfer_check_status(link.writes[0].batch)
                if status == 0:
                    busy = True
                    break
                write = link.writes.popleft()
                if status < 0:
                    self.report(ev="error", text=f"Mooncake: a write of {write.size} bytes to {link.peer} failed")
                    return
                self.end(link, write, time.monotonic_ns())
        self.looking = busy
        if busy:
            self.loop.call_at(time.monotonic_ns() + self.look_ns, self.look)

    def end(self, link: Link, write: Write, now_ns: int) -> None:
        """A part has arrived; report the handoff when it is the last."""
        transfer = write.transfer
        self.ended[transfer].append((link.number, write.size, now_ns))
        self.missing[transfer] -= 1
        if not self.missing[transfer]:
            del self.missing[transfer]
            self.report(ev="done", id=transfer, t_ns=now_ns, parts=self.ended.pop(transfer))

    def order_check(self, id: int, address: int, parts: list[list[int]]) -> None:
        """Compare what is in the arena with what was sent, bit by bit, then wipe it: what stays zero did not come."""
        start = address - self.arena.address
        pieces = [
            (qp, at, min(CHECKED_AT_ONCE_BYTES, offset + size - at))
            for qp, offset, size in parts
            for at in range(offset, offset + size, CHECKED_AT_ONCE_BYTES)
        ]
        self.check(id, start, deque(pieces))

    def check(self, transfer: int, start: int, pieces: deque[tuple[int, int, int]]) -> None:
        """Compare one piece."""
        qp, at, size = pieces.popleft()
        wrong = mismatch(transfer, at, self.arena.view[start + at : start + at + size])
        if wrong is not None:
            self.complaints += 1
            if self.complaints <= MOST_COMPLAINTS:
                text = "the content is not what was sent"
                self.report(ev="corrupt", id=transfer, qp=qp, offset=wrong, text=text)
        ctypes.memset(self.arena.address + start + at, 0, size)
        if pieces:
            self.loop.call_at(time.monotonic_ns() + _GIVE_WAY_NS, lambda: self.check(transfer, start, pieces))
        else:
            self.report(ev="checked", id=transfer)

    def order_stats(self) -> None:
        """Segments that TCP sent again, and CPU time of the process, engines' threads included."""
        self.report(
            ev="stats",
            retransmits=sum(retransmits(sock) for sock in outgoing_connections()),
            cpu_s=time.process_time(),
            kernel_s=os.times().system,
            pid=os.getpid(),
            half_arrived=0,
            complaints=self.complaints,
        )


def outgoing_connections() -> Iterator[socket.socket]:
    """The TCP connections that this process has made, its libraries' included; each is closed when the next is asked
    for (a duplicate: the connection stays)."""
    listening: set[int] = set()
    for incoming in (True, False):  # first the ports that accept
        for sock in _sockets():
            with sock:
                if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
                    continue
                accepts = bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
                if incoming and accepts:
                    listening.add(sock.getsockname()[1])
                elif not incoming and not accepts and _connected(sock) and sock.getsockname()[1] not in listening:
                    yield sock


def _connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


def _sockets() -> Iterator[socket.socket]:
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                yield socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed meanwhile
            continue


def main(arguments: Iterable[str]) -> None:
    """Serve one GPU until the runner is gone."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    (pair,) = arguments
    control, namespace = map(int, pair.split(":"))
    loop = Loop()
    with Namespace(namespace).entered():  # until the end: threads of the engines are made in it
        Orders(loop, socket.socket(fileno=control), Namespace(None), {"mooncake": MooncakeEndpoint})
        loop.run()
    os._exit(0)  # engines that are taken down would wait for each other's threads


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
