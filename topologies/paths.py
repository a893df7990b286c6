"""The path function: which cables a queue pair's packets cross. One function for rules, simulation and analysis.

`unique` (ZCube): crosswise always, port 1 to port 2 and port 2 to port 1, over two switches, also for pairs that
share a switch (blog figure 8). With m > 1 links per pair the member is a stated function of the destination
(`destination`) or of the queue pair (`hashed`).
`ecmp` (ROFT): a hash of the 5-tuple, seeded per switch, picks among equal next hops; a pair on one leaf stays there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from topologies.addresses import ip_to_int
from topologies.fabric import End, Fabric, FabricError

#: First source port of queue pairs. The agent binds it, so every path is known before a flow starts.
QP_BASE_PORT = 20_000
#: Destination port of every queue pair.
QP_SERVER_PORT = 19_000
TCP, UDP = 6, 17


@dataclass(frozen=True)
class QueuePair:
    """One connection from a source NIC port to a destination NIC port; messages in FIFO order."""

    src: End
    dst: End
    index: int


@dataclass(frozen=True)
class FiveTuple:
    """What a switch hashes."""

    src_ip: str
    dst_ip: str
    protocol: int
    src_port: int
    dst_port: int


@dataclass(frozen=True)
class Path:
    """Egress ends in order (the GPU's NIC port first) and the ids of the cables they send into."""

    egress: tuple[End, ...]
    links: tuple[str, ...]

    @property
    def switches(self) -> tuple[str, ...]:
        """Switches crossed, in order."""
        return tuple(end.node for end in self.egress[1:])


def source_port(qp: QueuePair, gpus: int) -> int:
    """The planned TCP/UDP source port of a queue pair: a pure function of source, destination and index.

    Distinct for the destinations of one source port; the range wraps inside 20000-60999 for very large fabrics
    (two queue pairs of one source then share a port number, and differ in their destination address).
    """
    destination = int(qp.dst.node.removeprefix("gpu")) - 1
    slot = (destination * 2 + (qp.dst.port - 1)) + qp.index * gpus * 2
    return QP_BASE_PORT + slot % 41_000


def five_tuple(fabric: Fabric, qp: QueuePair, protocol: int = TCP) -> FiveTuple:
    """Addresses and ports of a queue pair."""
    src, dst = fabric.port(qp.src.node, qp.src.port), fabric.port(qp.dst.node, qp.dst.port)
    if src.ip is None or dst.ip is None:
        raise FabricError("queue pair", f"{qp.src} -> {qp.dst}", "both ends must be GPU ports")
    return FiveTuple(src.ip, dst.ip, protocol, source_port(qp, len(fabric.gpus)), QP_SERVER_PORT)


def reversed_flow(flow: FiveTuple) -> FiveTuple:
    """What a switch hashes in the acknowledgements of a flow."""
    return FiveTuple(flow.dst_ip, flow.src_ip, flow.protocol, flow.dst_port, flow.src_port)


def ecmp_choice(flow: FiveTuple, seed: int, dpid: int, ways: int) -> int:
    """Index of the next hop that one switch's hash picks: uniform over flows, independent over switches and seeds."""
    words = (seed, dpid, ip_to_int(flow.src_ip), ip_to_int(flow.dst_ip), flow.protocol, flow.src_port, flow.dst_port)
    digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % ways


def destination_member(dst_ip: str, members: int) -> int:
    """Bundle member (from 0) under `destination`: the host byte modulo the bundle, so that masked rules match it."""
    return ip_to_int(dst_ip) % members


def port_pairs(fabric: Fabric) -> tuple[tuple[int, int], ...]:
    """(source port, destination port) pairs that a handoff uses: crosswise with two ports, else 1 -> 1."""
    return ((1, 2), (2, 1)) if len(fabric.gpus[0].ports) == 2 else ((1, 1),)


def queue_pairs(fabric: Fabric, src_gpu: str, dst_gpu: str, per_port_pair: int = 1) -> tuple[QueuePair, ...]:
    """Every queue pair of a GPU pair, port pair by port pair."""
    return tuple(
        QueuePair(End(src_gpu, a), End(dst_gpu, b), q)
        for a, b in port_pairs(fabric)
        for q in range(per_port_pair)
    )


def path(fabric: Fabric, qp: QueuePair, seed: int = 0, protocol: int = TCP) -> Path:
    """The path of a queue pair under the fabric's policy. Raises FabricError for a pair without a path."""
    if qp.src.node == qp.dst.node:
        raise FabricError("queue pair", f"{qp.src.node} to itself", "source and destination GPU must differ")
    return flow_path(fabric, qp.src, qp.dst, five_tuple(fabric, qp, protocol), seed)


def flow_path(fabric: Fabric, src: End, dst: End, flow: FiveTuple, seed: int = 0) -> Path:
    """The path of any flow between two GPU ports; for the acknowledgements of a queue pair as well."""
    egress = [src]
    here = fabric.attachment[src.node, src.port].node
    last = fabric.attachment[dst.node, dst.port]
    while here != last.node:
        egress.append(End(here, next_hop_port(fabric, here, last.node, flow, seed)))
        here = fabric.far_end(here, egress[-1].port).node
        if len(egress) > 8:
            raise FabricError("path", f"{src} -> {dst}", "no path within 8 hops")
    egress.append(last)
    return Path(tuple(egress), tuple(fabric.link_at[end.node, end.port].id for end in egress))


def next_hop_port(fabric: Fabric, switch: str, last_switch: str, flow: FiveTuple, seed: int) -> int:
    """Port by which `switch` sends a flow whose destination hangs on `last_switch` (not `switch` itself)."""
    direct = fabric.parallel_ports.get((switch, last_switch))
    if direct is not None:
        return direct[member(fabric, switch, flow, seed, len(direct))]
    if fabric.kind != "roft":
        raise FabricError(
            "path", f"{switch} to {last_switch}", "unique paths join an odd and an even switch (crosswise ports)"
        )
    ports = uplinks(fabric, switch)
    return ports[ecmp_choice(flow, seed, fabric.switch_by_name[switch].dpid, len(ports))]


def member(fabric: Fabric, switch: str, flow: FiveTuple, seed: int, members: int) -> int:
    """Index of the bundle member towards the last switch."""
    if members == 1:
        return 0
    if fabric.kind == "zcube" and fabric.bundle == "destination":
        return destination_member(flow.dst_ip, members)
    return ecmp_choice(flow, seed, fabric.switch_by_name[switch].dpid, members)


def uplinks(fabric: Fabric, leaf: str) -> tuple[int, ...]:
    """Ports of a leaf that lead to spines, ascending."""
    return tuple(
        sorted(port for (a, b), ports in fabric.parallel_ports.items() if a == leaf for port in ports)
    )


def walk_all_pairs(fabric: Fabric, per_port_pair: int = 1) -> Iterator[QueuePair]:
    """Every queue pair of every ordered GPU pair."""
    for src in fabric.gpus:
        for dst in fabric.gpus:
            if src is not dst:
                yield from queue_pairs(fabric, src.name, dst.name, per_port_pair)
