"""How a topology file differs from a fabric of ours, up to the names of its switches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from topologies.fabric import Fabric
from topologies.simai_file import SimaiTopology
from topologies.switch_graph import SwitchGraph, Undecided, graph_of_fabric, graph_of_file, renaming
from topologies.switch_matching import best_matching


@dataclass(frozen=True)
class Count:
    """One number of ours beside the file's."""

    what: str
    fabric: int
    file: int


@dataclass(frozen=True)
class TierDegrees:
    """What switches of one tier have, ours and those matched with them: counts and Gb/s as `low` or `low-high`."""

    tier: str
    fabric_switches: int
    file_switches: int
    fabric_gpus: str
    file_gpus: str
    fabric_gpu_gbps: str
    file_gpu_gbps: str
    fabric_switch_gbps: str
    file_switch_gbps: str


@dataclass(frozen=True)
class LinkDifference:
    """A pair of nodes whose bandwidth differs; a file's switch without a counterpart goes by its number there."""

    a: str
    b: str
    fabric_gbps: float
    file_gbps: float


@dataclass(frozen=True)
class Comparison:
    """The whole report. `equal` means that a renaming of switches makes them the same; `findings` say in words what
    is different, the likely cause first; `notes` are no differences."""

    equal: bool
    counts: tuple[Count, ...]
    tiers: tuple[TierDegrees, ...]
    missing: tuple[LinkDifference, ...]
    extra: tuple[LinkDifference, ...]
    findings: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {"schema_version": 1, **asdict(self)}


def compare(fabric: Fabric, topology: SimaiTopology) -> Comparison:
    """Compare a file with a fabric. GPU n of ours is the file's n-th GPU."""
    ours, theirs = graph_of_fabric(fabric), graph_of_file(topology)
    undecided = False
    try:
        exact = renaming(ours, theirs)
    except Undecided:
        exact, undecided = None, True
    matching = dict(enumerate(exact)) if exact is not None else best_matching(ours, theirs)
    differences = [] if exact is not None else list(_differences(ours, theirs, matching))
    servers = list(_server_findings(fabric, topology))
    findings = [*_port_findings(fabric, theirs), *_cell_findings(ours, theirs), *servers]
    missing = tuple(found for found in differences if found.fabric_gbps > found.file_gbps)
    extra = tuple(found for found in differences if found.file_gbps > found.fabric_gbps)
    if exact is None and not findings and not undecided:
        findings.append("no renaming of the switches makes the links the same")
    if theirs.others:
        findings.append(f"{theirs.others} links of the file join neither a GPU with a switch nor two switches")
    if undecided and not differences:
        findings.append("the search for a renaming gave up without an answer")
    return Comparison(
        equal=exact is not None and not servers,
        counts=tuple(_counts(fabric, topology, ours, theirs)),
        tiers=tuple(_tiers(fabric, ours, theirs, matching)),
        missing=missing,
        extra=extra,
        findings=tuple(findings),
        notes=tuple(_notes(fabric, topology)),
    )


def _counts(fabric: Fabric, topology: SimaiTopology, ours: SwitchGraph, theirs: SwitchGraph) -> Iterator[Count]:
    servers = len({gpu.server for gpu in fabric.gpus})
    yield Count("GPUs", ours.gpus, theirs.gpus)
    yield Count("switches", len(ours.names), len(theirs.names))
    yield Count("NVSwitches (servers)", servers, len(topology.nvswitches))
    yield Count("GPU-switch pairs joined", sum(map(len, ours.access)), sum(map(len, theirs.access)))
    yield Count("switch-switch pairs joined", sum(map(len, ours.between)) // 2, sum(map(len, theirs.between)) // 2)
    for size, number in sorted(_cells(ours).items()):
        yield Count(f"sets of switches shared by {size} GPUs", number, _cells(theirs).get(size, 0))
    for size, number in sorted(_cells(theirs).items()):
        if size not in _cells(ours):
            yield Count(f"sets of switches shared by {size} GPUs", 0, number)


def _cells(graph: SwitchGraph) -> Counter[int]:
    """How many sets of switches have exactly so many GPUs on all of their switches (ZCube's cells)."""
    return Counter(Counter(graph.switches_of_gpu.values()).values())


def _port_findings(fabric: Fabric, theirs: SwitchGraph) -> Iterator[str]:
    """GPUs with another number of links than their ports."""
    wanted = {gpu.number: len(gpu.ports) for gpu in fabric.gpus}
    wrong = [
        gpu
        for gpu in range(1, theirs.gpus + 1)
        if gpu in wanted and len(theirs.switches_of_gpu.get(gpu, ())) != wanted[gpu]
    ]
    if wrong:
        has = len(theirs.switches_of_gpu.get(wrong[0], ()))
        yield (
            f"{len(wrong)} GPUs reach another number of switches than they have ports "
            f"(GPU {wrong[0]}: {has} instead of {wanted[wrong[0]]})"
        )


def _cell_findings(ours: SwitchGraph, theirs: SwitchGraph) -> Iterator[str]:
    """GPUs with several ports: whether the groupings of the ports cross each other as they should."""
    mine, found = _cells(ours), _cells(theirs)
    if mine == found or all(len(switches) < 2 for switches in theirs.switches_of_gpu.values()):
        return

    def said(cells: Counter[int]) -> str:
        return ", ".join(f"{number} with {size} GPUs" for size, number in sorted(cells.items()))

    text = f"cells (sets of switches that share GPUs): {said(mine)} in the fabric, {said(found)} in the file"
    if _same_index(theirs) and not _same_index(ours):
        text += (
            "; all switches of a GPU hold the same GPUs: every port follows the same running index, "
            "so the groups are not complementary (each odd-even cell of a ZCube holds N/G^2 GPUs)"
        )
    yield text


def _same_index(graph: SwitchGraph) -> bool:
    """Whether the ports of every GPU lead to switches with one and the same set of GPUs."""
    members = [frozenset(rates) for rates in graph.access]
    return all(
        len(switches) > 1 and len({members[switch] for switch in switches}) == 1
        for switches in graph.switches_of_gpu.values()
    )


def _server_findings(fabric: Fabric, topology: SimaiTopology) -> Iterator[str]:
    """NVSwitches join the GPUs of a server and no others; a file without NVSwitches says nothing about servers."""
    if not topology.nvswitches:
        return
    number = {node: i for i, node in enumerate(topology.gpus, 1)}
    joined: dict[int, set[int]] = {node: set() for node in topology.nvswitches}
    for link in topology.links:
        for here, there in ((link.source, link.destination), (link.destination, link.source)):
            if here in joined and there in number:
                joined[here].add(number[there])
    servers: dict[str, set[int]] = {}
    for gpu in fabric.gpus:
        servers.setdefault(gpu.server, set()).add(gpu.number)
    wanted = {frozenset(members) for members in servers.values()}
    wrong = [members for members in joined.values() if frozenset(members) not in wanted]
    if wrong or len({frozenset(members) for members in joined.values()}) != len(wanted):
        shown = _range(sorted(wrong[0])) if wrong else "fewer servers"
        yield f"NVSwitches do not join the fabric's servers: {len(wrong)} join other GPUs ({shown})"


def _range(numbers: Sequence[int]) -> str:
    if not numbers:
        return "none"
    return f"GPUs {', '.join(map(str, numbers[:8]))}" + (", ..." if len(numbers) > 8 else "")


def _notes(fabric: Fabric, topology: SimaiTopology) -> Iterator[str]:
    """What differs in form only."""
    inside = set(topology.nvswitches)
    links = [link for link in topology.links if link.source not in inside and link.destination not in inside]
    if len(links) != len(fabric.links):
        yield (
            f"{len(links)} network links in the file, {len(fabric.links)} cables in the fabric: "
            "parallel ones are compared by their summed rate"
        )
    if not topology.nvswitches:
        yield "the file has no NVSwitches, so servers are not compared"
    first = sum(gpu.server == fabric.gpus[0].server for gpu in fabric.gpus)
    if topology.gpus_per_server != first:
        yield f"{topology.gpus_per_server} GPUs a server in the file's first line, {first} in the fabric"


def _differences(ours: SwitchGraph, theirs: SwitchGraph, matching: Mapping[int, int]) -> Iterator[LinkDifference]:
    """Pairs of nodes with another bandwidth, under the matching."""
    back = {there: here for here, there in matching.items()}

    def name(switch: int) -> str:
        return ours.names[back[switch]] if switch in back else f"{theirs.names[switch]} (file)"

    for kind in ("access", "between"):
        mine: dict[tuple[str, str], float] = {}
        found: dict[tuple[str, str], float] = {}
        for i, rates in enumerate(getattr(ours, kind)):
            for far, rate in rates.items():
                mine[_pair(ours.names[i], f"gpu{far}" if kind == "access" else ours.names[far])] = rate
        for j, rates in enumerate(getattr(theirs, kind)):
            for far, rate in rates.items():
                found[_pair(name(j), f"gpu{far}" if kind == "access" else name(far))] = rate
        for pair in dict.fromkeys((*mine, *found)):
            here, there = mine.get(pair, 0.0), found.get(pair, 0.0)
            if here != there:
                yield LinkDifference(*pair, here, there)


def _pair(a: str, b: str) -> tuple[str, str]:
    return (b, a) if b.startswith("gpu") or b < a else (a, b)


def _tiers(
    fabric: Fabric, ours: SwitchGraph, theirs: SwitchGraph, matching: Mapping[int, int]
) -> Iterator[TierDegrees]:
    for tier in dict.fromkeys(switch.tier for switch in fabric.switches):
        mine = [i for i, switch in enumerate(fabric.switches) if switch.tier == tier]
        found = [matching[i] for i in mine if i in matching]
        yield TierDegrees(
            tier,
            len(mine),
            len(found),
            *(_span(len(graph.access[i]) for i in part) for graph, part in ((ours, mine), (theirs, found))),
            *(_span(sum(graph.access[i].values()) for i in part) for graph, part in ((ours, mine), (theirs, found))),
            *(_span(sum(graph.between[i].values()) for i in part) for graph, part in ((ours, mine), (theirs, found))),
        )
    if extra := sorted(set(range(len(theirs.names))) - set(matching.values())):
        yield TierDegrees(
            "(no counterpart)",
            0,
            len(extra),
            "-",
            _span(len(theirs.access[i]) for i in extra),
            "-",
            _span(sum(theirs.access[i].values()) for i in extra),
            "-",
            _span(sum(theirs.between[i].values()) for i in extra),
        )


def _span(values: Iterator[float]) -> str:
    found = sorted(set(values))
    if not found:
        return "-"
    return f"{found[0]:g}" if len(found) == 1 else f"{found[0]:g}-{found[-1]:g}"
