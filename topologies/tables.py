"""Next hops of every switch towards every other at once, as arrays, and as the prefixes that a router would hold.

What `topologies.routes` answers for one destination, for all of them: 16,384 GPUs in a second. A destination is a
switch with GPUs, which the address plan makes one /24; destinations with the same next hops are joined to shorter
prefixes where the addresses allow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, summarize_address_range

import numpy as np
from numpy.typing import NDArray

from topologies.addresses import ip_to_int
from topologies.fabric import End, Fabric
from topologies.paths import check_policy, port_pairs
from topologies.routes import NONE, Failures, Routes

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class PrefixEntry:
    """Prefixes that share their next hops: ports of the switch, to be chosen among by the policy, and the switches
    whose GPUs the prefixes are."""

    prefixes: tuple[IPv4Network, ...]
    ports: tuple[int, ...]
    switches: tuple[str, ...]


@dataclass(frozen=True)
class SwitchTable:
    """What one switch must know: `hosts` own GPU ports (one rule each) and entries for the rest."""

    switch: str
    hosts: int
    entries: tuple[PrefixEntry, ...]

    @property
    def prefixes(self) -> int:
        """Prefixes after joining."""
        return sum(len(entry.prefixes) for entry in self.entries)

    @property
    def destinations(self) -> int:
        """Remote /24s, that is prefixes before joining."""
        return sum(len(entry.switches) for entry in self.entries)


class Tables:
    """Distances and next hops between all switches. S switches; arrays are S x S, rows `from`, columns `to`."""

    def __init__(
        self, fabric: Fabric, failures: Failures = NONE, *, detour: bool = False, policy: str | None = None
    ) -> None:
        self.fabric = fabric
        self.policy = check_policy(fabric, policy)
        self.names = tuple(switch.name for switch in fabric.switches)
        self.index = {name: i for i, name in enumerate(self.names)}
        routes = Routes(fabric, failures)
        self._dead = {self.index[name] for name in failures.switches}
        self.neighbours = [
            np.array([self.index[there] for there in fabric.neighbours[name]], dtype=np.int64) for name in self.names
        ]
        whole = self._adjacency(fabric.parallel_ports)
        alive = whole
        if failures:
            alive = self._adjacency(
                pair
                for pair, ports in fabric.parallel_ports.items()
                if any(routes.alive(End(pair[0], port)) for port in ports)
            )
        self._alive = alive
        self.distance = _distances(alive if detour else whole)
        if detour:
            self.distance[:, list(self._dead)] = self.distance[list(self._dead), :] = -1
        self.reach = self._reaching(bool(failures) and not detour)
        self._routes = routes

    def _adjacency(self, pairs: Iterable[tuple[str, str]]) -> Mask:
        found = np.zeros((len(self.names), len(self.names)), dtype=np.bool_)
        for here, there in pairs:
            found[self.index[here], self.index[there]] = True
        return found

    def _reaching(self, failed: bool) -> Mask:
        """[from, to]: packets get there by what is left."""
        if not failed:
            return self.distance >= 0
        reach = np.eye(len(self.names), dtype=np.bool_)
        reach[list(self._dead), list(self._dead)] = False
        for step in range(1, int(self.distance.max()) + 1):
            for here, near in enumerate(self.neighbours):
                at_step = self.distance[here] == step
                if at_step.any() and near.size:
                    usable = near[self._alive[here, near]]
                    closer = (self.distance[usable] == step - 1) & reach[usable]
                    reach[here] |= at_step & closer.any(axis=0)
        return reach

    def next_hops(self, here: int) -> Mask:
        """[neighbour of `here` in `neighbours` order, destination]: the neighbour is a next hop."""
        near = self.neighbours[here]
        closer = self.distance[near] == self.distance[here][None, :] - 1
        return closer & (self.distance[near] >= 0) & self.reach[near] & self._alive[here, near][:, None]

    def ports(self, here: int, there: int) -> tuple[int, ...]:
        """Ports of one switch that lead one cable closer to another, ascending; empty where it is not reached."""
        near = self.neighbours[here]
        closer = self.distance[near, there] == self.distance[here, there] - 1
        usable = closer & (self.distance[near, there] >= 0) & self.reach[near, there] & self._alive[here, near]
        name = self.names[here]
        return tuple(sorted(port for n in near[usable] for port in self._ports(name, self.names[n])))

    @cached_property
    def attachment(self) -> NDArray[np.int64]:
        """[GPU, port]: index of the switch that the port is plugged into."""
        return np.array(
            [[self.index[self.fabric.attachment[g.name, p.number].node] for p in g.ports] for g in self.fabric.gpus]
        )

    @cached_property
    def used(self) -> Mask:
        """[from, to]: packets to `to` can be at `from` under the policy's port pairs, acknowledgements included."""
        found = np.zeros_like(self.reach)
        pairs = [(a - 1, b - 1) for a, b in port_pairs(self.fabric)]
        pairs += [(b, a) for a, b in pairs if (b, a) not in pairs]
        for a, b in pairs:  # `shortest` adds pairs within one switch only, which need no next hop
            block = np.ix_(np.unique(self.attachment[:, a]), np.unique(self.attachment[:, b]))
            found[block] |= self.reach[block]
        return self.spread(found)

    def spread(self, starts: Mask) -> Mask:
        """`starts` and every switch on a path from there: [from, to]."""
        found = starts & self.reach
        for step in range(int(self.distance.max()), 0, -1):
            for here, near in enumerate(self.neighbours):
                going = found[here] & (self.distance[here] == step)
                if going.any():
                    found[near] |= self.next_hops(here) & going[None, :]
        return found

    @cached_property
    def _prefix(self) -> NDArray[np.int64]:
        """[switch]: number of its /24 (address >> 8), -1 without GPUs."""
        found = np.full(len(self.names), -1, dtype=np.int64)
        for gpu in self.fabric.gpus:
            for port in gpu.ports:
                if port.ip:
                    found[self.index[self.fabric.attachment[gpu.name, port.number].node]] = ip_to_int(port.ip) >> 8
        return found

    def switch_table(self, name: str) -> SwitchTable:
        """What a switch must hold for the policy. Destinations on the switch itself are its host rules."""
        here = self.index[name]
        wanted = self.used[here] & (self._prefix >= 0)
        wanted[here] = False
        columns = np.flatnonzero(wanted)
        hosts = int((self.attachment == here).sum())
        if not columns.size:
            return SwitchTable(name, hosts, ())
        hops = self.next_hops(here)[:, columns]
        patterns = np.packbits(hops, axis=0)
        order = np.lexsort(patterns)  # destinations with the same next hops side by side
        changes = np.flatnonzero((patterns[:, order[1:]] != patterns[:, order[:-1]]).any(axis=0)) + 1
        entries = []
        for members in np.split(order, changes):
            behind = columns[np.sort(members)]
            near = self.neighbours[here][hops[:, members[0]]]
            ports = sorted(port for there in near for port in self._ports(name, self.names[there]))
            names = tuple(self.names[i] for i in behind)
            entries.append(PrefixEntry(join(self._prefix[behind]), tuple(ports), names))
        entries.sort(key=lambda entry: int(entry.prefixes[0].network_address))
        return SwitchTable(name, hosts, tuple(entries))

    def _ports(self, here: str, there: str) -> tuple[int, ...]:
        ports = self.fabric.parallel_ports[here, there]
        if not self._routes.failures:
            return ports
        return tuple(port for port in ports if self._routes.alive(End(here, port)))

    def switch_tables(self) -> list[SwitchTable]:
        """`switch_table` of every switch."""
        return [self.switch_table(name) for name in self.names]


def member_choice(fabric: Fabric, ports: int, policy: str | None = None) -> str:
    """How a switch picks among the next hops of an entry; see docs/controller.md."""
    if ports == 1:
        return "the only one"
    if fabric.kind == "zcube" and fabric.bundle == "destination":
        if ports & (ports - 1):
            return f"host byte modulo {ports}: a rule an address"
        bits = ports.bit_length() - 1
        lowest = "lowest address bit" if bits == 1 else f"lowest {bits} address bits"
        return f"{lowest}: {ports} rules"
    if check_policy(fabric, policy) == "ecmp_ovs":
        return "hash of the switch"
    return "hash (seeded); unplanned flows: the switch's"


def join(slash24s: NDArray[np.int64]) -> tuple[IPv4Network, ...]:
    """The fewest prefixes that cover exactly these /24s (given as address >> 8)."""
    if len(slash24s) == 1:
        return (IPv4Network((int(slash24s[0]) << 8, 24)),)
    numbers = np.unique(slash24s)
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    return tuple(
        network
        for run in runs
        for network in summarize_address_range(IPv4Address(int(run[0]) << 8), IPv4Address((int(run[-1]) << 8) | 0xFF))
    )


def _distances(adjacency: Mask) -> NDArray[np.int16]:
    """[from, to] cables between switches, -1 where not joined: breadth first from all switches at once."""
    many = len(adjacency)
    edges = adjacency.astype(np.float32)
    distance = np.full((many, many), -1, dtype=np.int16)
    frontier = np.eye(many, dtype=np.float32)
    step = 0
    while frontier.any():
        distance[frontier > 0] = step
        frontier = ((frontier @ edges > 0) & (distance < 0)).astype(np.float32)
        step += 1
    return distance
