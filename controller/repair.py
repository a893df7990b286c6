"""What changes when cables or switches fail: overlay rules, and an order of updates that never makes a loop. Pure.

The rules of the whole fabric (`controller.rules`) stay as they are. A failure adds overlay rules of higher priority
for the pairs concerned, recovery takes them away again:

| kind   | priority | match                                       | where                                            |
|--------|----------|---------------------------------------------|--------------------------------------------------|
| repair | 350      | 5-tuple of a planned queue pair             | hops where its hashed next hop is gone           |
| repair | 260      | address of a GPU port                       | ZCube: its bundle member, or its bundle, is gone |
| repair | 250      | /24 of a switch                             | hops with fewer next hops left (flows unplanned) |

Order of updates. Let D be the distance to a destination in the network *after* the change. The update of a switch for
that destination goes out in phase D, and a phase starts when all barriers of the one before have been answered
("downstream first"). Whatever part of a phase has been applied: a packet at an updated switch is on its new path, whose
further switches have all been updated, so it arrives; one at a switch not yet updated follows its old path until it
meets an updated switch. So nothing loops, and no pair that did not use what failed is lost on the way. Groups are made
before all rules and removed after them. `tests/test_controller_repair.py` walks every pair through every state that the
barriers allow.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from controller.rules import by_destination, exact_match, hashed_ports, hosts_by_switch, prefix_of
from controller.ruleset import (
    MASK_24,
    PRIORITY_REPAIR_ADDRESS,
    PRIORITY_REPAIR_PLANNED,
    PRIORITY_REPAIR_PREFIX,
    Action,
    Group,
    Match,
    Output,
    Rule,
    SelectGroup,
)
from topologies.fabric import End, Fabric, FabricError
from topologies.impact import fallback_starts
from topologies.paths import (
    TCP,
    FiveTuple,
    QueuePair,
    destination_member,
    five_tuple,
    flow_path,
    reversed_flow,
)
from topologies.routes import NONE, Failures
from topologies.tables import Tables


@dataclass(frozen=True)
class OverlayRule:
    """A rule that a failure adds, and the switch that its packets are for."""

    rule: Rule
    destination: str


@dataclass(frozen=True)
class Overlay:
    """What a set of failures adds to each switch, and how far each switch then is from each destination."""

    failures: Failures
    rules: Mapping[str, tuple[OverlayRule, ...]]
    groups: Mapping[str, tuple[SelectGroup, ...]]
    distance: Mapping[tuple[str, str], int]

    @property
    def rule_count(self) -> int:
        """Rules on all switches."""
        return sum(len(found) for found in self.rules.values())


@dataclass(frozen=True)
class Change:
    """One message to one switch. Adding a rule with the match of one that is there replaces it at once."""

    switch: str
    what: Literal["add", "delete", "add group", "delete group"]
    item: Rule | SelectGroup


#: Changes that may go out together; a barrier to every switch concerned ends a phase.
Phase = tuple[Change, ...]


class Repairer:
    """Knows the whole fabric and its planned flows; computes overlays and the updates between them."""

    def __init__(
        self,
        fabric: Fabric,
        *,
        seed: int,
        planned: Iterable[QueuePair] = (),
        protocols: Iterable[int] = (TCP,),
        detour: bool = False,
    ) -> None:
        self.fabric, self.seed, self.detour = fabric, seed, detour
        self._planned, self._protocols = tuple(planned), tuple(protocols)
        self._hosts = hosts_by_switch(fabric)
        self._whole = Tables(fabric)

    def prepare(self) -> None:
        """Do now what the first failure would otherwise wait for."""
        _ = self._flows_on, self.nothing, self._whole.used
        self.overlay(Failures(frozenset({self.fabric.links[-1].id})))

    @cached_property
    def nothing(self) -> Overlay:
        """No failure."""
        return Overlay(NONE, {}, {}, self._distances(self._whole))

    @cached_property
    def _flows_on(self) -> Mapping[str, tuple[tuple[End, End, FiveTuple], ...]]:
        """Cable -> planned flows (acknowledgements too) that cross it while nothing has failed."""
        found: defaultdict[str, list[tuple[End, End, FiveTuple]]] = defaultdict(list)
        if not self._hashed:
            return {}
        for flow in self._flows():
            for link in flow_path(self.fabric, *flow, self.seed).links:
                found[link].append(flow)
        return {link: tuple(flows) for link, flows in found.items()}

    @cached_property
    def _hashed(self) -> frozenset[tuple[str, int]]:
        return hashed_ports(self.fabric, self._whole.switch_tables())

    def _flows(self) -> Iterator[tuple[End, End, FiveTuple]]:
        seen: set[FiveTuple] = set()
        for qp in self._planned:
            for protocol in self._protocols:
                data = five_tuple(self.fabric, qp, protocol)
                for src, dst, flow in ((qp.src, qp.dst, data), (qp.dst, qp.src, reversed_flow(data))):
                    if flow not in seen:
                        seen.add(flow)
                        yield src, dst, flow

    def overlay(self, failures: Failures) -> Overlay:
        """What these failures add to the rules of the whole fabric."""
        if not failures:
            return self.nothing
        tables = Tables(self.fabric, failures, detour=self.detour)
        used = tables.used
        if self.detour:
            used = used | tables.spread(fallback_starts(self.fabric, tables, failures))
        rules: defaultdict[str, list[OverlayRule]] = defaultdict(list)
        groups: defaultdict[str, list[SelectGroup]] = defaultdict(list)
        for s, switch in enumerate(tables.names):
            if switch in failures.switches:
                continue
            for d in used[s].nonzero()[0]:
                there = tables.names[d]
                if d == s or not self._hosts[there] or there in failures.switches:
                    continue
                left = tables.ports(s, int(d))
                before = self._whole.ports(s, int(d)) if self._whole.used[s, d] else ()
                if not left or left == before:
                    continue
                if by_destination(self.fabric):
                    rules[switch] += self._addresses(switch, there, before, left)
                else:
                    rule, group = self._prefix(there, left)
                    rules[switch].append(OverlayRule(rule, there))
                    if group is not None:
                        groups[switch].append(group)
        for switch, rule, there in self._planned_rules(failures, tables):
            rules[switch].append(OverlayRule(rule, there))
        return Overlay(
            failures,
            {name: tuple(found) for name, found in rules.items() if found},
            {name: tuple(found) for name, found in groups.items() if found},
            self._distances(tables),
        )

    def _addresses(
        self, switch: str, there: str, before: tuple[int, ...], left: tuple[int, ...]
    ) -> Iterator[OverlayRule]:
        """One rule for each GPU port whose member of a bundle is gone; the member is that of `paths.next_hop_port`."""
        whole = self.fabric_next_ports(switch, there)
        for host in self._hosts[there]:
            kept = whole[destination_member(host.ip, len(whole))]
            if kept in left and before:
                continue
            port = kept if kept in left else left[destination_member(host.ip, len(left))]
            rule = Rule("repair", PRIORITY_REPAIR_ADDRESS, Match(host.ip), (Output(port),))
            yield OverlayRule(rule, there)

    def fabric_next_ports(self, switch: str, there: str) -> tuple[int, ...]:
        """Next hops in the whole fabric, used or not."""
        index = self._whole.index
        return self._whole.ports(index[switch], index[there])

    def _prefix(self, there: str, left: tuple[int, ...]) -> tuple[Rule, SelectGroup | None]:
        match = Match(prefix_of(self._hosts[there]), MASK_24)
        group = SelectGroup(overlay_group_id(there, left), left) if len(left) > 1 else None
        action: Action = Group(group.group_id) if group else Output(left[0])
        return Rule("repair", PRIORITY_REPAIR_PREFIX, match, (action,)), group

    def _planned_rules(self, failures: Failures, tables: Tables) -> Iterator[tuple[str, Rule, str]]:
        """Exact rules for the planned flows that crossed what failed: at each hop of the new path where the rules that
        are there would choose otherwise."""
        down = {
            link.id
            for link in self.fabric.links
            if link.id in failures.links or {link.a.node, link.b.node} & failures.switches
        }
        moved = dict.fromkeys(flow for link in sorted(down) for flow in self._flows_on.get(link, ()))
        for src, dst, flow in moved:
            there = self.fabric.attachment[dst.node, dst.port].node
            try:
                new = flow_path(self.fabric, src, dst, flow, self.seed, failures=failures, detour=self.detour)
            except FabricError:
                continue  # cut off: the sender is told
            old = {end.node: end.port for end in flow_path(self.fabric, src, dst, flow, self.seed).egress[1:-1]}
            for end in new.egress[1:-1]:
                planned = old.get(end.node) if (end.node, old.get(end.node)) in self._hashed else None
                if planned == end.port:
                    continue
                if planned is None and len(tables.ports(tables.index[end.node], tables.index[there])) == 1:
                    continue
                yield end.node, Rule("repair", PRIORITY_REPAIR_PLANNED, exact_match(flow), (Output(end.port),)), there

    def _distances(self, tables: Tables) -> Mapping[tuple[str, str], int]:
        return _Distances(tables)

    def update(self, old: Overlay, new: Overlay) -> tuple[Phase, ...]:
        """Phases that lead from one overlay to another: groups, then rules by distance to their destination in the new
        state, then the groups that are no longer used."""
        phases: defaultdict[int, list[Change]] = defaultdict(list)
        last = 1 << 20
        for switch in sorted({*old.rules, *new.rules, *old.groups, *new.groups}):
            was = {_key(one.rule): one for one in old.rules.get(switch, ())}
            wanted = {_key(one.rule): one for one in new.rules.get(switch, ())}
            for key, one in wanted.items():
                if key not in was or was[key].rule != one.rule:
                    phases[1 + new.distance[switch, one.destination]].append(Change(switch, "add", one.rule))
            for key, one in was.items():
                if key not in wanted:
                    phases[1 + new.distance[switch, one.destination]].append(Change(switch, "delete", one.rule))
            before, after = set(old.groups.get(switch, ())), set(new.groups.get(switch, ()))
            phases[0] += [Change(switch, "add group", group) for group in sorted(after - before, key=_group_id)]
            phases[last] += [Change(switch, "delete group", group) for group in sorted(before - after, key=_group_id)]
        return tuple(tuple(phases[number]) for number in sorted(phases) if phases[number])


class _Distances(Mapping[tuple[str, str], int]):
    """(switch, destination) -> cables between them; 0 where they are not joined, so that what must go, goes first."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def __getitem__(self, pair: tuple[str, str]) -> int:
        index = self._tables.index
        return max(0, int(self._tables.distance[index[pair[0]], index[pair[1]]]))

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((a, b) for a in self._tables.names for b in self._tables.names)

    def __len__(self) -> int:
        return len(self._tables.names) ** 2


def overlay_group_id(there: str, ports: tuple[int, ...]) -> int:
    """Group id of an overlay: a function of what it is for, above the ids of the whole fabric's groups."""
    return 1 << 30 | zlib.crc32(f"{there} {ports}".encode()) & (1 << 30) - 1


def _key(rule: Rule) -> tuple[int, Match]:
    return rule.priority, rule.match


def _group_id(group: SelectGroup) -> int:
    return group.group_id
