"""From a fabric to the kernel routes of its switches. Pure.

What each switch must know is the same as under OpenFlow, and comes from the same place: `controller.rules` asks the
path function. Here its matches become what a Linux router has, by longest prefix:

| rule     | becomes                                                                                             |
|----------|-----------------------------------------------------------------------------------------------------|
| host     | a /32 route to the port                                                                             |
| prefix   | a route to the port; a mask that is no prefix (a bundle's members by low address bits): /32 routes  |
| fallback | a route to a group of next hops, among which the kernel hashes the 5-tuple                           |
| planned  | a policy rule with the 5-tuple that leads to a table with one default route, by the planned port    |

Everything else falls into a blackhole, as packets that match no OpenFlow rule do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Network

from controller.ruleset import Group, Output, Rule, RuleSet
from topologies.addresses import ip_to_int
from topologies.fabric import Fabric, Link
from topologies.paths import FiveTuple

SCHEMA_VERSION = 1
#: Next hop of every cable: never on the wire, it only names the one entry of the neighbour table that a port needs.
GATEWAY = "169.254.0.1"
#: Next hops have the numbers of their ports (at most 1,022); groups count from here.
FIRST_GROUP = 10_001
#: Routing table of planned flows that leave by port p: FIRST_TABLE + p. (253 to 255 are the kernel's.)
FIRST_TABLE = 1_000
#: Of all policy rules of planned flows: after the table `local` (0), before `main` (32766).
PRIORITY = 100
PROTOCOLS = {6: "tcp", 17: "udp"}


@dataclass(frozen=True, order=True)
class Route:
    """A route of the main table: one port, or several among which the kernel's hash picks."""

    prefix: IPv4Network
    ports: tuple[int, ...]


@dataclass(frozen=True)
class FlowRule:
    """A planned flow's port, whatever the prefix routes say."""

    flow: FiveTuple
    port: int


@dataclass(frozen=True)
class SwitchRoutes:
    """What one switch's kernel gets. `interfaces`: port -> name and the MAC of its cable; `hash_seed` is that of its
    multipath hash, so that switches pick independently and a run can be repeated."""

    switch: str
    interfaces: Mapping[int, tuple[str, str]]
    routes: tuple[Route, ...]
    flows: tuple[FlowRule, ...]
    hash_seed: int

    @cached_property
    def groups(self) -> Mapping[tuple[int, ...], int]:
        """Ports of a group -> its id."""
        several = dict.fromkeys(route.ports for route in self.routes if len(route.ports) > 1)
        return {ports: FIRST_GROUP + number for number, ports in enumerate(several)}

    def nexthop(self, ports: tuple[int, ...]) -> int:
        """Id of a next hop or of a group of them."""
        return ports[0] if len(ports) == 1 else self.groups[ports]

    def candidates(self, flow: FiveTuple) -> tuple[int, ...]:
        """Ports that the kernel may choose for a flow: policy rules first, then the longest prefix. Empty: dropped.

        What `ip route get` does, in memory.
        """
        planned = self._port_by_flow.get(flow)
        if planned is not None:
            return (planned,)
        address = ip_to_int(flow.dst_ip)
        for length in self._lengths:
            found = self._by_prefix.get((address >> 32 - length << 32 - length, length))
            if found is not None:
                return found
        return ()

    @cached_property
    def _port_by_flow(self) -> Mapping[FiveTuple, int]:
        return {rule.flow: rule.port for rule in self.flows}

    @cached_property
    def _by_prefix(self) -> Mapping[tuple[int, int], tuple[int, ...]]:
        return {(int(r.prefix.network_address), r.prefix.prefixlen): r.ports for r in self.routes}

    @cached_property
    def _lengths(self) -> Sequence[int]:
        return sorted({route.prefix.prefixlen for route in self.routes}, reverse=True)

    def batch(self) -> str:
        """`ip -batch` lines; the interfaces must be up, at both ends of their cables."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for port, (name, mac) in self.interfaces.items():
            # Permanent: not counted among those that the kernel may have machine-wide, nor ever thrown away.
            yield f"neigh add {GATEWAY} lladdr {mac} dev {name} nud permanent"
            yield f"nexthop add id {port} via {GATEWAY} dev {name} onlink"
        for ports, group in self.groups.items():
            yield f"nexthop add id {group} group {'/'.join(map(str, ports))}"
        yield "route add blackhole default"
        for route in self.routes:
            yield f"route add {route.prefix} nhid {self.nexthop(route.ports)}"
        for port in sorted({rule.port for rule in self.flows}):
            yield f"route add default nhid {port} table {FIRST_TABLE + port}"
        for rule in self.flows:
            flow = rule.flow
            yield (
                f"rule add priority {PRIORITY} from {flow.src_ip} to {flow.dst_ip} ipproto {PROTOCOLS[flow.protocol]}"
                f" sport {flow.src_port} dport {flow.dst_port} lookup {FIRST_TABLE + rule.port}"
            )


def kernel_routes(fabric: Fabric, ruleset: RuleSet) -> dict[str, SwitchRoutes]:
    """Routes of every switch, for the rules of `controller.rules.rules`.

    Raises ValueError for a rule that no kernel route can stand for; those rules have none such.
    """
    addresses = [ip_to_int(ip) for ip in fabric.gpu_port_by_ip]
    macs = cable_macs(fabric)
    found = {}
    for switch in fabric.switches:
        groups = {group.group_id: group.ports for group in ruleset.groups[switch.name]}
        routes: dict[IPv4Network, tuple[int, ...]] = {}
        flows = []
        for rule in ruleset.rules[switch.name]:
            ports = _ports(rule, groups)
            if rule.match.ip_proto is not None:
                flows.append(FlowRule(_flow(rule), ports[0]))
                continue
            for prefix in _prefixes(rule, addresses):
                if routes.setdefault(prefix, ports) != ports:
                    raise ValueError(f"{switch.name} has two routes to {prefix}")
        found[switch.name] = SwitchRoutes(
            switch.name,
            {p.number: (p.name, macs[fabric.link_at[switch.name, p.number].id]) for p in switch.ports},
            tuple(Route(prefix, ports) for prefix, ports in sorted(routes.items())),
            tuple(flows),
            hash_seed(ruleset.seed, switch.dpid),
        )
    return found


def _ports(rule: Rule, groups: Mapping[int, tuple[int, ...]]) -> tuple[int, ...]:
    for action in rule.actions:
        if isinstance(action, Output):
            return (action.port,)
        if isinstance(action, Group):
            return groups[action.group_id]
    raise ValueError(f"a rule without a port: {rule}")


def _flow(rule: Rule) -> FiveTuple:
    match = rule.match
    src, protocol, sport, dport = match.ipv4_src, match.ip_proto, match.tp_src, match.tp_dst
    if src is None or protocol is None or sport is None or dport is None:
        raise ValueError(f"not a whole 5-tuple: {rule}")
    return FiveTuple(src, match.ipv4_dst, protocol, sport, dport)


def _prefixes(rule: Rule, addresses: Sequence[int]) -> Iterator[IPv4Network]:
    """The prefix of a rule; where its mask is none, a /32 for every GPU port's address that it matches."""
    value, mask = ip_to_int(rule.match.ipv4_dst), ip_to_int(rule.match.ipv4_dst_mask)
    zeros = ~mask & 0xFFFFFFFF
    if zeros & zeros + 1 == 0:  # they all come after the ones
        yield IPv4Network((value, mask.bit_count()))
        return
    for address in addresses:
        if address & mask == value:
            yield IPv4Network((address, 32))


def hash_seed(seed: int, dpid: int) -> int:
    """32 bits, not 0 (the kernel takes 0 for "draw one")."""
    digest = hashlib.blake2b(repr(("multipath", seed, dpid)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") or 1


def cable_macs(fabric: Fabric) -> Mapping[str, str]:
    """Cable -> the MAC of both its ends.

    Without ARP the kernel addresses a frame to the MAC of the interface that it leaves by; the far end takes it for its
    own when it has the same one. On a GPU's cable it is the MAC of the GPU's port.
    """
    return {link.id: _mac(fabric, link, number) for number, link in enumerate(fabric.links, 1)}


def _mac(fabric: Fabric, link: Link, number: int) -> str:
    if link.tier == "access":
        return str(fabric.port(link.a.node, link.a.port).mac)
    return "02:01:" + ":".join(f"{byte:02x}" for byte in number.to_bytes(4, "big"))


def routes_json(routes: Mapping[str, SwitchRoutes], seed: int) -> dict[str, object]:
    """The public form (`routes.json`); switches in the fabric's order."""
    return {
        "schema_version": SCHEMA_VERSION,
        "seed": seed,
        "route_count": sum(len(one.routes) for one in routes.values()),
        "flow_rule_count": sum(len(one.flows) for one in routes.values()),
        "switches": [
            {
                "name": name,
                "hash_seed": one.hash_seed,
                "routes": [{"prefix": str(route.prefix), "ports": list(route.ports)} for route in one.routes],
                "flows": [
                    {
                        "src": rule.flow.src_ip,
                        "dst": rule.flow.dst_ip,
                        "protocol": PROTOCOLS[rule.flow.protocol],
                        "src_port": rule.flow.src_port,
                        "dst_port": rule.flow.dst_port,
                        "port": rule.port,
                    }
                    for rule in one.flows
                ],
            }
            for name, one in routes.items()
        ],
    }
