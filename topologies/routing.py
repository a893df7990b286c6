"""What decides the queue pairs of a handoff and their paths: rules, emulation, simulation and reference all ask here.

`spray` gives each packet a new path. TCP connections cannot do that: TCP would take the reordering for loss. So a port
pair has one connection for each of its equal paths, and a handoff leaves frame by frame over whichever drains: what
adaptive per-packet routing does to the load on links. With UDP there is one queue pair, and each packet takes the next
of its source ports. Either way the source ports are planned: they are chosen so that the seeded hash of `ecmp` puts
each on a path of its own, and each is a `QueuePair` here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from topologies.fabric import Fabric, FabricError
from topologies.paths import (
    TCP,
    Path,
    QueuePair,
    check_policy,
    five_tuple,
    flow_path,
    path,
    queue_pairs,
    routes_of,
)
from topologies.routes import NONE, Failures

#: Most connections of a sprayed port pair. Where there are more equal paths, the first so many that the hash gives.
MAX_SPRAY_PATHS = 64
#: Queue pair indices that are tried for each path not yet found. A hash leaves one of 64 paths out with 1e-7.
_TRIES_PER_PATH = 1024


@dataclass(frozen=True)
class Routing:
    """`policy` None is the kind's own (`topologies.paths`); `per_port_pair` counts queue pairs; `seed` is that of the
    hash; with `detour` a pair that failures cut off takes any way that is left, however long; `protocol` is in the
    hash too."""

    policy: str | None = None
    per_port_pair: int = 1
    seed: int = 0
    detour: bool = False
    protocol: int = TCP

    def check(self, fabric: Fabric) -> str:
        """The policy. Raises FabricError for one that the fabric does not have."""
        return check_policy(fabric, self.policy)

    @property
    def planned(self) -> bool:
        """Whether paths are known before a flow starts: under `ecmp_ovs` the switches' own hash picks them."""
        return self.policy != "ecmp_ovs"

    def queue_pairs(
        self, fabric: Fabric, src_gpu: str, dst_gpu: str, failures: Failures = NONE
    ) -> tuple[QueuePair, ...]:
        """Queue pairs of a GPU pair, those that still have a path. Raises FabricError for an unknown policy."""
        each = 1 if self.policy == "spray" else self.per_port_pair
        found = queue_pairs(fabric, src_gpu, dst_gpu, each, policy=self.policy, failures=failures, detour=self.detour)
        return tuple(self._sprayed(fabric, found)) if self.policy == "spray" else found

    def path(self, fabric: Fabric, qp: QueuePair, failures: Failures = NONE) -> Path:
        """The planned path; under `ecmp_ovs` one that a hash could pick. Raises FabricError where there is none."""
        return path(fabric, qp, self.seed, self.protocol, failures=failures, detour=self.detour)

    def _sprayed(self, fabric: Fabric, firsts: Iterable[QueuePair]) -> Iterator[QueuePair]:
        for first in firsts:
            key = ("sprayed", self.seed, self.protocol, first)
            found = fabric.memo.get(key)
            if found is None:
                found = fabric.memo[key] = tuple(self._one_a_path(fabric, first))
            assert isinstance(found, tuple)
            yield from found

    def _one_a_path(self, fabric: Fabric, first: QueuePair) -> Iterator[QueuePair]:
        try:
            wanted = min(count_paths(fabric, first), MAX_SPRAY_PATHS)
        except FabricError:  # a way that only failures open
            yield first
            return
        seen: set[tuple[str, ...]] = set()
        for index in range(wanted * _TRIES_PER_PATH):
            if len(seen) == wanted:
                return
            qp = replace(first, index=index)
            links = flow_path(fabric, qp.src, qp.dst, five_tuple(fabric, qp, self.protocol), self.seed).links
            if links not in seen:
                seen.add(links)
                yield qp


def count_paths(fabric: Fabric, qp: QueuePair) -> int:
    """Paths on which a hash can put a queue pair: 1 where every hop has one next hop, or picks it by destination.

    Raises FabricError where there is none.
    """
    _ = path(fabric, qp)
    if fabric.kind == "zcube" and fabric.bundle == "destination":
        return 1
    routes = routes_of(fabric)
    last = fabric.attachment[qp.dst.node, qp.dst.port].node

    @cache
    def ways(here: str) -> int:
        if here == last:
            return 1
        return sum(ways(fabric.far_end(here, port).node) for port in routes.next_ports(here, last))

    return ways(fabric.attachment[qp.src.node, qp.src.port].node)
