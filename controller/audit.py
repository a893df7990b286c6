"""What a switch has against what it should have, from the switch's own answers. Pure: nothing is sent from here.

A switch that connects, for the first time or again, is asked for its rules and groups. Only the difference is sent: a
controller that was restarted does not touch a rule that is right. Rules with a cookie of another owner are reported and
left alone, and so are groups that our rules do not use; where one of them has the match and priority of a rule that is
needed, or its group id, it is replaced, which is reported too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from controller.ruleset import (
    COOKIE_OWNER,
    COOKIE_OWNER_MASK,
    FIRST_OVERLAY_GROUP,
    MASK_HOST,
    TABLE,
    Action,
    Group,
    Match,
    Output,
    Rule,
    SelectGroup,
    SetEthDst,
)

_ETH_TYPE_IP = 0x0800
#: OFPGT_SELECT of OpenFlow 1.3.
_SELECT = 1
#: Fields of the matches that this application makes.
_OUR_FIELDS = frozenset({"eth_type", "ip_proto", "ipv4_src", "ipv4_dst", "tcp_src", "tcp_dst", "udp_src", "udp_dst"})


@dataclass(frozen=True)
class OtherMatch:
    """A match that `Match` cannot say (LLDP, ARP, a masked source, another table ...), as the switch told it.

    `fields` are the library's names and values in the switch's order, so that the same match can be sent back.
    """

    table: int
    fields: tuple[tuple[str, Any], ...]

    def to_json(self) -> dict[str, object]:
        """Fields that are set, and the table where it is not ours."""
        return dict(self.fields) | ({"table": self.table} if self.table != TABLE else {})


#: What identifies a rule on a switch: priority and match.
RuleKey = tuple[int, Match | OtherMatch]


class Found(NamedTuple):
    """What a rule on a switch does, and the groups it uses; `actions` None: what this application never installs."""

    cookie: int
    actions: tuple[Action, ...] | None
    groups: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Difference:
    """What to send, in this order: groups to add (replacing by id), rules to add, rules and groups to delete."""

    add_groups: tuple[SelectGroup, ...]
    add_rules: tuple[Rule, ...]
    delete_rules: tuple[RuleKey, ...]
    delete_groups: tuple[int, ...]
    kept: int
    foreign: tuple[str, ...]

    @property
    def empty(self) -> bool:
        """Whether the switch has exactly what it should have."""
        return not (self.add_groups or self.add_rules or self.delete_rules or self.delete_groups)


def difference(
    wanted: Iterable[Rule],
    cookies: Mapping[RuleKey, int],
    wanted_groups: Iterable[SelectGroup],
    found: Mapping[RuleKey, Found],
    found_groups: Mapping[int, tuple[int, ...] | None],
) -> Difference:
    """Compare. `cookies` gives each wanted rule's cookie: one of another version is replaced, in place.

    `found_groups` are ids and ports (`group_of`). Only groups of ours are deleted: those that rules of ours use, and
    those with an id of an overlay, unless a foreign rule uses them.
    """
    target: dict[RuleKey, Rule] = {(rule.priority, rule.match): rule for rule in wanted}
    groups = {group.group_id: group for group in wanted_groups}
    add_groups = tuple(group for number, group in groups.items() if found_groups.get(number) != group.ports)
    changed = {group.group_id for group in add_groups}
    add, kept = [], 0
    for key, rule in target.items():
        there = found.get(key)
        uses = {action.group_id for action in rule.actions if isinstance(action, Group)}
        right = there is not None and (there.cookie, there.actions) == (cookies[key], rule.actions)
        if right and not uses & changed:
            kept += 1
        else:
            add.append(rule)
    ours = {key for key, one in found.items() if is_ours(one.cookie)}
    used_by_us = {number for key in ours for number in found[key].groups}
    used_by_others = {number for key in found.keys() - ours for number in found[key].groups}
    our_groups = {n for n in found_groups if n in used_by_us or n >= FIRST_OVERLAY_GROUP} - used_by_others
    other_groups = found_groups.keys() - our_groups
    return Difference(
        add_groups=add_groups,
        add_rules=tuple(add),
        delete_rules=tuple(sorted(ours - set(target), key=repr)),
        delete_groups=tuple(sorted(our_groups - set(groups))),
        kept=kept,
        foreign=(
            *sorted(_text(key, found[key]) + _fate(key in target) for key in found.keys() - ours),
            *(f"group {n}{_fate(n in changed)}" for n in sorted(other_groups) if n in changed or n not in groups),
        ),
    )


def _fate(replaced: bool) -> str:
    return ", replaced" if replaced else ""


def is_ours(cookie: int) -> bool:
    """Whether a cookie says that the rule is of this application."""
    return cookie & COOKIE_OWNER_MASK == COOKIE_OWNER


def rule_of(stat: Any) -> tuple[RuleKey, Found]:
    """One entry of a flow statistics reply (Ryu's or os-ken's OFPFlowStats)."""
    match = _match_of(int(stat.table_id), tuple(stat.match.items()))
    actions = _actions(stat.instructions) if isinstance(match, Match) else None
    return (int(stat.priority), match), Found(int(stat.cookie), actions, _groups(stat.instructions))


def _match_of(table: int, items: tuple[tuple[str, Any], ...]) -> Match | OtherMatch:
    """A Match only where it says all of it: two rules of a switch must never have one key."""
    fields = dict(items)
    plain = isinstance(fields.get("ipv4_src", ""), str)  # with a mask it is a pair
    ours = fields.get("eth_type") == _ETH_TYPE_IP and "ipv4_dst" in fields and _OUR_FIELDS.issuperset(fields)
    if table != TABLE or not ours or not plain:
        return OtherMatch(table, items)
    destination = fields["ipv4_dst"]
    address, mask = destination if isinstance(destination, tuple) else (destination, MASK_HOST)
    return Match(
        ipv4_dst=str(address),
        ipv4_dst_mask=str(mask),
        ipv4_src=fields.get("ipv4_src"),
        ip_proto=fields.get("ip_proto"),
        tp_src=fields.get("tcp_src", fields.get("udp_src")),
        tp_dst=fields.get("tcp_dst", fields.get("udp_dst")),
    )


def group_of(stat: Any) -> tuple[int, tuple[int, ...] | None]:
    """One entry of a group description reply: id, and its ports if it is as `SelectGroup` says: of type select, each
    bucket of weight 1 with one output."""
    ports = []
    for bucket in stat.buckets:
        actions = [_action(action) for action in bucket.actions]
        if bucket.weight != 1 or len(actions) != 1 or not isinstance(actions[0], Output):
            return int(stat.group_id), None
        ports.append(actions[0].port)
    return int(stat.group_id), tuple(ports) if stat.type == _SELECT else None


def _groups(instructions: Iterable[Any]) -> frozenset[int]:
    actions = (action for instruction in instructions for action in getattr(instruction, "actions", ()))
    return frozenset(int(a.group_id) for a in actions if type(a).__name__ == "OFPActionGroup")


def _actions(instructions: Iterable[Any]) -> tuple[Action, ...] | None:
    found = [_action(action) for instruction in instructions for action in getattr(instruction, "actions", [None])]
    return None if None in found else tuple(action for action in found if action is not None)


def _action(action: Any) -> Action | None:
    """By the class's name: the two libraries have the same classes under different packages."""
    match type(action).__name__:
        case "OFPActionOutput":
            return Output(int(action.port))
        case "OFPActionGroup":
            return Group(int(action.group_id))
        case "OFPActionSetField" if action.key == "eth_dst":
            return SetEthDst(str(action.value))
    return None


def _text(key: RuleKey, found: Found) -> str:
    priority, match = key
    return f"priority {priority} {match.to_json()} cookie {found.cookie:#x}"
