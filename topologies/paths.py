"""The path function: which cables a queue pair's packets cross. One function for rules, simulation and analysis.

| policy     | port pairs of a handoff                                | choice among equal next hops              |
|------------|--------------------------------------------------------|-------------------------------------------|
| `unique`   | crosswise always (port 1 to port 2, 2 to 1), two       | none; of m links of a pair the member by  |
|            | switches even for pairs that share one (blog fig. 8)   | destination or by hash                    |
| `shortest` | those of fewest switches: a pair on one switch uses    | as the fabric's own                       |
|            | only that port                                         |                                           |
| `ecmp`     | each port to the port of its group (trees)             | a hash of the 5-tuple, seeded per switch  |
| `ecmp_ovs` | as ecmp                                                | the switch's own hash: not planned        |
| `spray`    | as ecmp, unique on ZCube                               | each packet anew: equal shares (`shares`) |

`unique` is ZCube's default, `ecmp` everybody else's. With failures a flow keeps its path where that works and picks
again among what is left where it does not, so only the flows concerned move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import gcd

from topologies.addresses import ip_to_int
from topologies.fabric import End, Fabric, FabricError, Gpu
from topologies.routes import NONE, Failures, Routes

#: First source port of queue pairs. The agent binds it, so every path is known before a flow starts.
QP_BASE_PORT = 20_000
#: So many source ports from there: up to 60999.
QP_PORTS = 41_000
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

    From 20000 to 60999. Distinct for the destinations of one source port as long as all indices fit (16 of 1,280 GPUs);
    beyond that two queue pairs of one source may share a number, and differ in their destination address. The indices
    of one destination run through all the numbers before any comes again, so that a hash can be given every path.
    """
    destination = int(qp.dst.node.removeprefix("gpu")) - 1
    slot = destination * 2 + (qp.dst.port - 1) % 2
    return QP_BASE_PORT + (slot + qp.index * _index_stride(gpus)) % QP_PORTS


@cache
def _index_stride(gpus: int) -> int:
    """The first number from 2 * gpus on that has no divisor in common with QP_PORTS."""
    return next(stride for stride in range(2 * gpus, 2 * gpus + QP_PORTS) if gcd(stride, QP_PORTS) == 1)


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


#: Kinds in which a port sends to the next port of the destination: crosswise with two ports.
ROTATING = ("zcube", "zcube_recursive")
POLICIES = ("unique", "shortest", "ecmp", "ecmp_ovs", "spray")
#: More switches than any path here crosses, detours included.
MAX_HOPS = 16


def default_policy(kind: str) -> str:
    """The policy of a kind: unique paths for ZCube, ECMP where there are equal paths to choose from."""
    return "unique" if kind == "zcube" else "ecmp"


def port_pairs(fabric: Fabric) -> tuple[tuple[int, int], ...]:
    """(source port, destination port) pairs that a handoff uses: crosswise in ZCube, else each port to its like.

    With three ports (recursive ZCube) port p sends to port p mod 3 + 1: of the two rotations and the four other
    matchings none has a shorter longest path.
    """
    ports = len(fabric.gpus[0].ports)
    return tuple((p, p % ports + 1 if fabric.kind in ROTATING else p) for p in range(1, ports + 1))


def routes_of(fabric: Fabric, failures: Failures = NONE, *, detour: bool = False) -> Routes:
    """The fabric's next hops; the answer for the whole fabric is kept."""
    if failures:
        key: object = ("routes", failures, detour)
        found = fabric.memo.get(key)
        if found is None:  # one set of failures at a time: a sweep over many must not fill the memory
            for old in [k for k in fabric.memo if isinstance(k, tuple) and k[0] == "routes"]:
                del fabric.memo[old]
            found = fabric.memo[key] = Routes(fabric, failures, detour=detour)
    else:
        found = fabric.memo.setdefault("intact", Routes(fabric))
    assert isinstance(found, Routes)
    return found


def sender(fabric: Fabric, src_gpu: str, dst_gpu: str) -> Gpu | None:
    """The GPU whose NIC carries what `src_gpu` sends to `dst_gpu`.

    The source itself, except on Rail-only, where rails are not joined: there the GPU of the source's server that has
    the destination's rank, reached over NVLink (PXN); None for a destination in the same server.
    """
    src, dst = fabric.gpu_by_name[src_gpu], fabric.gpu_by_name[dst_gpu]
    if fabric.kind != "rail_only":
        return src
    if src.server == dst.server:
        return None
    per_server = fabric.gpus_per_server
    return fabric.gpus[(src.number - 1) // per_server * per_server + (dst.number - 1) % per_server]


def queue_pairs(
    fabric: Fabric,
    src_gpu: str,
    dst_gpu: str,
    per_port_pair: int = 1,
    *,
    policy: str | None = None,
    failures: Failures = NONE,
    detour: bool = False,
) -> tuple[QueuePair, ...]:
    """Every queue pair of a GPU pair, port pair by port pair; with failures those that still have a path.

    Where none of the policy's port pairs has one, the kind's own (`port_pairs`) are used, whose rules are always there;
    where these are cut as well, the first of `fallback_port_pairs`, for which a repair makes rules.
    Empty for two GPUs of one server on Rail-only (NVLink) and for a pair that is cut off. Raises FabricError for a
    policy that the fabric does not have.
    """
    policy = check_policy(fabric, policy)
    source = sender(fabric, src_gpu, dst_gpu)
    if source is None:
        return ()
    chosen = shortest_port_pairs(fabric, source.name, dst_gpu) if policy == "shortest" else port_pairs(fabric)
    if failures:
        routes = routes_of(fabric, failures, detour=detour)

        def joined(pair: tuple[int, int]) -> bool:
            return has_path(fabric, routes, End(source.name, pair[0]), End(dst_gpu, pair[1]))

        left = tuple(filter(joined, chosen)) or tuple(filter(joined, port_pairs(fabric)))
        chosen = left or tuple(filter(joined, fallback_port_pairs(fabric, source.name, dst_gpu, detour=detour)))[:1]
    return tuple(QueuePair(End(source.name, a), End(dst_gpu, b), q) for a, b in chosen for q in range(per_port_pair))


def fallback_port_pairs(fabric: Fabric, src_gpu: str, dst_gpu: str, *, detour: bool) -> tuple[tuple[int, int], ...]:
    """Port pairs that a GPU pair may turn to when all of `port_pairs` are cut too, in order: those over no more
    switches than the longest path of these; with `detour` all. (Two GPUs below one failed odd switch of ZCube have only
    their even ports: one switch where they share it, else three.)"""
    own, ports = port_pairs(fabric), range(1, len(fabric.gpus[0].ports) + 1)
    routes, longest = routes_of(fabric), longest_distance(fabric)

    def fits(pair: tuple[int, int]) -> bool:
        here, there = (fabric.attachment[gpu, port].node for gpu, port in zip((src_gpu, dst_gpu), pair, strict=True))
        distance = routes.distances_to(there).get(here)
        return detour or (distance is not None and distance <= longest)

    return tuple(filter(fits, ((a, b) for a in ports for b in ports if (a, b) not in own)))


def longest_distance(fabric: Fabric) -> int:
    """Most cables between switches on any path of the kind's own port pairs, whole fabric."""
    found = fabric.memo.get("longest")
    if found is None:
        routes = routes_of(fabric)
        ends = {
            pair: tuple(dict.fromkeys(fabric.attachment[g.name, port].node for g in fabric.gpus))
            for pair in port_pairs(fabric)
            for port in pair[1:]
        }
        starts = {a: {fabric.attachment[g.name, a].node for g in fabric.gpus} for a, _ in port_pairs(fabric)}
        found = fabric.memo["longest"] = max(
            (
                distance
                for (a, _), nodes in ends.items()
                for node in nodes
                for here, distance in routes.distances_to(node).items()
                if here in starts[a]
            ),
            default=0,
        )
    assert isinstance(found, int)
    return found


def check_policy(fabric: Fabric, policy: str | None) -> str:
    """The policy, by default the kind's own. Raises FabricError for one that the fabric does not have."""
    if policy is None:
        return default_policy(fabric.kind)
    allowed = POLICIES if fabric.kind == "zcube" else POLICIES[1:]
    if policy not in allowed:
        raise FabricError("policy", policy, f"{fabric.kind} has {', '.join(allowed)}")
    return policy


def shortest_port_pairs(fabric: Fabric, src_gpu: str, dst_gpu: str) -> tuple[tuple[int, int], ...]:
    """The port pairs of fewest switches, of the kind's own and of those within one switch; each port of either end
    once, crosswise before others. (Others that cross switches have no rules: `path` refuses them.)"""
    routes = routes_of(fabric)
    ports = range(1, len(fabric.gpus[0].ports) + 1)
    preferred = port_pairs(fabric)
    length: dict[tuple[int, int], int] = {}
    for pair in (*preferred, *((a, b) for a in ports for b in ports)):
        here, there = (fabric.attachment[gpu, port].node for gpu, port in zip((src_gpu, dst_gpu), pair, strict=True))
        distance = routes.distances_to(there).get(here)
        if distance is not None and (pair in preferred or distance == 0):
            length[pair] = distance
    fewest = min(length.values(), default=0)
    chosen: list[tuple[int, int]] = []
    for a, b in length:
        if length[a, b] == fewest and all(a != c and b != d for c, d in chosen):
            chosen.append((a, b))
    return tuple(sorted(chosen))


def has_path(fabric: Fabric, routes: Routes, src: End, dst: End) -> bool:
    """Whether a flow between two GPU ports still gets through."""
    if not (routes.alive(src) and routes.alive(dst)):
        return False
    return routes.reaches(fabric.attachment[src.node, src.port].node, fabric.attachment[dst.node, dst.port].node)


def path(
    fabric: Fabric,
    qp: QueuePair,
    seed: int = 0,
    protocol: int = TCP,
    *,
    failures: Failures = NONE,
    detour: bool = False,
) -> Path:
    """The path of a queue pair under the fabric's policy. Raises FabricError for a pair without a path."""
    if qp.src.node == qp.dst.node:
        raise FabricError("queue pair", f"{qp.src.node} to itself", "source and destination GPU must differ")
    return flow_path(fabric, qp.src, qp.dst, five_tuple(fabric, qp, protocol), seed, failures=failures, detour=detour)


def flow_path(
    fabric: Fabric,
    src: End,
    dst: End,
    flow: FiveTuple,
    seed: int = 0,
    *,
    failures: Failures = NONE,
    detour: bool = False,
) -> Path:
    """The path of any flow between two GPU ports; for the acknowledgements of a queue pair as well.

    Raises FabricError where there is none: planes and rails that are not joined, or failures.
    """
    routes = routes_of(fabric, failures, detour=detour)
    last = fabric.attachment[dst.node, dst.port]
    own = port_pairs(fabric)
    planned = (src.port, dst.port) in own or (dst.port, src.port) in own  # the second for acknowledgements
    if not (planned or failures or fabric.attachment[src.node, src.port].node == last.node):
        pairs = ", ".join(f"{a} to {b}" for a, b in own)
        what = "crosswise ports" if fabric.kind in ROTATING else "port pairs"
        raise FabricError("path", f"port {src.port} to {dst.port}", f"{fabric.kind} joins {what}: {pairs}")
    if failures and not has_path(fabric, routes, src, dst):
        raise FabricError("path", f"{src.node} port {src.port} to {dst.node} port {dst.port}", "cut off by failures")
    egress = [src]
    here = fabric.attachment[src.node, src.port].node
    while here != last.node:
        egress.append(End(here, next_hop_port(fabric, here, last.node, flow, seed, failures=failures, detour=detour)))
        here = fabric.far_end(here, egress[-1].port).node
        if len(egress) > MAX_HOPS:
            raise FabricError("path", f"{src} -> {dst}", f"no path within {MAX_HOPS} hops")
    egress.append(last)
    return Path(tuple(egress), tuple(fabric.link_at[end.node, end.port].id for end in egress))


def next_hop_port(
    fabric: Fabric,
    switch: str,
    last_switch: str,
    flow: FiveTuple,
    seed: int,
    *,
    failures: Failures = NONE,
    detour: bool = False,
) -> int:
    """Port by which `switch` sends a flow whose destination hangs on `last_switch` (not `switch` itself)."""
    whole = routes_of(fabric).next_ports(switch, last_switch)
    if not whole:
        raise FabricError("path", f"{switch} to {last_switch}", "not joined in this fabric (another rail or plane)")
    port = whole[member(fabric, switch, flow, seed, len(whole))]
    if not failures:
        return port
    left = routes_of(fabric, failures, detour=detour).next_ports(switch, last_switch)
    if port in left:
        return port
    if not left:
        raise FabricError("path", f"{switch} to {last_switch}", "cut off by failures")
    return left[member(fabric, switch, flow, seed, len(left))]


def member(fabric: Fabric, switch: str, flow: FiveTuple, seed: int, members: int) -> int:
    """Index of the next hop among `members` equal ones: by destination in a ZCube bundle, else by hash."""
    if members == 1:
        return 0
    if fabric.kind == "zcube" and fabric.bundle == "destination":
        return destination_member(flow.dst_ip, members)
    return ecmp_choice(flow, seed, fabric.switch_by_name[switch].dpid, members)


def shares(fabric: Fabric, src: End, dst: End, *, failures: Failures = NONE, detour: bool = False) -> dict[End, float]:
    """Egress end -> part of a flow that leaves there when every switch spreads its packets evenly (`spray`).

    Its keys are also all the places where an ECMP hash can put the flow. Raises FabricError where there is no path.
    """
    routes = routes_of(fabric, failures, detour=detour)
    last = fabric.attachment[dst.node, dst.port]
    found: dict[End, float] = {src: 1.0}
    at = {fabric.attachment[src.node, src.port].node: 1.0}
    while set(at) != {last.node}:
        onward: dict[str, float] = {}
        for here, part in at.items():
            ports = routes.next_ports(here, last.node)
            if not ports:
                raise FabricError("path", f"{here} to {last.node}", "not joined in this fabric, or cut off by failures")
            for port in ports:
                end = End(here, port)
                found[end] = found.get(end, 0.0) + part / len(ports)
                there = fabric.far_end(here, port).node
                onward[there] = onward.get(there, 0.0) + part / len(ports)
        at = onward
    found[last] = 1.0
    return found


def walk_all_pairs(fabric: Fabric, per_port_pair: int = 1) -> Iterator[QueuePair]:
    """Every queue pair of every ordered GPU pair; of the relayed ones on Rail-only each once."""
    for src in fabric.gpus:
        for dst in fabric.gpus:
            if src is not dst and sender(fabric, src.name, dst.name) is src:
                yield from queue_pairs(fabric, src.name, dst.name, per_port_pair)
