"""The OpenFlow 1.3 application: sends each switch the rules of the plan and waits until it confirms them.

A switch that connects loses our old rules, gets groups, rules and a barrier, and counts as confirmed when it
answers the barrier. Nothing is learned from packets and nothing is decided here: see `controller.rules`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller import sdn
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
from controller.status import StatusBoard
from topologies.paths import TCP, UDP

LOG = logging.getLogger("zcube.controller")

#: Bytes handed to the connection at a time; between two, other switches get their turn.
SEND_CHUNK_BYTES = 32_768

ETH_TYPE_IP = 0x0800
_LAYER_4 = {TCP: "tcp", UDP: "udp"}

_ANY_STATE = [sdn.HANDSHAKE_DISPATCHER, sdn.CONFIG_DISPATCHER, sdn.MAIN_DISPATCHER]


@dataclass(frozen=True)
class Settings:
    """What the launcher gives the application (application managers construct it without arguments)."""

    ruleset: RuleSet
    expected: tuple[str, ...]
    listen: str
    status_path: Path | None


_settings: Settings | None = None


def configure(settings: Settings) -> None:
    """To be called before the application manager makes the application."""
    global _settings
    _settings = settings


class FabricApp(sdn.App):
    """One instance serves all switches. Its handlers run one after the other."""

    OFP_VERSIONS = [sdn.ofproto_v1_3.OFP_VERSION]  # noqa: RUF012  the library's interface

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if _settings is None:
            raise RuntimeError("controller.app.configure() was not called")
        self.ruleset = _settings.ruleset
        self.name_of = {dpid: name for name, dpid in self.ruleset.dpids.items()}
        self.board = StatusBoard(
            self.ruleset.dpids,
            _settings.expected,
            sdn=sdn.VERSION,
            listen=_settings.listen,
            rule_set_version=self.ruleset.version,
            now_s=time.monotonic(),
            path=_settings.status_path,
        )
        self.live: dict[str, Any] = {}
        self.connected_s: dict[Any, float] = {}
        self.barriers: dict[Any, int] = {}
        self.sent: dict[Any, dict[int, object]] = {}
        self.waiting: Any = sdn.hub.Queue()

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPStateChange, [*_ANY_STATE, sdn.DEAD_DISPATCHER])
    def on_state(self, event: Any) -> None:
        """Note when a connection begins and ends."""
        datapath = event.datapath
        if event.state == sdn.HANDSHAKE_DISPATCHER:
            self.connected_s[datapath] = time.monotonic()
        elif event.state == sdn.DEAD_DISPATCHER:
            for book in (self.connected_s, self.barriers, self.sent):
                book.pop(datapath, None)
            name = self.name_of.get(datapath.id)
            if name is not None and self.live.get(name) is datapath:  # a newer connection may have replaced it
                del self.live[name]
                LOG.warning("%s has left", name)
                self.board.lost(name)

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPSwitchFeatures, sdn.CONFIG_DISPATCHER)
    def on_features(self, event: Any) -> None:
        """A switch says who it is: send it its rules."""
        datapath = event.msg.datapath
        name = self.name_of.get(datapath.id)
        if name is None:
            text = f"unknown switch: DPID {datapath.id:#018x} at {datapath.address[0]} is not in the plan"
            LOG.error(text)
            self.board.error(text)
            return
        rules, groups = self.ruleset.rules[name], self.ruleset.groups[name]
        self.live[name] = datapath
        self.board.installing(
            name, self.connected_s.get(datapath, time.monotonic()), rules=len(rules), groups=len(groups)
        )
        self.waiting.put((datapath, name))

    def start(self) -> None:
        """Called by the application manager: start the sender."""
        super().start()
        sdn.hub.spawn(self._sender)

    def _sender(self) -> None:
        # A thread of its own: a switch's barrier reply must not wait until the others have been served.
        while True:
            datapath, name = self.waiting.get()
            if datapath.state != sdn.DEAD_DISPATCHER:
                self._send(datapath, name)

    def _send(self, datapath: Any, name: str) -> None:
        sent: dict[int, object] = {}
        self.sent[datapath] = sent
        batch = bytearray()
        for message, what in messages(datapath, self.ruleset, name):
            datapath.set_xid(message)
            message.serialize()
            sent[message.xid] = what
            batch += message.buf
            self.barriers[datapath] = message.xid  # the last message is the barrier that counts
            if len(batch) >= SEND_CHUNK_BYTES:
                datapath.send(bytes(batch))
                batch.clear()
                sdn.hub.sleep(0)
        datapath.send(bytes(batch))

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPBarrierReply, [sdn.CONFIG_DISPATCHER, sdn.MAIN_DISPATCHER])
    def on_barrier(self, event: Any) -> None:
        """Everything before the barrier has been processed."""
        datapath = event.msg.datapath
        name = self.name_of.get(datapath.id)
        if name is None or self.barriers.get(datapath) != event.msg.xid:
            return
        self.board.confirm(name, time.monotonic())
        switch = self.board.switches[name]
        LOG.info(
            "%s: %d rules, %d groups confirmed after %s ms (%d of %d switches)",
            name, switch.rules_sent, switch.groups_sent, switch.wall_ms,
            self.board.confirmed, self.board.expected,
        )  # fmt: skip

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPErrorMsg, _ANY_STATE)
    def on_error(self, event: Any) -> None:
        """A switch refused a message: name the rule."""
        message = event.msg
        name = self.name_of.get(message.datapath.id)
        what = self.sent.get(message.datapath, {}).get(message.xid, f"message {message.xid:#x}")
        text = f"refused (type {message.type}, code {message.code}): {what}"
        LOG.error("%s %s", name, text)
        self.board.error(text, name)

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPPortStatus, sdn.MAIN_DISPATCHER)
    def on_port_status(self, event: Any) -> None:
        """A port came, went or changed: for the record only."""
        message = event.msg
        name = self.name_of.get(message.datapath.id)
        if name is not None:
            ofproto = message.datapath.ofproto
            reasons = {
                ofproto.OFPPR_ADD: "add",
                ofproto.OFPPR_DELETE: "delete",
                ofproto.OFPPR_MODIFY: "modify",
            }
            link_down = bool(message.desc.state & ofproto.OFPPS_LINK_DOWN)
            reason = reasons.get(message.reason, str(message.reason))
            self.board.port_event(name, message.desc.port_no, reason, link_down, time.monotonic())


def messages(datapath: Any, ruleset: RuleSet, name: str) -> Iterator[tuple[Any, object]]:
    """OpenFlow messages that bring a switch to its rules, each with what it says. The last is a barrier."""
    ofproto, parser = datapath.ofproto, datapath.ofproto_parser
    yield (
        parser.OFPFlowMod(
            datapath,
            cookie=COOKIE_OWNER,
            cookie_mask=COOKIE_OWNER_MASK,
            table_id=ofproto.OFPTT_ALL,
            command=ofproto.OFPFC_DELETE,
            out_port=ofproto.OFPP_ANY,
            out_group=ofproto.OFPG_ANY,
        ),
        "delete our old rules",
    )
    # Groups carry no cookie. The switches are the testbed's own, and only this application makes groups.
    yield (
        parser.OFPGroupMod(datapath, ofproto.OFPGC_DELETE, ofproto.OFPGT_SELECT, ofproto.OFPG_ALL, []),
        "delete old groups",
    )
    yield parser.OFPBarrierRequest(datapath), "barrier"
    for group in ruleset.groups[name]:
        yield _group_message(datapath, group), group
    for rule in ruleset.rules[name]:
        yield _rule_message(datapath, ruleset, rule), rule
    yield parser.OFPBarrierRequest(datapath), "barrier"


def _group_message(datapath: Any, group: SelectGroup) -> Any:
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
    return parser.OFPGroupMod(datapath, ofproto.OFPGC_ADD, ofproto.OFPGT_SELECT, group.group_id, buckets)


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
