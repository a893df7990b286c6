"""OpenFlow 1.3 messages of rules and groups. The one place that builds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from controller.audit import Difference, OtherMatch
from controller.repair import Change
from controller.ruleset import (
    COOKIE_OWNER,
    COOKIE_OWNER_MASK,
    MASK_HOST,
    TABLE,
    Action,
    Group,
    Match,
    Output,
    Rule,
    RuleSet,
    SelectGroup,
    SetEthDst,
)
from topologies.paths import TCP, UDP

ETH_TYPE_IP = 0x0800
#: What `messages` says of its last message: its answer stands for all of them.
LAST_BARRIER = "last barrier"
_LAYER_4 = {TCP: "tcp", UDP: "udp"}


def messages(
    datapath: Any, ruleset: RuleSet, found: Difference, groups: Mapping[int, object]
) -> Iterator[tuple[Any, object]]:
    """OpenFlow messages that bring a switch to its rules, each with what it says. The last is a barrier."""
    parser = datapath.ofproto_parser
    for group in found.add_groups:
        yield _group_message(datapath, group, replace=group.group_id in groups), group
    if found.add_groups:
        yield parser.OFPBarrierRequest(datapath), "barrier"
    for rule in found.add_rules:
        yield _rule_message(datapath, ruleset, rule), rule
    for priority, match in found.delete_rules:
        yield _delete_message(datapath, priority, match), f"delete {match}"
    if found.delete_groups:
        yield parser.OFPBarrierRequest(datapath), "barrier"
    for number in found.delete_groups:
        yield _delete_group_message(datapath, number), f"delete group {number}"
    yield parser.OFPBarrierRequest(datapath), LAST_BARRIER


def change_message(datapath: Any, ruleset: RuleSet, change: Change) -> Any:
    """The message of one change of an update."""
    if isinstance(change.item, SelectGroup):
        if change.what == "add group":
            return _group_message(datapath, change.item)
        return _delete_group_message(datapath, change.item.group_id)
    if change.what == "add":
        return _rule_message(datapath, ruleset, change.item)
    return _delete_message(datapath, change.item.priority, change.item.match)


def _delete_message(datapath: Any, priority: int, match: Match | OtherMatch) -> Any:
    """Deletes that rule and only if it is ours: another may have taken its place."""
    ofproto, parser = datapath.ofproto, datapath.ofproto_parser
    if isinstance(match, OtherMatch):
        table, fields = match.table, list(match.fields)
    else:
        table, fields = TABLE, _match_fields(match)
    return parser.OFPFlowMod(
        datapath,
        cookie=COOKIE_OWNER,
        cookie_mask=COOKIE_OWNER_MASK,
        table_id=table,
        command=ofproto.OFPFC_DELETE_STRICT,
        priority=priority,
        out_port=ofproto.OFPP_ANY,
        out_group=ofproto.OFPG_ANY,
        match=parser.OFPMatch(_ordered_fields=fields),
    )


def _delete_group_message(datapath: Any, number: int) -> Any:
    ofproto, parser = datapath.ofproto, datapath.ofproto_parser
    return parser.OFPGroupMod(datapath, ofproto.OFPGC_DELETE, ofproto.OFPGT_SELECT, number, [])


def _group_message(datapath: Any, group: SelectGroup, *, replace: bool = False) -> Any:
    ofproto, parser = datapath.ofproto, datapath.ofproto_parser
    # All buckets in one message: inserting them later skews Open vSwitch's hash (openvswitch/ovs-issues#357).
    buckets = [
        parser.OFPBucket(
            weight=1,
            watch_port=ofproto.OFPP_ANY,
            watch_group=ofproto.OFPG_ANY,
            actions=[parser.OFPActionOutput(port)],
        )
        for port in group.ports
    ]
    command = ofproto.OFPGC_MODIFY if replace else ofproto.OFPGC_ADD
    return parser.OFPGroupMod(datapath, command, ofproto.OFPGT_SELECT, group.group_id, buckets)


def _rule_message(datapath: Any, ruleset: RuleSet, rule: Rule) -> Any:
    ofproto, parser = datapath.ofproto, datapath.ofproto_parser
    actions = [_action(parser, action) for action in rule.actions]
    instructions = [parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, actions)] if actions else []
    return parser.OFPFlowMod(
        datapath,
        cookie=ruleset.cookie(rule),
        table_id=TABLE,
        command=ofproto.OFPFC_ADD,
        priority=rule.priority,
        buffer_id=ofproto.OFP_NO_BUFFER,
        # Ordered fields: with keywords the library converts each value back and forth, half of the time here.
        match=parser.OFPMatch(_ordered_fields=_match_fields(rule.match)),
        instructions=instructions,
    )


def _match_fields(match: Match) -> list[tuple[str, Any]]:
    """Fields in the order of their OXM numbers, as OFPMatch keeps them."""
    fields: list[tuple[str, Any]] = [("eth_type", ETH_TYPE_IP)]
    if match.ip_proto is not None:
        fields.append(("ip_proto", match.ip_proto))
    if match.ipv4_src is not None:
        fields.append(("ipv4_src", match.ipv4_src))
    masked = match.ipv4_dst_mask != MASK_HOST
    fields.append(("ipv4_dst", (match.ipv4_dst, match.ipv4_dst_mask) if masked else match.ipv4_dst))
    for side, port in (("src", match.tp_src), ("dst", match.tp_dst)):
        if port is not None and match.ip_proto is not None:
            fields.append((f"{_LAYER_4[match.ip_proto]}_{side}", port))
    return fields


def _action(parser: Any, action: Action) -> Any:
    match action:
        case SetEthDst(mac):
            return parser.OFPActionSetField(eth_dst=mac)
        case Output(port):
            return parser.OFPActionOutput(port)
        case Group(group_id):
            return parser.OFPActionGroup(group_id)
