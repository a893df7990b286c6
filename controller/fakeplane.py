"""A dataplane in memory: executes a RuleSet as Open vSwitch would, and walks a packet from port to port.

So forwarding is proved without root and without a switch. Whatever a real fabric would only show as a lost
packet is an error with a name here: a drop, a loop, a wrong last-hop MAC, rules that overlap at one priority.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from controller.ruleset import Group, Match, Output, Rule, RuleSet, SelectGroup, SetEthDst
from topologies.addresses import ip_to_int
from topologies.fabric import End, Fabric
from topologies.paths import FiveTuple, Path

#: Picks a port of a select group: (switch, group, flow) -> port. Open vSwitch's own hash is not known here.
Choice = Callable[[str, SelectGroup, FiveTuple], int]

MAX_SWITCHES = 8


class PlaneError(Exception):
    """The packet did not arrive as it should; `at` is the node where that showed."""

    def __init__(self, at: str, why: str) -> None:
        self.at, self.why = at, why
        super().__init__(f"{at}: {why}")


class Dropped(PlaneError):
    """No rule matches, or the rule says drop."""


class Loop(PlaneError):
    """The packet came back to a switch, or was sent back where it came from."""


class Misdelivered(PlaneError):
    """The packet reached a GPU port that is not its destination, or with a MAC that is not the NIC's."""


class BadRules(PlaneError):
    """Rules that a switch would refuse, or whose effect OpenFlow leaves undefined."""


@dataclass(frozen=True)
class Packet:
    """Headers that matter."""

    eth_dst: str
    flow: FiveTuple


@dataclass(frozen=True)
class _Shape:
    """Which bits a match looks at: rules of one shape are one dictionary."""

    dst_mask: int
    exact: tuple[bool, bool, bool, bool]

    def key(self, flow: FiveTuple) -> tuple[object, ...]:
        fields = (flow.src_ip, flow.protocol, flow.src_port, flow.dst_port)
        picked = tuple(value for value, wanted in zip(fields, self.exact, strict=True) if wanted)
        return (ip_to_int(flow.dst_ip) & self.dst_mask, *picked)


def _shape_and_key(match: Match) -> tuple[_Shape, tuple[object, ...]]:
    fields = (match.ipv4_src, match.ip_proto, match.tp_src, match.tp_dst)
    mask = ip_to_int(match.ipv4_dst_mask)
    picked = tuple(value for value in fields if value is not None)
    shape = _Shape(mask, tuple(value is not None for value in fields))  # type: ignore[arg-type]
    return shape, (ip_to_int(match.ipv4_dst) & mask, *picked)


class FlowTable:
    """The rules of one switch, by priority and shape."""

    def __init__(self, switch: str, rules: tuple[Rule, ...]) -> None:
        self.switch = switch
        self._by_priority: dict[int, dict[_Shape, dict[tuple[object, ...], Rule]]] = {}
        for rule in rules:
            if (old := self.add(rule)) is not None:
                raise BadRules(switch, f"two rules with one match: {rule} and {old}")

    def add(self, rule: Rule) -> Rule | None:
        """Add a rule, or replace the one with its match and priority, which is returned. Raises BadRules."""
        if (rule.match.tp_src or rule.match.tp_dst) and rule.match.ip_proto is None:
            raise BadRules(self.switch, f"a transport port without a protocol: {rule}")
        if ip_to_int(rule.match.ipv4_dst) & ~ip_to_int(rule.match.ipv4_dst_mask):
            raise BadRules(self.switch, f"address bits outside the mask: {rule}")
        shape, key = _shape_and_key(rule.match)
        entries = self._by_priority.setdefault(rule.priority, {}).setdefault(shape, {})
        old = entries.get(key)
        entries[key] = rule
        self._order = sorted(self._by_priority, reverse=True)
        return old

    def remove(self, rule: Rule) -> Rule:
        """Take away the rule with this match and priority, and return it. Raises BadRules where there is none."""
        shape, key = _shape_and_key(rule.match)
        entries = self._by_priority.get(rule.priority, {}).get(shape, {})
        if key not in entries:
            raise BadRules(self.switch, f"no such rule: {rule}")
        return entries.pop(key)

    def lookup(self, flow: FiveTuple) -> Rule | None:
        """The rule that a packet hits. Raises BadRules when two of one priority match."""
        for priority in self._order:
            hits = [
                entries[key]
                for shape, entries in self._by_priority[priority].items()
                if (key := shape.key(flow)) in entries
            ]
            if len(hits) > 1:
                raise BadRules(self.switch, f"overlap at priority {priority}: {hits[0]} and {hits[1]}")
            if hits:
                return hits[0]
        return None


def first_port(switch: str, group: SelectGroup, flow: FiveTuple) -> int:
    """The plainest choice: the first bucket."""
    return group.ports[0]


class FakePlane:
    """Every switch of a fabric with its rules."""

    def __init__(self, fabric: Fabric, ruleset: RuleSet, choose: Choice = first_port) -> None:
        self.fabric, self.choose = fabric, choose
        self.tables = {name: FlowTable(name, found) for name, found in ruleset.rules.items()}
        self.groups: Mapping[str, Mapping[int, SelectGroup]] = {
            name: {group.group_id: group for group in found} for name, found in ruleset.groups.items()
        }

    def walk(self, src: End, flow: FiveTuple) -> Path:
        """Send one packet out of a GPU port and follow it. Raises PlaneError unless it arrives."""
        nic = self.fabric.port(src.node, src.port)
        packet = Packet(eth_dst=nic.mac or "", flow=flow)  # ARP is off: the frame carries the sender's own MAC
        egress, visited = [src], set[str]()
        while True:
            here = self.fabric.far_end(egress[-1].node, egress[-1].port)
            if here.node in self.fabric.gpu_by_name:
                self._deliver(here, packet)
                return Path(tuple(egress), tuple(self.fabric.link_at[end.node, end.port].id for end in egress))
            if here.node in visited or len(visited) == MAX_SWITCHES:
                raise Loop(here.node, f"{flow.src_ip} -> {flow.dst_ip} came back by {egress}")
            visited.add(here.node)
            packet, out = self._forward(here, packet)
            egress.append(End(here.node, out))

    def _forward(self, here: End, packet: Packet) -> tuple[Packet, int]:
        """Headers after a switch's actions, and the port by which the packet leaves."""
        flow, out = packet.flow, None
        rule = self.tables[here.node].lookup(flow)
        if rule is None:
            raise Dropped(here.node, f"no rule for {flow.src_ip} -> {flow.dst_ip}")
        for action in rule.actions:
            match action:
                case SetEthDst(mac):
                    packet = replace(packet, eth_dst=mac)
                case Output(port):
                    out = port
                case Group(group_id):
                    group = self.groups[here.node].get(group_id)
                    if group is None:
                        raise BadRules(here.node, f"group {group_id} does not exist: {rule}")
                    out = self.choose(here.node, group, flow)
        if out is None:
            raise Dropped(here.node, f"rule says drop {flow.src_ip} -> {flow.dst_ip}: {rule}")
        if (here.node, out) not in self.fabric.link_at:
            raise Dropped(here.node, f"port {out} has no cable: {rule}")
        if out == here.port:
            raise Loop(here.node, f"output to the ingress port {out}: {rule}")
        return packet, out

    def _deliver(self, here: End, packet: Packet) -> None:
        nic = self.fabric.port(here.node, here.port)
        if nic.ip != packet.flow.dst_ip:
            raise Misdelivered(nic.name, f"has {nic.ip}, the packet is for {packet.flow.dst_ip}")
        if nic.mac != packet.eth_dst:
            raise Misdelivered(nic.name, f"has MAC {nic.mac}, the frame is for {packet.eth_dst}")


def walk(fabric: Fabric, ruleset: RuleSet, src: End, flow: FiveTuple, choose: Choice = first_port) -> Path:
    """One packet through a fabric; make a FakePlane for more than a few."""
    return FakePlane(fabric, ruleset, choose).walk(src, flow)
