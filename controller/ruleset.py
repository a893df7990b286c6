"""OpenFlow rules as data: matches, actions, select groups, and the set of them for a whole fabric.

Nothing here knows Ryu or a socket. `controller.rules` computes a RuleSet, `controller.fakeplane` executes it,
`controller.app` sends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from types import MappingProxyType

SCHEMA_VERSION = 1

#: All rules are in this table; there is no rule for a table miss, so OpenFlow 1.3 drops what nothing matches.
TABLE = 0

#: Priorities, highest first. Rules of one priority never overlap on one switch (`fakeplane` checks it).
PRIORITY_HOST = 400
PRIORITY_REPAIR_PLANNED = 350
PRIORITY_PLANNED = 300
PRIORITY_REPAIR_ADDRESS = 260
PRIORITY_REPAIR_PREFIX = 250
PRIORITY_PREFIX = 200
PRIORITY_FALLBACK = 100

#: First 16 bits of our cookies ("ZC"): what is ours is found, counted and deleted without the rest.
COOKIE_OWNER = 0x5A43 << 48
COOKIE_OWNER_MASK = 0xFFFF << 48
#: Last byte of a cookie: why the rule is there.
COOKIE_KIND = MappingProxyType({"host": 1, "planned": 2, "prefix": 3, "fallback": 4, "drop": 5, "repair": 6, "lldp": 7})

MASK_HOST = "255.255.255.255"
MASK_24 = "255.255.255.0"
MASK_16 = "255.255.0.0"


def masked_text(address: str, mask: str) -> str:
    """198.18.2.0/24 for a prefix; a mask that is none (half of a prefix, by its lowest bits) is written out."""
    bits = int(IPv4Address(mask))
    ones = bits.bit_count()
    return f"{address}/{ones}" if bits == (1 << 32) - (1 << 32 - ones) else f"{address}/{mask}"


@dataclass(frozen=True)
class Match:
    """IPv4 fields; None matches all. `tp_src` and `tp_dst` need an `ip_proto` of 6 (TCP) or 17 (UDP)."""

    ipv4_dst: str
    ipv4_dst_mask: str = MASK_HOST
    ipv4_src: str | None = None
    ip_proto: int | None = None
    tp_src: int | None = None
    tp_dst: int | None = None

    def to_json(self) -> dict[str, object]:
        """Fields that are set; a host mask is left out."""
        fields: dict[str, object] = {"eth_type": 0x0800, "ipv4_dst": self.ipv4_dst}
        if self.ipv4_dst_mask != MASK_HOST:
            fields["ipv4_dst"] = masked_text(self.ipv4_dst, self.ipv4_dst_mask)
        rest = {
            "ipv4_src": self.ipv4_src,
            "ip_proto": self.ip_proto,
            "tp_src": self.tp_src,
            "tp_dst": self.tp_dst,
        }
        return fields | {key: value for key, value in rest.items() if value is not None}


@dataclass(frozen=True)
class SetEthDst:
    """Rewrite the destination MAC: the last switch does it, since hosts send without ARP."""

    mac: str

    def __str__(self) -> str:
        return f"set_eth_dst:{self.mac}"


@dataclass(frozen=True)
class Output:
    """Send by a port."""

    port: int

    def __str__(self) -> str:
        return f"output:{self.port}"


@dataclass(frozen=True)
class Group:
    """Hand the packet to a select group."""

    group_id: int

    def __str__(self) -> str:
        return f"group:{self.group_id}"


Action = SetEthDst | Output | Group


@dataclass(frozen=True)
class Rule:
    """One flow entry. No actions means drop. `kind` is a key of COOKIE_KIND."""

    kind: str
    priority: int
    match: Match
    actions: tuple[Action, ...]

    def to_json(self) -> dict[str, object]:
        """Plain data, actions as text."""
        return {
            "kind": self.kind,
            "priority": self.priority,
            "match": self.match.to_json(),
            "actions": [str(action) for action in self.actions],
        }


@dataclass(frozen=True)
class SelectGroup:
    """A group of type select: one bucket of weight 1 per port; Open vSwitch hashes a flow to a bucket."""

    group_id: int
    ports: tuple[int, ...]


@dataclass(frozen=True)
class RuleSet:
    """The rules and groups of every switch. `version` is carried in every cookie."""

    version: int
    seed: int
    dpids: Mapping[str, int]
    rules: Mapping[str, tuple[Rule, ...]]
    groups: Mapping[str, tuple[SelectGroup, ...]]

    def cookie(self, rule: Rule) -> int:
        """Owner (16 bits), version (40 bits), kind (8 bits)."""
        return COOKIE_OWNER | (self.version & (1 << 40) - 1) << 8 | COOKIE_KIND[rule.kind]

    @property
    def rule_count(self) -> int:
        """Rules on all switches."""
        return sum(len(found) for found in self.rules.values())


def rules_json(ruleset: RuleSet) -> dict[str, object]:
    """The public form (`rules.json`): stable, and sorted by switch (fabric order), priority and match."""

    def order(rule: Rule) -> tuple[int, str]:
        return -rule.priority, repr(rule.match)

    return {
        "schema_version": SCHEMA_VERSION,
        "version": ruleset.version,
        "seed": ruleset.seed,
        "rule_count": ruleset.rule_count,
        "switches": [
            {
                "name": name,
                "dpid": dpid,
                "groups": [
                    {"group_id": group.group_id, "type": "select", "ports": list(group.ports)}
                    for group in ruleset.groups[name]
                ],
                "rules": [
                    rule.to_json() | {"cookie": f"{ruleset.cookie(rule):#x}"}
                    for rule in sorted(ruleset.rules[name], key=order)
                ],
            }
            for name, dpid in ruleset.dpids.items()
        ],
    }
