"""The pairs of GPUs that a fabric's plan puts most densely on one cable: an adversary's choice of traffic.

Each GPU sends once and receives once at most, as in a permutation, so no NIC is asked for more than it has: what is
slow is the fabric. For every direction of a cable between switches, the GPU pairs whose planned path crosses it are the
edges of a bipartite graph (senders, receivers); a maximum matching in it (augmenting paths: Kuhn, Naval Research
Logistics Quarterly 2, 1955) is the largest such set. The cable with the most per Gb/s is the worst. On ZCube this
finds the G:1 case; under ECMP the seed's unlucky hashes.
"""

from __future__ import annotations

from topologies.collisions import Pair
from topologies.fabric import End, Fabric, FabricError
from topologies.routing import Routing

#: All pairs are looked at: 512 GPUs are 262,000.
MOST_GPUS = 512


def most_on_one_cable(fabric: Fabric, routing: Routing) -> list[Pair]:
    """The pairs, by sender. Raises FabricError for a policy without planned paths, and for a fabric too large."""
    if not routing.planned:
        raise FabricError("policy", routing.policy, "is hashed by the switch itself: its worst case is not known")
    if len(fabric.gpus) > MOST_GPUS:
        raise FabricError("gpus", len(fabric.gpus), f"the worst case is sought among at most {MOST_GPUS} GPUs")
    crossing: dict[End, dict[str, list[str]]] = {}
    for src in fabric.gpus:
        for dst in fabric.gpus:
            if src.server != dst.server:
                for end in _between_switches(fabric, routing, src.name, dst.name):
                    crossing.setdefault(end, {}).setdefault(src.name, []).append(dst.name)
    if not crossing:
        raise FabricError("kind", fabric.kind, "no path crosses a cable between switches: nothing can collide")
    best: list[Pair] = []
    best_density = 0.0
    # Sorting keeps ties in the order of GPUs and paths: the same set in every process.
    for end, edges in sorted(crossing.items(), key=lambda item: -_bound(fabric, *item)):
        if _bound(fabric, end, edges) <= best_density:
            break
        matched = matching(edges)
        density = len(matched) / fabric.port(end.node, end.port).gbps
        if density > best_density:
            best, best_density = matched, density
    return sorted(best, key=lambda pair: int(pair[0][3:]))


def matching(edges: dict[str, list[str]]) -> list[Pair]:
    """A maximum matching of left nodes to right ones."""
    left_of: dict[str, str] = {}

    def place(left: str, seen: set[str]) -> bool:
        for right in edges[left]:
            if right not in seen:
                seen.add(right)
                if right not in left_of or place(left_of[right], seen):
                    left_of[right] = left
                    return True
        return False

    for left in edges:
        place(left, set())
    return [(left, right) for right, left in left_of.items()]


def _bound(fabric: Fabric, end: End, edges: dict[str, list[str]]) -> float:
    """No matching is denser than this: flows a Gb/s."""
    receivers = {dst for found in edges.values() for dst in found}
    return min(len(edges), len(receivers)) / fabric.port(end.node, end.port).gbps


def _between_switches(fabric: Fabric, routing: Routing, src: str, dst: str) -> list[End]:
    ends = dict.fromkeys(end for qp in routing.queue_pairs(fabric, src, dst) for end in routing.path(fabric, qp).egress)
    return [end for end in ends if fabric.link_at[end.node, end.port].tier != "access"]
