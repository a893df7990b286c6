"""A fabric with the GPUs as fixed points, and the search for a renaming of switches that makes two of them equal.

GPUs keep their numbers, so only switches can be renamed. Parallel links count as one of the summed rate.

The search is colour refinement with individualisation (as in McKay and Piperno, "Practical graph isomorphism II",
Journal of Symbolic Computation 60, 2014, section 2): switches start with the GPUs that hang on them as their colour,
and neighbours split colours until nothing changes. Switches that are still alike and have the very same neighbours
(the spines of a Clos) are interchangeable and are paired as they come; else one is picked, and each of its
counterparts tried. networkx's VF2 finds the same (the tests compare them) but takes minutes for 16,384 GPUs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from topologies.fabric import Fabric
from topologies.simai_file import SimaiTopology

#: Guesses after which the search gives up. A fabric of ours needs at most a few dozen.
MOST_GUESSES = 500

Rates = dict[int, float]
Node = TypeVar("Node", bound=Hashable)


@dataclass(frozen=True)
class SwitchGraph:
    """Switches 0.. with Gb/s per direction towards each GPU (by number, from 1) and towards each other switch."""

    gpus: int
    names: tuple[str, ...]
    access: tuple[Rates, ...]
    between: tuple[Rates, ...]
    others: int = 0  # links that join neither a GPU with a switch nor two switches

    @cached_property
    def switches_of_gpu(self) -> Mapping[int, tuple[int, ...]]:
        """GPU number -> its switches, ascending; GPUs without one are left out."""
        found: dict[int, list[int]] = {}
        for switch, rates in enumerate(self.access):
            for gpu in rates:
                found.setdefault(gpu, []).append(switch)
        return {gpu: tuple(found[gpu]) for gpu in sorted(found)}


class Undecided(RuntimeError):
    """The search gave up: more guesses than MOST_GUESSES."""


def graph_of_fabric(fabric: Fabric) -> SwitchGraph:
    """Ours."""
    number = {switch.name: i for i, switch in enumerate(fabric.switches)}
    gpus = {gpu.name: gpu.number for gpu in fabric.gpus}
    links = ((link.a.node, link.b.node, link.gbps) for link in fabric.links)
    return _graph(len(gpus), tuple(number), gpus, number, links)


def graph_of_file(topology: SimaiTopology) -> SwitchGraph:
    """A file's, without its NVSwitches; GPUs are numbered in the order of their ids, switches named by theirs."""
    number = {node: i for i, node in enumerate(topology.switches)}
    gpus = {node: i for i, node in enumerate(topology.gpus, 1)}
    inside = set(topology.nvswitches)
    links = (
        (link.source, link.destination, link.gbps)
        for link in topology.links
        if not (link.source in inside and link.destination in gpus)
        and not (link.destination in inside and link.source in gpus)
    )
    return _graph(len(gpus), tuple(f"node {node}" for node in number), gpus, number, links)


def _graph(
    gpu_count: int,
    names: tuple[str, ...],
    gpus: Mapping[Node, int],
    switches: Mapping[Node, int],
    links: Iterable[tuple[Node, Node, float]],
) -> SwitchGraph:
    access: list[Rates] = [{} for _ in names]
    between: list[Rates] = [{} for _ in names]
    others = 0
    for a, b, gbps in links:
        if a in switches and b in switches:
            for here, there in ((switches[a], switches[b]), (switches[b], switches[a])):
                between[here][there] = between[here].get(there, 0.0) + gbps
        elif a in gpus and b in switches:
            access[switches[b]][gpus[a]] = access[switches[b]].get(gpus[a], 0.0) + gbps
        elif b in gpus and a in switches:
            access[switches[a]][gpus[b]] = access[switches[a]].get(gpus[b], 0.0) + gbps
        else:
            others += 1
    return SwitchGraph(gpu_count, names, _rounded(access), _rounded(between), others)


def _rounded(part: Sequence[Rates]) -> tuple[Rates, ...]:
    """To a kilobit per second: sums of rates must compare equal whatever their order."""
    return tuple({key: round(rate, 6) for key, rate in rates.items()} for rates in part)


Colours = tuple[list[int], list[int]]


def renaming(ours: SwitchGraph, theirs: SwitchGraph) -> list[int] | None:
    """For each switch of ours its counterpart in theirs, such that all links agree; None when there is none.

    Raises Undecided.
    """
    if (ours.gpus, len(ours.names), ours.others, theirs.others) != (theirs.gpus, len(theirs.names), 0, 0):
        return None
    start = _renumbered(
        [
            [tuple(sorted(rates.items())) for rates in ours.access],
            [tuple(sorted(rates.items())) for rates in theirs.access],
        ]
    )
    return _search((ours, theirs), start, [MOST_GUESSES])


def _search(graphs: tuple[SwitchGraph, SwitchGraph], start: Colours, guesses: list[int]) -> list[int] | None:
    colours = _refined(graphs, start)
    if colours is None:
        return None
    colours = _twins_paired(graphs, colours)
    cells = _cells(colours[0])
    open_cells = [(len(members), colour) for colour, members in cells.items() if len(members) > 1]
    if not open_cells:
        place = {colour: switch for switch, colour in enumerate(colours[1])}
        found = [place[colour] for colour in colours[0]]
        return found if _equal(graphs, found) else None
    _, colour = min(open_cells)
    fresh = max(colours[0]) + 1
    pick = cells[colour][0]
    for candidate in _cells(colours[1])[colour]:
        guesses[0] -= 1
        if guesses[0] < 0:
            raise Undecided
        trial = (list(colours[0]), list(colours[1]))
        trial[0][pick] = trial[1][candidate] = fresh
        if (answer := _search(graphs, trial, guesses)) is not None:
            return answer
    return None


def _refined(graphs: tuple[SwitchGraph, SwitchGraph], colours: Colours) -> Colours | None:
    """Colours split by the colours and rates of neighbours until nothing changes; None when the two differ."""
    count = len(set(colours[0]))
    while True:
        if sorted(colours[0]) != sorted(colours[1]):
            return None
        signatures = [
            [
                (own[i], tuple(sorted((own[there], rate) for there, rate in rates.items())))
                for i, rates in enumerate(graph.between)
            ]
            for graph, own in zip(graphs, colours, strict=True)
        ]
        colours = _renumbered(signatures)
        if (now := len(set(colours[0]))) == count:
            return colours if sorted(colours[0]) == sorted(colours[1]) else None
        count = now


def _renumbered(signatures: Sequence[Sequence[Hashable]]) -> Colours:
    """Small numbers for signatures, the same for both graphs."""
    number: dict[Hashable, int] = {}
    both = [[number.setdefault(signature, len(number)) for signature in part] for part in signatures]
    return both[0], both[1]


def _twins_paired(graphs: tuple[SwitchGraph, SwitchGraph], colours: Colours) -> Colours:
    """A colour of each own for switches that are alike in everything: which is which makes no difference."""
    ours, theirs = _cells(colours[0]), _cells(colours[1])
    result = (list(colours[0]), list(colours[1]))
    fresh = max(colours[0], default=0) + 1
    for colour, members in ours.items():
        if len(members) > 1 and all(
            graph.between[switch] == graph.between[part[0]]
            for graph, part in zip(graphs, (members, theirs[colour]), strict=True)
            for switch in part
        ):
            for a, b in zip(members, theirs[colour], strict=True):
                result[0][a] = result[1][b] = fresh
                fresh += 1
    return result


def _cells(colours: Sequence[int]) -> dict[int, list[int]]:
    cells: dict[int, list[int]] = {}
    for switch, colour in enumerate(colours):
        cells.setdefault(colour, []).append(switch)
    return cells


def _equal(graphs: tuple[SwitchGraph, SwitchGraph], mapping: Sequence[int]) -> bool:
    """Whether the renaming makes them equal, link by link."""
    ours, theirs = graphs
    return all(
        ours.access[i] == theirs.access[j]
        and {mapping[there]: rate for there, rate in ours.between[i].items()} == theirs.between[j]
        for i, j in enumerate(mapping)
    )
