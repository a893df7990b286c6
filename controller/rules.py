"""From a fabric to its OpenFlow rules. Pure: the choice of every hop comes from `topologies.paths`.

All rules are in table 0, fail mode is secure, and there is no rule for a table miss: what matches nothing
is dropped.

| kind     | priority | match                                 | action            | on                       |
|----------|----------|---------------------------------------|-------------------|--------------------------|
| host     | 400      | address of a GPU port on this switch  | set MAC, output   | switches with GPUs       |
| planned  | 300      | 5-tuple of a planned queue pair       | output            | hops that a hash decides |
| prefix   | 200      | prefix of other switches' GPU ports   | output            | hops with one port       |
|          |          | (m links by destination: a /24 and    |                   |                          |
|          |          | its low host bits)                    |                   |                          |
| fallback | 100      | prefix of other switches' GPU ports   | select group: the | hops that a hash decides |
|          |          |                                       | switch's own hash | (flows nobody planned)   |

A switch with GPUs is one /24; those with the same next hops are joined to shorter prefixes where the addresses allow
(`topologies.tables`), and no prefix covers an address behind another next hop or one that does not exist: so nothing
loops.

ZCube `unique`: port 1 sends to port 2 and port 2 to port 1. An odd switch needs a prefix per even switch
(198.19.s.0/24) and host rules for its own port-1 addresses; an even switch the mirror image. No switch
knows the addresses of its own group, so port 1 to port 1 (and 2 to 2) across switches is dropped. One case
is not crosswise and is delivered all the same: port 1 to port 1 on one switch, because host rules do not
look at the ingress port. Hosts never send it (they choose the NIC port by destination).

With m links per pair: `destination` gives m rules a neighbour with masked host bits (m a power of two;
otherwise one rule for each of its GPUs), `hashed` planned rules plus a group, `trunk` one rule.

Trees, `ecmp`: upward hops of planned queue pairs are exact matches that hold the seeded choice, for the data
and for the acknowledgements that come back; all else is hashed over the uplinks by a group. Downwards there is one
next hop, or a group of parallel cables.

Rules per switch, with k GPUs and G switches a group: k + G*m (destination, m a power of two), k + G*k (any
other m), k + G (m = 1, trunk), k + G + planned (hashed); a leaf R/2 + joined prefixes + planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from controller.ruleset import (
    MASK_24,
    PRIORITY_FALLBACK,
    PRIORITY_HOST,
    PRIORITY_PLANNED,
    PRIORITY_PREFIX,
    Group,
    Match,
    Output,
    Rule,
    RuleSet,
    SelectGroup,
    SetEthDst,
)
from topologies.fabric import Fabric, FabricError
from topologies.paths import (
    TCP,
    FiveTuple,
    QueuePair,
    destination_member,
    five_tuple,
    flow_path,
    reversed_flow,
)
from topologies.tables import SwitchTable, Tables


def rules(
    fabric: Fabric,
    *,
    seed: int,
    planned: Iterable[QueuePair] = (),
    protocols: Sequence[int] = (TCP,),
    version: int = 1,
) -> RuleSet:
    """Rules and groups of every switch.

    `planned` queue pairs get exact matches where a hash decides (ROFT, hashed bundles), for each of
    `protocols` and in both directions; elsewhere they need none. Raises FabricError for a pair without a path.
    """
    hosts = hosts_by_switch(fabric)
    table: dict[str, list[Rule]] = {switch.name: [] for switch in fabric.switches}
    groups: dict[str, list[SelectGroup]] = {switch.name: [] for switch in fabric.switches}
    for switch in table:
        table[switch] += [
            Rule("host", PRIORITY_HOST, Match(host.ip), (SetEthDst(host.mac), Output(host.port)))
            for host in hosts[switch]
        ]
    transit = Tables(fabric).switch_tables()
    for switch, rule in _planned_rules(fabric, seed, planned, protocols, hashed_ports(fabric, transit)):
        table[switch].append(rule)
    for one in transit:
        for rule, group in _transit(fabric, one, hosts):
            table[one.switch].append(rule)
            if group is not None:
                groups[one.switch].append(group)
    return RuleSet(
        version=version,
        seed=seed,
        dpids={switch.name: switch.dpid for switch in fabric.switches},
        rules={name: tuple(found) for name, found in table.items()},
        groups={name: tuple(found) for name, found in groups.items()},
    )


@dataclass(frozen=True, order=True)
class HostPort:
    """A switch port with a GPU port behind it."""

    port: int
    ip: str
    mac: str


Hosts = Mapping[str, Sequence[HostPort]]


def hosts_by_switch(fabric: Fabric) -> Hosts:
    """Switch -> its GPU-facing ports in order; empty for a spine."""
    found: dict[str, list[HostPort]] = {switch.name: [] for switch in fabric.switches}
    for (gpu, number), end in fabric.attachment.items():
        nic = fabric.port(gpu, number)
        if nic.ip is None or nic.mac is None:
            raise FabricError("GPU port", nic.name, "has no address")
        found[end.node].append(HostPort(end.port, nic.ip, nic.mac))
    return {name: sorted(ports) for name, ports in found.items()}


def prefix_of(hosts: Sequence[HostPort]) -> str:
    """Network address of the /24 of one switch's GPU ports (the address plan gives each switch its own)."""
    return hosts[0].ip.rsplit(".", 1)[0] + ".0"


def _transit(fabric: Fabric, table: SwitchTable, hosts: Hosts) -> Iterator[tuple[Rule, SelectGroup | None]]:
    """Rules towards the other switches; the first rule that uses a group comes with it."""
    groups = 0
    for entry in table.entries:
        matches = [Match(str(net.network_address), str(net.netmask)) for net in entry.prefixes]
        if len(entry.ports) == 1:
            for match in matches:
                yield Rule("prefix", PRIORITY_PREFIX, match, (Output(entry.ports[0]),)), None
        elif by_destination(fabric):
            for there in entry.switches:
                for match in _member_matches(hosts[there], len(entry.ports)):
                    port = entry.ports[destination_member(match.ipv4_dst, len(entry.ports))]
                    yield Rule("prefix", PRIORITY_PREFIX, match, (Output(port),)), None
        else:
            groups += 1
            group: SelectGroup | None = SelectGroup(groups, entry.ports)
            for match in matches:
                yield Rule("fallback", PRIORITY_FALLBACK, match, (Group(groups),)), group
                group = None


def by_destination(fabric: Fabric) -> bool:
    """Whether the member of a bundle is a function of the destination address alone."""
    return fabric.kind == "zcube" and fabric.bundle == "destination"


def _member_matches(hosts: Sequence[HostPort], members: int) -> list[Match]:
    """Matches that split a neighbour's addresses by bundle member: masked host bits, or one for each GPU."""
    if members & (members - 1) == 0:
        network, mask = prefix_of(hosts).removesuffix(".0"), MASK_24.removesuffix(".0")
        return [Match(f"{network}.{low}", f"{mask}.{members - 1}") for low in range(members)]
    return [Match(host.ip) for host in hosts]


def hashed_ports(fabric: Fabric, transit: Iterable[SwitchTable]) -> frozenset[tuple[str, int]]:
    """(switch, port) of every hop that is one of several and that a hash picks."""
    if by_destination(fabric):
        return frozenset()
    return frozenset(
        (table.switch, port)
        for table in transit
        for entry in table.entries
        if len(entry.ports) > 1
        for port in entry.ports
    )


def _planned_rules(
    fabric: Fabric,
    seed: int,
    planned: Iterable[QueuePair],
    protocols: Sequence[int],
    hashed: frozenset[tuple[str, int]],
) -> Iterator[tuple[str, Rule]]:
    """Exact matches where a hash decides, for data and acknowledgements. Each 5-tuple gets one."""
    if not hashed:
        return
    seen: set[FiveTuple] = set()
    for qp in planned:
        for protocol in protocols:
            data = five_tuple(fabric, qp, protocol)
            for src, dst, flow in ((qp.src, qp.dst, data), (qp.dst, qp.src, reversed_flow(data))):
                if flow in seen:
                    continue
                seen.add(flow)
                for end in flow_path(fabric, src, dst, flow, seed).egress[1:-1]:
                    if (end.node, end.port) in hashed:
                        yield (
                            end.node,
                            Rule("planned", PRIORITY_PLANNED, exact_match(flow), (Output(end.port),)),
                        )


def exact_match(flow: FiveTuple) -> Match:
    """The match of one flow."""
    return Match(
        ipv4_dst=flow.dst_ip,
        ipv4_src=flow.src_ip,
        ip_proto=flow.protocol,
        tp_src=flow.src_port,
        tp_dst=flow.dst_port,
    )
