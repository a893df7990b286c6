"""What a set of failed cables and switches does: pairs that lost a port, pairs cut off, bandwidth left per GPU.

No traffic is assumed. A GPU pair has as many lanes as port pairs of the policy; a lane is lost when its path is, by
the rules of `topologies.paths` (no path gets longer unless `detour`). Switches fail independently in
`no_switch_failed`; at 0.03 % each and 16,384 GPUs that gives the row of SIGCOMM'25 section 2 and appendix G
(https://doi.org/10.1145/3718958.3750503): ZCube 93 %, HPN and Rail-only 89 %, ROFT 83 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.fabric import End, Fabric
from topologies.paths import longest_distance, port_pairs, queue_pairs
from topologies.routes import Failures
from topologies.tables import Mask, Tables

#: GPUs whose rows are worked on at once: 16,384 columns of a few bytes each.
_ROWS = 512
#: A distance that no fabric has: not joined.
_FAR = 200


@dataclass(frozen=True)
class GpuLeft:
    """One GPU after the failures. Rates in Gb/s: `nic_gbps` of ports that still work; `mean_gbps` what its lanes to
    an average other GPU can carry, each as fast as its slower port."""

    gpu: str
    nic_gbps: float
    mean_gbps: float


@dataclass(frozen=True)
class Impact:
    """Ordered GPU pairs by what became of their lanes (`intra_server`: NVLink only, on Rail-only)."""

    pairs: int
    whole: int
    lost_port: int
    cut_off: int
    intra_server: int
    gpus: tuple[GpuLeft, ...]
    lanes_per_pair: int


def impact(fabric: Fabric, failures: Failures, *, detour: bool = False) -> Impact:
    """Count over all ordered GPU pairs; N*N work in numpy (16,384 GPUs take some seconds)."""
    n, lanes = len(fabric.gpus), len(port_pairs(fabric))
    tally = np.zeros(lanes + 1, dtype=np.int64)
    within = 0
    rates = np.array([[port.gbps for port in gpu.ports] for gpu in fabric.gpus])
    alive = _ports_alive(fabric, failures)
    mean = np.zeros(n)
    for first, left, inside in lane_rows(fabric, failures, detour=detour):
        total = left.sum(axis=2)
        others = ~inside
        rows = np.arange(len(left))
        others[rows, first + rows] = False
        tally += np.bincount(total[others].ravel(), minlength=lanes + 1)
        within += int(inside.sum())
        lane_gbps = np.array([*(rates[0, a - 1] for a, _ in port_pairs(fabric)), rates[0].min()])
        counted = np.maximum(others.sum(axis=1), 1)
        mean[first : first + len(left)] = ((left @ lane_gbps) * others).sum(axis=1) / counted
    nic = (rates * alive).sum(axis=1)
    gpus = tuple(GpuLeft(gpu.name, float(nic[i]), float(mean[i])) for i, gpu in enumerate(fabric.gpus))
    pairs = n * (n - 1)
    return Impact(
        pairs=pairs,
        whole=int(tally[lanes]),
        lost_port=int(tally[1:lanes].sum()),
        cut_off=int(tally[0]),
        intra_server=within,
        gpus=gpus,
        lanes_per_pair=lanes,
    )


def affected_pairs(fabric: Fabric, failures: Failures, *, detour: bool = False) -> Iterator[tuple[str, str, int]]:
    """(source, destination, lanes left) of every ordered pair that has fewer lanes than port pairs."""
    lanes = len(port_pairs(fabric))
    for first, left, inside in lane_rows(fabric, failures, detour=detour):
        total = left.sum(axis=2)
        for row, column in np.argwhere((total < lanes) & ~inside):
            if first + row != column:
                yield fabric.gpus[first + row].name, fabric.gpus[column].name, int(total[row, column])


def lane_rows(
    fabric: Fabric, failures: Failures, *, detour: bool = False
) -> Iterator[tuple[int, NDArray[np.bool_], NDArray[np.bool_]]]:
    """Blocks of rows of the pair matrix: (index of the first source GPU, [row, destination, lane] has a path,
    [row, destination] is another GPU of the same server that only NVLink joins).

    The last lane is the fallback of pairs that lost all others (`paths.fallback_port_pairs`).
    """
    tables = Tables(fabric, failures, detour=detour)
    near = tables.reach if detour else tables.reach & (Tables(fabric).distance <= longest_distance(fabric))
    own, ports = port_pairs(fabric), range(1, len(fabric.gpus[0].ports) + 1)
    others = [(a, b) for a in ports for b in ports if (a, b) not in own]
    attachment, alive = tables.attachment, _ports_alive(fabric, failures)
    everyone = np.arange(len(fabric.gpus))
    for rows, source, inside in pair_rows(fabric):

        def joined(reach: Mask, a: int, b: int, source: NDArray[np.int64] = source) -> Mask:
            through = reach[attachment[source, a - 1], attachment[everyone, b - 1][None, :]]
            return through & alive[source, a - 1] & alive[everyone, b - 1][None, :]

        left = [joined(tables.reach, a, b) for a, b in own]
        lost = ~np.any(left, axis=0)
        fallback = np.zeros_like(lost)
        if lost.any():
            for a, b in others:
                fallback |= lost & joined(near, a, b)
        yield int(rows[0]), np.stack([*left, fallback], axis=2), inside


def pair_rows(fabric: Fabric, every: int = 1) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], Mask]]:
    """Blocks of rows of the pair matrix, of each `every`-th source GPU: source GPUs, [row, destination] the GPU whose
    NIC sends (`paths.sender`), [row, destination] is another GPU of the same server that only NVLink joins."""
    n, per_server = len(fabric.gpus), fabric.gpus_per_server
    everyone = np.arange(n)
    sources = np.arange(0, n, every)
    for first in range(0, len(sources), _ROWS):
        rows = sources[first : first + _ROWS]
        inside = np.zeros((len(rows), n), dtype=np.bool_)
        source = np.broadcast_to(rows[:, None], (len(rows), n))
        if fabric.kind == "rail_only":  # the GPU of the destination's rank sends
            source = rows[:, None] // per_server * per_server + everyone[None, :] % per_server
            inside = (rows[:, None] // per_server == everyone[None, :] // per_server) & (rows[:, None] != everyone)
        yield rows, source, inside


def fallback_starts(fabric: Fabric, tables: Tables, failures: Failures, *, detour: bool) -> Mask:
    """[from, to] switches of the pairs that turn to another port pair because all their own are cut, and of the
    acknowledgements that come back."""
    found = np.zeros_like(tables.reach)
    lanes = len(port_pairs(fabric))
    for first, left, inside in lane_rows(fabric, failures, detour=detour):
        for row, column in np.argwhere(left[:, :, lanes] & ~inside):
            if first + row == column:
                continue
            src, dst = fabric.gpus[first + row].name, fabric.gpus[column].name
            for qp in queue_pairs(fabric, src, dst, failures=failures, detour=detour):
                here, there = (tables.index[fabric.attachment[end.node, end.port].node] for end in (qp.src, qp.dst))
                found[here, there] = found[there, here] = True
    return found


@dataclass(frozen=True)
class PathLengths:
    """`pairs`: switches crossed -> ordered GPU pairs, by the kind's own port pairs; `shortest_pairs`: over the best
    port pair; `longer`: pairs whose path is longer than that."""

    pairs: dict[int, int]
    shortest_pairs: dict[int, int]
    longer: int

    @property
    def longest_switches(self) -> int:
        """Most switches that a path of the policy crosses."""
        return max(self.pairs, default=0)

    @property
    def average_links(self) -> float:
        """Mean number of cables on the shortest path of a pair, both access cables counted: SIGCOMM'25's APL."""
        total = sum(self.shortest_pairs.values())
        return sum((switches + 1) * count for switches, count in self.shortest_pairs.items()) / total if total else 0.0


def path_lengths(fabric: Fabric, every: int = 1) -> PathLengths:
    """Path lengths of all ordered GPU pairs of the whole fabric, or of those from each `every`-th GPU; a pair's longest
    lane counts for the policy."""
    tables = Tables(fabric)
    attachment = tables.attachment
    distance = np.where(tables.distance < 0, _FAR, tables.distance).astype(np.uint8)
    own, ports = port_pairs(fabric), range(1, attachment.shape[1] + 1)
    everyone = np.arange(len(fabric.gpus))
    by_policy: Counter[int] = Counter()
    shortest: Counter[int] = Counter()
    longer = 0
    for rows, source, inside in pair_rows(fabric, every):
        others = ~inside & (rows[:, None] != everyone)

        def cables(a: int, b: int, source: NDArray[np.int64] = source) -> NDArray[np.uint8]:
            found: NDArray[np.uint8] = distance[attachment[source, a - 1], attachment[everyone, b - 1][None, :]]
            return found

        lanes = np.max([cables(a, b) for a, b in own], axis=0)
        best = np.min([cables(a, b) for a in ports for b in ports], axis=0)
        longer += int((lanes > best)[others].sum())
        for tally, lengths in ((by_policy, lanes), (shortest, best)):
            counts = np.bincount(lengths[others], minlength=1)
            tally.update({value + 1: int(count) for value, count in enumerate(counts) if count})
    return PathLengths(dict(by_policy), dict(shortest), longer)


def no_switch_failed(fabric: Fabric, probability: float) -> float:
    """Probability that every switch works when each fails independently: (1 - p)^S."""
    return float((1.0 - probability) ** len(fabric.switches))


def _ports_alive(fabric: Fabric, failures: Failures) -> NDArray[np.bool_]:
    """[GPU, port]: its cable and its switch work."""
    return np.array(
        [
            [
                fabric.link_at[gpu.name, port.number].id not in failures.links
                and fabric.attachment[gpu.name, port.number].node not in failures.switches
                for port in gpu.ports
            ]
            for gpu in fabric.gpus
        ]
    )


def gpu_ports_on(fabric: Fabric, switch: str) -> tuple[End, ...]:
    """GPU ports that are plugged into a switch."""
    return tuple(End(*plug) for plug, end in fabric.attachment.items() if end.node == switch)
