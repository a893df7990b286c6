"""A fabric for htsim (github.com/Broadcom/csg-htsim): connection matrix, fat-tree file, generic topology.

* `.cm` (connection_matrix.cpp): `Nodes N`, `Connections C`, then `SRC->DST id I start PICOSECONDS size BYTES`. An
  htsim host has one NIC, so a node here is a NIC port; flow ids start at 1; a size must fit a C int. Comments are
  read in the head only.
* `.topo` (fat_tree_topology.cpp) says a fat tree in numbers: `htsim_shape.fat_tree` tells whether a fabric is one.
  Clos, fat tree and ROFT are (a ROFT with its GPUs numbered leaf by leaf); ZCube and HPN are not.
* `.generic` (generic_topology.cpp) lists hosts, switches, and an egress queue and a pipe for each direction of each
  cable, so it holds any fabric. csg-htsim has the loader but no program that uses it: it finds no paths, and its
  look-ups are linear. It reads lines of at most 254 characters, so switches of more ports than fit name none (each
  queue and pipe still names both of its ends).

Nodes are numbered GPU by GPU and port by port, or leaf by leaf where there is a `.topo`, which does so.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from topologies.fabric import End, Fabric, FabricError
from topologies.htsim_shape import FatTree, NotAFatTree, fat_tree
from topologies.paths import port_pairs, sender

PATTERNS = ("permutation", "split", "all_to_all")
#: Larger matrices are not written: htsim makes an object of each connection before it starts.
MOST_CONNECTIONS = 1_000_000
#: `size` and `Nodes` are C ints.
LARGEST_INT = 2**31 - 1
#: Longest line that the generic loader reads whole.
LONGEST_LINE = 254
#: Ports that htsim's asserts allow a switch of the first tier, and of the others.
TOPO_PORTS = (96, 64)


@dataclass(frozen=True)
class HtsimSettings:
    """What the graph does not say. `flow_bytes` is one GPU's message to another, over all of its ports."""

    pattern: str = "permutation"
    flow_bytes: int = 2_000_000
    seed: int = 1
    link_latency_us: float = 0.5
    switch_latency_us: float = 0.0
    queue_bytes: int = 1_000_000

    def __post_init__(self) -> None:
        """Raises FabricError for what the formats cannot hold."""
        if self.pattern not in PATTERNS:
            raise FabricError("pattern", self.pattern, f"must be one of {', '.join(PATTERNS)}")
        for name in ("flow_bytes", "queue_bytes"):
            if not 0 < getattr(self, name) <= LARGEST_INT:
                raise FabricError(name, getattr(self, name), f"must be 1 to {LARGEST_INT} (a C int in htsim)")
        if not 0.001 <= self.link_latency_us <= 1e6:
            raise FabricError("link_latency_us", self.link_latency_us, "must be 0.001 (1 ns) to 1e6")
        if not 0 <= self.switch_latency_us <= 1e6:
            raise FabricError("switch_latency_us", self.switch_latency_us, "must be 0 to 1e6")


def node_order(fabric: Fabric) -> tuple[End, ...]:
    """NIC ports in the order of htsim's node numbers (from 0)."""
    try:
        return tuple(End(name, 1) for name in fat_tree(fabric).hosts)
    except NotAFatTree:
        return tuple(End(gpu.name, port.number) for gpu in fabric.gpus for port in gpu.ports)


def gpu_flows(fabric: Fabric, pattern: str, seed: int) -> Iterator[tuple[str, str]]:
    """(source, destination) GPUs: `permutation` gives each GPU one partner, drawn so that none is its own; `split`
    sends from GPU i of the first half to GPU i of the second; `all_to_all` is every ordered pair."""
    names = [gpu.name for gpu in fabric.gpus]
    if pattern == "all_to_all":
        yield from ((a, b) for a in names for b in names if a != b)
    elif pattern == "split":
        half = len(names) // 2
        yield from zip(names[:half], names[half : 2 * half], strict=True)
    else:
        ring = names.copy()  # one cycle through all GPUs (Sattolo): nobody is his own partner
        draw = random.Random(seed)
        for last in range(len(ring) - 1, 0, -1):
            other = draw.randrange(last)
            ring[last], ring[other] = ring[other], ring[last]
        yield from ((a, b) for a, b in zip(names, ring, strict=True) if a != b)


def connection_matrix(fabric: Fabric, settings: HtsimSettings | None = None) -> str:
    """The .cm file; a GPU's message is divided evenly over the port pairs that a handoff uses.

    On Rail-only it enters the network at the GPU of the source's server that has the destination's rail, and a
    message within a server is not a connection (`paths.sender`). Raises FabricError.
    """
    settings = settings or HtsimSettings()
    number_of = {end: number for number, end in enumerate(node_order(fabric))}
    pairs = port_pairs(fabric)
    gpus = len(fabric.gpus)
    count = len(pairs) * {"all_to_all": gpus * (gpus - 1), "split": gpus // 2, "permutation": gpus}[settings.pattern]
    if count > MOST_CONNECTIONS:
        raise FabricError("pattern", settings.pattern, f"makes {count:,} connections; at most {MOST_CONNECTIONS:,}")
    if settings.flow_bytes < len(pairs):
        raise FabricError("flow_bytes", settings.flow_bytes, f"must be at least {len(pairs)}, one a port pair")
    sizes = _shares(settings.flow_bytes, len(pairs))
    flows = [
        (number_of[End(source.name, a)], number_of[End(dst, b)], size)
        for src, dst in gpu_flows(fabric, settings.pattern, settings.seed)
        if (source := sender(fabric, src, dst)) is not None
        for (a, b), size in zip(pairs, sizes, strict=True)
    ]
    head = [f"Nodes {len(number_of)}", f"Connections {len(flows)}"]
    body = [f"{src}->{dst} id {i} start 0 size {size}" for i, (src, dst, size) in enumerate(flows, 1)]
    return "\n".join(head + body) + "\n"


def fat_tree_topo(tree: FatTree, settings: HtsimSettings | None = None) -> str:
    """The .topo file of a fabric that is a fat tree."""
    settings = settings or HtsimSettings()
    lines = [f"Nodes {len(tree.hosts)}", f"Tiers {len(tree.tiers)}", f"Podsize {tree.pod_hosts}"]
    for level, tier in enumerate(tree.tiers):
        lines += ["", f"Tier {level}", f"Downlink_speed_Gbps {tree.gbps}", f"Radix_Down {tier.radix_down}"]
        if tier.radix_up:
            lines += [f"Radix_Up {tier.radix_up}", f"Oversubscribed {tier.radix_down // tier.radix_up}"]
        lines += [f"Bundle {tier.bundle}"] if level else []
        lines += [
            f"Downlink_Latency_ns {round(settings.link_latency_us * 1000)}",
            f"Switch_Latency_ns {round(settings.switch_latency_us * 1000)}",
        ]
    return "\n".join(lines) + "\n"


def too_many_ports(tree: FatTree) -> str | None:
    """What in htsim's source stops a tree of so many ports a switch, or None."""
    for level, tier in enumerate(tree.tiers):
        limit = TOPO_PORTS[min(level, 1)]
        if tier.radix_down + tier.radix_up > limit:
            ports = tier.radix_down + tier.radix_up
            return f"tier {level} has {ports} ports a switch: raise htsim's assert of {limit} in init_network"
    return None


def generic_topology(fabric: Fabric, settings: HtsimSettings | None = None) -> str:
    """The generic topology file: hosts h0.., switches by name, queue qN and pipe pN for each direction of a cable."""
    settings = settings or HtsimSettings()
    hosts = {(end.node, end.port): f"h{number}" for number, end in enumerate(node_order(fabric))}
    egress: dict[str, list[str]] = {}
    wires: list[str] = []
    for link in fabric.links:
        for here, there in ((link.a, link.b), (link.b, link.a)):
            source = hosts.get((here.node, here.port), here.node)
            target = hosts.get((there.node, there.port), there.node)
            name = len(wires) // 2
            egress.setdefault(source, []).append(f"q{name}")
            wires.append(
                f"Queue q{name}, type composite, speed {link.gbps:.9g} Gbps, size {settings.queue_bytes}, dst p{name}"
            )
            wires.append(f"Pipe p{name}, latency {settings.link_latency_us:g} us, src {source}, dst {target}")
    names = [switch.name for switch in fabric.switches]
    full = [_owner("Switch", name, egress.get(name, ())) for name in names]
    if max(map(len, full)) > LONGEST_LINE:
        full = [_owner("Switch", name, ()) for name in names]
    lines = [f"Hosts {len(hosts)}", f"Switches {len(names)}", f"Links {len(fabric.links)}"]
    lines += [_owner("Host", host, egress[host]) for host in hosts.values()]
    return "\n".join(lines + full + wires) + "\n"


def nodes_table(fabric: Fabric) -> str:
    """Comma-separated: which GPU port each htsim node is."""
    ends = node_order(fabric)
    rows = [f"{number},{end.node},{end.port},{fabric.port(end.node, end.port).ip}" for number, end in enumerate(ends)]
    return "\n".join(["node,gpu,port,ip", *rows]) + "\n"


def _owner(word: str, name: str, queues: Sequence[str]) -> str:
    """A host or switch line; the loader wants a comma after the name, so one without queues gets a position."""
    return f"{word} {name}, " + (", ".join(f"queue {queue}" for queue in queues) or "pos 0 0")


def _shares(total: int, parts: int) -> list[int]:
    """`total` in `parts` whole numbers that differ by one at most."""
    return [total // parts + (part < total % parts) for part in range(parts)]
