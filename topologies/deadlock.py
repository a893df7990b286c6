"""Whether a policy's paths can deadlock a lossless network: cycles in its channel-dependency graph.

A channel is the buffer at the far end of a cable, in one direction; channel u->v depends on v->w when some packet
holds the first while it waits for the second. Routing is free of deadlock if the graph has no cycle (Dally & Seitz,
IEEE Trans. Computers C-36(5), 1987, https://doi.org/10.1109/TC.1987.1676939); with one class of buffers a cycle
means that a deadlock is possible, not that it is likely. With PFC the channels are those of one priority.

Parallel cables of a pair are one channel here: it can only add dependencies, so "no cycle" is exact, and a cycle
found is one between switches that the hash may or may not place on the same members. Channels from and to GPUs have
no dependency before or after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from topologies.fabric import Fabric, FabricError
from topologies.impact import fallback_starts
from topologies.routes import NONE, Failures
from topologies.tables import Mask, Tables

#: Policies of the path function, and two families of paths that people ask about.
FAMILIES = ("unique", "shortest", "ecmp", "spray", "any_port", "detour")


@dataclass(frozen=True)
class Dependencies:
    """`cycle`: switches in order, the first again at the end; empty where the graph has none."""

    policy: str
    channels: int
    cycle: tuple[str, ...]
    longest_path_switches: int

    @property
    def deadlock_free(self) -> bool:
        """Whether no cycle exists."""
        return not self.cycle


def dependencies(fabric: Fabric, policy: str, failures: Failures = NONE) -> Dependencies:
    """The channel-dependency graph of a policy, searched for a cycle.

    `any_port` allows every port of the source with every port of the destination (on ZCube 1 to 3 switches);
    `detour` the unique paths with what is left after `failures` at any length (on ZCube 2 or 4 switches). Raises
    FabricError for a policy that the fabric does not have.
    """
    if policy not in FAMILIES:
        raise FabricError("policy", policy, f"must be one of {', '.join(FAMILIES)}")
    named = policy if policy in ("unique", "shortest", "ecmp", "spray") else None
    tables = Tables(fabric, failures, detour=policy == "detour", policy=named)
    if policy == "any_port":
        ends = np.zeros(len(tables.names), dtype=np.bool_)
        ends[np.unique(tables.attachment)] = True
        used = tables.spread(ends[:, None] & ends[None, :])
    else:
        fallback = fallback_starts(fabric, tables, failures, detour=policy == "detour")
        used = tables.used | tables.spread(fallback)
    reached = tables.distance[used]
    return Dependencies(
        policy=policy,
        channels=sum(len(near) for near in tables.neighbours),
        cycle=tuple(tables.names[i] for i in _find_cycle(tables, used)),
        longest_path_switches=int(reached.max()) + 1 if reached.size else 0,
    )


class _Graph:
    """Successors of a channel, found when asked for: 16,384 GPUs make millions of dependencies."""

    def __init__(self, tables: Tables, used: Mask) -> None:
        self.tables, self.used = tables, used
        self.hops = [tables.next_hops(here) for here in range(len(tables.names))]
        self.position = [{int(there): i for i, there in enumerate(near)} for near in tables.neighbours]

    def after(self, channel: tuple[int, int]) -> Iterator[tuple[int, int]]:
        here, there = channel
        destinations = self.used[here] & self.hops[here][self.position[here][there]]
        onward = (self.hops[there] & destinations[None, :]).any(axis=1)
        for far in self.tables.neighbours[there][onward]:
            yield there, int(far)


def _find_cycle(tables: Tables, used: Mask) -> list[int]:
    """Depth-first search with an explicit stack; the switches of the first cycle met."""
    graph = _Graph(tables, used)
    done: set[tuple[int, int]] = set()
    for here, near in enumerate(tables.neighbours):
        for there in near:
            start = (here, int(there))
            if start in done:
                continue
            trail: dict[tuple[int, int], Iterator[tuple[int, int]]] = {start: graph.after(start)}
            while trail:
                channel, rest = next(reversed(trail.items()))
                following = next(rest, None)
                if following is None:
                    done.add(channel)
                    del trail[channel]
                elif following in trail:
                    order = list(trail)
                    loop = order[order.index(following) :]
                    return [*(u for u, _ in loop), loop[0][0]]
                elif following not in done:
                    trail[following] = graph.after(following)
    return []
