"""Frames seen on every interface of the emulated fabric, and the paths that new connections are seen to take.

One AF_PACKET socket in every node's namespace sees each frame that enters or leaves it: the one way to know where a
switch's own hash puts a flow, since OpenFlow counters say how many packets passed and not which.
"""

from __future__ import annotations

import ctypes
import select
import socket
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from emulation.netns import entered
from emulation.probe_path import Sighting, follow
from scenario.errors import RunError
from topologies.fabric import End, Fabric
from topologies.paths import QP_SERVER_PORT, TCP, UDP, FiveTuple, Path, QueuePair, five_tuple

_ETH_P_ALL = 0x0003
_PACKET_OUTGOING = 4
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 26, 33
_RECEIVE_BYTES = 16 << 20
#: IPv4 and TCP, without IP options, with SYN and not ACK.
#: The offsets are those of Ethernet (14 B) and IPv4 (20 B).
_FIRST_OF_TCP = (
    (0x28, 0, 0, 12), (0x15, 0, 6, 0x0800),
    (0x30, 0, 0, 23), (0x15, 0, 4, 6),
    (0x30, 0, 0, 47), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02),
    (0x06, 0, 0, 0xFFFF), (0x06, 0, 0, 0),
)  # fmt: skip
#: IPv4 and UDP to the queue pairs' port, without IP options, with the psn of a hello (`traffic.datagrams`).
_FIRST_OF_UDP = (
    (0x28, 0, 0, 12), (0x15, 0, 7, 0x0800),
    (0x30, 0, 0, 23), (0x15, 0, 5, 17),
    (0x28, 0, 0, 36), (0x15, 0, 3, QP_SERVER_PORT),
    (0x20, 0, 0, 46), (0x15, 0, 1, 0xFFFFFFFF),
    (0x06, 0, 0, 0xFFFF), (0x06, 0, 0, 0),
)  # fmt: skip


#: Of classic BPF: code, jump if true, jump if false, operand.
Instruction = tuple[int, int, int, int]


class Nodes(Protocol):
    """A fabric that is up, and the process in whose network namespace each node is."""

    @property
    def fabric(self) -> Fabric:
        """As planned."""

    def node_pid(self, name: str) -> int:
        """As this process sees it."""


class Watch:
    """A packet socket in every node of the fabric; with `bpf` only for the frames that the filter lets through."""

    def __init__(self, net: Nodes, bpf: Sequence[Instruction] = ()) -> None:
        self._end_of = {port.name: End(o.name, port.number) for o in net.fabric.nodes for port in o.ports}
        self._sockets: dict[int, socket.socket] = {}
        self._poller = select.poll()
        for owner in net.fabric.nodes:
            with entered(net.node_pid(owner.name)):
                sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
            sock.setblocking(False)
            if bpf:
                _attach(sock, bpf)
                for _ in self._read(sock):
                    pass  # what came before the filter
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
            self._sockets[sock.fileno()] = sock
            self._poller.register(sock.fileno(), select.POLLIN)

    def frames(self, timeout_s: float) -> Iterator[tuple[End, str, bytes]]:
        """(port, "in" or "out", frame) of what has come; waits at most `timeout_s` for the first."""
        for fd, _ in self._poller.poll(timeout_s * 1000):
            yield from self._read(self._sockets[fd])

    def _read(self, sock: socket.socket) -> Iterator[tuple[End, str, bytes]]:
        while True:
            try:
                data, (interface, _, packet_type, *_) = sock.recvfrom(65_535)
            except BlockingIOError:
                return
            end = self._end_of.get(interface)  # management and the bridge's own interfaces are none of ours
            if end is not None:
                yield end, "out" if packet_type == _PACKET_OUTGOING else "in", data

    def close(self) -> None:
        """Close the sockets."""
        for sock in self._sockets.values():
            sock.close()


class ConnectionWatch:
    """Follows the first packet of each queue pair (SYN, or hello) while they are opened."""

    def __init__(self, net: Nodes, protocol: int = TCP) -> None:
        self._net = net
        self._watch = Watch(net, _FIRST_OF_UDP if protocol == UDP else _FIRST_OF_TCP)

    def paths(
        self, queue_pairs: Iterable[QueuePair], flow_of: Callable[[QueuePair], FiveTuple] | None = None
    ) -> Mapping[QueuePair, Path]:
        """The path on which each queue pair was opened; ends the watch. Raises RunError for one not seen whole.

        `flow_of`: addresses and ports, where they are not the planned ones.
        All packets of a connection take it: a switch hashes the 5-tuple, as long as its group stays what it is.
        """
        seen: defaultdict[tuple[str, str, int, int], list[Sighting]] = defaultdict(list)
        while frames := list(self._watch.frames(0.05)):
            for end, way, data in frames:
                source, destination, source_port, port = struct.unpack_from("!4s4sHH", data, 26)
                key = socket.inet_ntoa(source), socket.inet_ntoa(destination), source_port, port
                seen[key].append(Sighting(end, way, data[:6].hex(":")))  # type: ignore[arg-type]
        self._watch.close()
        fabric = self._net.fabric
        found: dict[QueuePair, Path] = {}
        for qp in queue_pairs:
            flow = flow_of(qp) if flow_of else five_tuple(fabric, qp)
            sightings = seen[flow.src_ip, flow.dst_ip, flow.src_port, flow.dst_port]
            observed = follow(fabric, qp.src, qp.dst, list(dict.fromkeys(sightings)))  # a SYN may have been sent twice
            if observed.problem:
                raise RunError(f"the path of queue pair {qp.src} -> {qp.dst} is not known: it {observed.problem}")
            links = tuple(fabric.link_at[end.node, end.port].id for end in observed.egress)
            found[qp] = Path(observed.egress, links)
        return found


def _attach(sock: socket.socket, instructions: Sequence[Instruction]) -> None:
    """SO_ATTACH_FILTER with a struct sock_fprog (linux/filter.h)."""
    code = b"".join(struct.pack("HBBI", *one) for one in instructions)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HL", len(instructions), ctypes.addressof(buffer))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
