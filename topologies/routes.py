"""Next hops of a fabric, whole or with failures: which ports of a switch lead towards another by a shortest path.

Distances count switch-to-switch cables. A failure takes next hops away; it never lengthens a path unless `detour`
is allowed: then distances are those of what is left. Standard library only, one destination at a time, on demand;
`topologies.tables` does all destinations at once.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from topologies.fabric import End, Fabric, FabricError, port_name


@dataclass(frozen=True)
class Failures:
    """Cables (by id) and switches (by name) that are down."""

    links: frozenset[str] = frozenset()
    switches: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.links or self.switches)

    @classmethod
    def of(cls, fabric: Fabric, names: Iterable[str]) -> Failures:
        """Failures from names of switches and cables. Raises FabricError for a name that the fabric does not have."""
        known = {link.id for link in fabric.links}
        links, switches = set(), set()
        for name in names:
            if name in fabric.switch_by_name:
                switches.add(name)
            elif name in known:
                links.add(name)
            else:
                raise FabricError("failure", name, _what_there_is(fabric, name))
        return cls(frozenset(links), frozenset(switches))


NONE = Failures()


def _what_there_is(fabric: Fabric, name: str) -> str:
    """What a wrong name may have meant, in names that this fabric has."""
    switches, cables = list(fabric.switch_by_name), [link.id for link in fabric.links]
    # The cables of the device or interface that the name begins with are nearer than those that are spelt like it.
    ends = name.split("--")
    near = [link.id for link in fabric.links if {port_name(link.a), port_name(link.b)} & set(ends)][:2]
    near = near or difflib.get_close_matches(name, switches, 1) or difflib.get_close_matches(name, cables, 2)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    between = next((link.id for link in fabric.links if link.tier != "access"), cables[0])
    return (
        f"this {fabric.kind} has no switch or cable of that name{meant or '.'} Switches are {switches[0]} to"
        f" {switches[-1]}, cables such as {between}"
    )


class Routes:
    """Shortest paths between the switches of a fabric, with what failed left out."""

    def __init__(self, fabric: Fabric, failures: Failures = NONE, *, detour: bool = False) -> None:
        self.fabric, self.failures, self.detour = fabric, failures, detour
        self._to: dict[str, dict[str, int]] = {}
        self._usable: dict[str, set[str]] = {}
        self._next: dict[tuple[str, str], tuple[int, ...]] = {}

    def alive(self, end: End) -> bool:
        """Whether the cable at a port works, and the switches at both ends of it."""
        link, down = self.fabric.link_at[end.node, end.port], self.failures
        return not down or not (link.id in down.links or {link.a.node, link.b.node} & down.switches)

    @cached_property
    def _neighbours(self) -> Mapping[str, tuple[str, ...]]:
        return self.fabric.neighbours

    @cached_property
    def _alive_ports(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """(switch, neighbour) -> ports that work; only pairs with some."""
        pairs = self.fabric.parallel_ports
        if not self.failures:
            return dict(pairs)
        left = {
            (here, there): tuple(port for port in ports if self.alive(End(here, port)))
            for (here, there), ports in pairs.items()
        }
        return {pair: ports for pair, ports in left.items() if ports}

    def distances_to(self, switch: str) -> Mapping[str, int]:
        """Switch -> cables between it and `switch`; those that cannot reach it are left out."""
        if switch not in self._to:
            found = {switch: 0}
            queue = deque([switch])
            while queue:
                here = queue.popleft()
                for there in self._neighbours[here]:
                    if there not in found and (not self.detour or (there, here) in self._alive_ports):
                        found[there] = found[here] + 1
                        queue.append(there)
            if self.detour and switch in self.failures.switches:
                found = {}
            self._to[switch] = found
        return self._to[switch]

    def reaches(self, switch: str, destination: str) -> bool:
        """Whether packets at `switch` can get to `destination` by the paths that are left."""
        return switch in self._reaching(destination)

    def _reaching(self, destination: str) -> set[str]:
        distances = self.distances_to(destination)
        if not self.failures or self.detour:
            return set(distances)
        if destination not in self._usable:
            usable = set() if destination in self.failures.switches else {destination}
            for here in sorted(distances, key=distances.__getitem__):
                closer = (there for there in self._neighbours[here] if distances[there] == distances[here] - 1)
                if any(there in usable and (here, there) in self._alive_ports for there in closer):
                    usable.add(here)
            self._usable[destination] = usable
        return self._usable[destination]

    def next_neighbours(self, switch: str, destination: str) -> tuple[str, ...]:
        """Neighbours one cable closer to `destination` from which it can be reached, in port order."""
        distances = self.distances_to(destination)
        if switch not in distances:
            return ()
        usable, closer = self._reaching(destination), distances[switch] - 1
        return tuple(
            there
            for there in self._neighbours[switch]
            if distances.get(there) == closer and there in usable and (switch, there) in self._alive_ports
        )

    def next_ports(self, switch: str, destination: str) -> tuple[int, ...]:
        """Ports of a switch that lead one cable closer to `destination`, ascending; empty where none is left."""
        key = switch, destination
        if key not in self._next:
            near = self.next_neighbours(switch, destination)
            self._next[key] = tuple(sorted(port for there in near for port in self._alive_ports[switch, there]))
        return self._next[key]
