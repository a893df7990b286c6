"""The OpenFlow 1.3 application: brings each switch to the rules of the plan, keeps it there, and repairs.

A switch that connects is asked what it has; it gets what differs and a barrier, and counts as confirmed when it
answers the barrier. A cable that goes down (PORT_STATUS) or a switch that stays away is a failure: overlay rules go out
phase by phase, each behind the barriers of the one before. What failed while no controller was there is learned from
the ports that a switch describes when it connects. Nothing is learned from packets and nothing is decided here: see
`controller.rules`, `controller.repair` and `controller.audit`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller import sdn
from controller.audit import Found, RuleKey, difference, group_of, rule_of
from controller.messages import LAST_BARRIER, change_message, messages
from controller.present import Present
from controller.repair import Change, Overlay, Phase, Repairer
from controller.repair_log import RepairLog
from controller.ruleset import Rule, RuleSet, SelectGroup
from controller.status import StatusBoard
from topologies.routes import Failures

LOG = logging.getLogger("zcube.controller")

#: Bytes handed to the connection at a time; between two, other switches get their turn.
SEND_CHUNK_BYTES = 32_768
#: Both ends of a cable report it: how long to wait for the other before a repair begins.
GATHER_S = 0.004
#: A switch without a connection for so long counts as failed (Open vSwitch first tries again after a second).
DEAD_AFTER_S = 1.5
#: A switch that does not answer a repair's barrier in this time is left behind; when it is back it is audited.
BARRIER_TIMEOUT_S = 2.0

_ANY_STATE = [sdn.HANDSHAKE_DISPATCHER, sdn.CONFIG_DISPATCHER, sdn.MAIN_DISPATCHER]


@dataclass(frozen=True)
class Settings:
    """What the launcher gives the application (application managers construct it without arguments)."""

    ruleset: RuleSet
    expected: tuple[str, ...]
    listen: str
    status_path: Path | None
    repairer: Repairer
    #: What the controller before this one had repaired; None: there was none.
    before: Failures | None = None


@dataclass
class Answers:
    """What a switch says it has, as far as it has answered."""

    rules: dict[RuleKey, Found] = field(default_factory=dict)
    groups: dict[int, tuple[int, ...] | None] = field(default_factory=dict)


_settings: Settings | None = None


def configure(settings: Settings) -> None:
    """To be called before the application manager makes the application."""
    global _settings
    _settings = settings


class EventRulesConfirmed(sdn.EventBase):
    """Every expected switch has confirmed its rules; `datapaths` are the connected ones by name."""

    def __init__(self, datapaths: dict[str, Any]) -> None:
        super().__init__()
        self.datapaths = datapaths


class FabricApp(sdn.App):
    """One instance serves all switches. Its handlers run one after the other."""

    OFP_VERSIONS = [sdn.ofproto_v1_3.OFP_VERSION]  # noqa: RUF012  the library's interface
    _EVENTS = [EventRulesConfirmed]  # noqa: RUF012

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
            failures=_settings.before.links | _settings.before.switches if _settings.before else (),
        )
        self.live: dict[str, Any] = {}
        self.connected_s: dict[Any, float] = {}
        self.barriers: dict[Any, int] = {}
        self.sent: dict[Any, dict[int, object]] = {}
        self.refused: dict[Any, set[int]] = {}
        self.present = {name: Present() for name in self.ruleset.dpids}
        self.waiting: Any = sdn.hub.Queue()
        self.repairer = _settings.repairer
        # The switches have the overlay of the controller before: it is kept, and updates start from it.
        self.takes_over = _settings.before is not None
        before = _settings.before or Failures()
        self.overlay: Overlay = self.repairer.overlay(before)
        self.answers: dict[Any, Answers] = {}
        self._want_everywhere()
        self.board.write()
        self.repair_log = RepairLog(self.repairer.fabric, self.repairer.detour, LOG.info)
        self.down_links: set[str] = set(before.links)
        self.down_switches: set[str] = set(before.switches)
        self.described: set[str] = set()
        self.first_switch: Any = sdn.hub.Event()
        self.failure_events: Any = sdn.hub.Queue()
        self.repair_barriers: dict[tuple[Any, int], Any] = {}

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPStateChange, [*_ANY_STATE, sdn.DEAD_DISPATCHER])
    def on_state(self, event: Any) -> None:
        """Note when a connection begins and ends."""
        datapath = event.datapath
        if event.state == sdn.HANDSHAKE_DISPATCHER:
            self.connected_s[datapath] = time.monotonic()
        elif event.state == sdn.DEAD_DISPATCHER:
            for book in (self.connected_s, self.barriers, self.sent, self.refused, self.answers):
                book.pop(datapath, None)
            name = self.name_of.get(datapath.id)
            if name is not None and self.live.get(name) is datapath:  # a newer connection may have replaced it
                del self.live[name]
                LOG.warning("%s has left", name)
                self.board.lost(name)
                sdn.hub.spawn_after(DEAD_AFTER_S, self._still_away, name, time.monotonic())

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
        self.live[name] = datapath
        self.first_switch.set()
        self.board.installing(name, self.connected_s.get(datapath, time.monotonic()))
        self.answers[datapath] = Answers()
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        datapath.send_msg(parser.OFPGroupDescStatsRequest(datapath, 0))
        everything = ofproto.OFPTT_ALL, ofproto.OFPP_ANY, ofproto.OFPG_ANY
        datapath.send_msg(parser.OFPFlowStatsRequest(datapath, 0, *everything))

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPGroupDescStatsReply, [sdn.CONFIG_DISPATCHER, sdn.MAIN_DISPATCHER])
    def on_groups(self, event: Any) -> None:
        """What groups a switch has."""
        answers = self.answers.get(event.msg.datapath)
        if answers is not None:
            answers.groups.update(group_of(stat) for stat in event.msg.body)

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPFlowStatsReply, [sdn.CONFIG_DISPATCHER, sdn.MAIN_DISPATCHER])
    def on_rules(self, event: Any) -> None:
        """What rules a switch has; the last part of the answer starts the installation."""
        datapath = event.msg.datapath
        answers = self.answers.get(datapath)
        if answers is None:
            return
        answers.rules.update(rule_of(stat) for stat in event.msg.body)
        if not event.msg.flags & datapath.ofproto.OFPMPF_REPLY_MORE:
            self.waiting.put((datapath, self.name_of[datapath.id], answers))

    def _wanted(self, name: str) -> tuple[tuple[Rule, ...], tuple[SelectGroup, ...]]:
        """Rules and groups of a switch in the present state of the fabric."""
        overlay = tuple(one.rule for one in self.overlay.rules.get(name, ()))
        return self.ruleset.rules[name] + overlay, self.ruleset.groups[name] + self.overlay.groups.get(name, ())

    def _want_everywhere(self) -> None:
        """Tell the board what each switch should have, repairs included."""
        self.board.want(
            {name: (len(rules), len(groups)) for name in self.ruleset.dpids for rules, groups in [self._wanted(name)]}
        )

    def _has(self, name: str) -> None:
        """Tell the board what a switch has, as far as it has confirmed it."""
        there = self.present[name]
        self.board.have(name, rules=len(there.rules), groups=len(there.groups))

    def start(self) -> None:
        """Called by the application manager: start the sender."""
        super().start()
        sdn.hub.spawn(self._sender)
        sdn.hub.spawn(self._repair_loop)

    def _sender(self) -> None:
        # A thread of its own: a switch's barrier reply must not wait until the others have been served.
        while True:
            datapath, name, answers = self.waiting.get()
            if datapath.state != sdn.DEAD_DISPATCHER:
                self._install(datapath, name, answers)

    def _install(self, datapath: Any, name: str, answers: Answers) -> None:
        """Send a switch what it lacks, and take away what it should not have."""
        self.answers.pop(datapath, None)  # from here on repairs are for this switch too
        rules, groups = self._wanted(name)
        cookies: dict[RuleKey, int] = {(rule.priority, rule.match): self.ruleset.cookie(rule) for rule in rules}
        found = difference(rules, cookies, groups, answers.rules, answers.groups)
        for text in found.foreign:
            LOG.warning("%s has what is not ours: %s", name, text)
        self.present[name].audited(rules, groups, found)
        self._has(name)
        self.board.audited(name, kept=found.kept, sent=len(found.add_rules), foreign=list(found.foreign))
        sent: dict[int, object] = {}
        self.sent[datapath] = sent
        self._send(datapath, sent, messages(datapath, self.ruleset, found, answers.groups))

    def _send(self, datapath: Any, sent: dict[int, object], what: Iterable[tuple[Any, object]]) -> None:
        batch = bytearray()
        for message, meaning in what:
            datapath.set_xid(message)
            message.serialize()
            sent[message.xid] = meaning
            batch += message.buf
            if meaning == LAST_BARRIER:  # the answer to one before it says nothing of what follows
                self.barriers[datapath] = message.xid
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
        waiting = self.repair_barriers.pop((datapath, event.msg.xid), None)
        if waiting is not None:
            waiting.set()
            return
        if name is None or self.barriers.get(datapath) != event.msg.xid:
            return
        self.present[name].confirmed(self.sent.get(datapath, {}), self.refused.get(datapath, ()))
        self._has(name)
        self.board.confirm(name, time.monotonic())
        if name in self.down_switches:
            self.down_switches.discard(name)
            self.failure_events.put(time.monotonic())
        switch = self.board.switches[name]
        LOG.info(
            "%s: %d rules, %d groups confirmed after %s ms (%d of %d switches)",
            name, switch.rules_present, switch.groups_present, switch.wall_ms,
            self.board.confirmed, self.board.expected,
        )  # fmt: skip
        if self.board.state == "confirmed":
            self.send_event_to_observers(EventRulesConfirmed(dict(self.live)))

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPErrorMsg, _ANY_STATE)
    def on_error(self, event: Any) -> None:
        """A switch refused a message: name the rule."""
        message = event.msg
        name = self.name_of.get(message.datapath.id)
        what = self.sent.get(message.datapath, {}).get(message.xid, f"message {message.xid:#x}")
        self.refused.setdefault(message.datapath, set()).add(message.xid)
        text = f"refused (type {message.type}, code {message.code}): {what}"
        LOG.error("%s %s", name, text)
        self.board.error(text, name)

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPPortStatus, sdn.MAIN_DISPATCHER)
    def on_port_status(self, event: Any) -> None:
        """A port came, went or changed: a cable between switches that is down is a failure."""
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
            now = time.monotonic()
            self.board.port_event(name, message.desc.port_no, reason, link_down, now)
            self._port(name, message.desc.port_no, link_down or reason == "delete", now)

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPPortDescStatsReply, [sdn.CONFIG_DISPATCHER, sdn.MAIN_DISPATCHER])
    def on_ports(self, event: Any) -> None:
        """The ports of a switch that connects: one may have gone down or come back while nobody listened."""
        datapath = event.msg.datapath
        name = self.name_of.get(datapath.id)
        if name is None:
            return
        for port in event.msg.body:
            self._port(name, port.port_no, bool(port.state & datapath.ofproto.OFPPS_LINK_DOWN), time.monotonic())
        if not event.msg.flags & datapath.ofproto.OFPMPF_REPLY_MORE:
            self.described.add(name)

    def _port(self, name: str, port: int, down: bool, now_s: float) -> None:
        link = self.repairer.fabric.link_at.get((name, port))
        if link is None:
            return
        # A cable is up when no end of it says otherwise; one that is down is heard of from both.
        ends = self.board.ports_down
        if down:
            ends.add((name, port))
        else:
            ends.discard((name, port))
        dead = any((end.node, end.port) in ends for end in (link.a, link.b))
        if dead != (link.id in self.down_links):
            (self.down_links.add if dead else self.down_links.discard)(link.id)
            self.failure_events.put(now_s)

    def _still_away(self, name: str, left_s: float) -> None:
        """A switch has been away for DEAD_AFTER_S: it is a failure, unless it is back."""
        if name not in self.live and name not in self.down_switches:
            LOG.warning("%s is away since %.1f s: its paths are taken away", name, time.monotonic() - left_s)
            self.down_switches.add(name)
            self.failure_events.put(left_s)

    def _await_switches(self) -> None:
        """Until all switches that will come have said what they have: repairs are updates of a state that is known."""
        self.first_switch.wait()
        expected = {name for name, switch in self.board.switches.items() if switch.expected}
        deadline = time.monotonic() + DEAD_AFTER_S
        while (not expected <= self.described or self.answers) and time.monotonic() < deadline:
            sdn.hub.sleep(GATHER_S)
        for name in expected - set(self.live) if self.takes_over else ():
            sdn.hub.spawn_after(DEAD_AFTER_S, self._still_away, name, time.monotonic())

    def _repair_loop(self) -> None:
        self._await_switches()
        while True:
            event_s = self.failure_events.get()
            sdn.hub.sleep(GATHER_S)
            while not self.failure_events.empty():
                event_s = min(event_s, self.failure_events.get())
            self._repair(event_s)

    def _repair(self, event_s: float) -> None:
        """Bring the switches from the present overlay to that of the failures known now."""
        failures = Failures(frozenset(self.down_links), frozenset(self.down_switches))
        if failures == self.overlay.failures:
            return
        new = self.repairer.overlay(failures)
        phases = self.repairer.update(self.overlay, new)
        before, self.overlay = self.overlay, new
        computed_s = time.monotonic()
        self._want_everywhere()
        unanswered = sorted({name for phase in phases for name in self._send_phase(phase)})
        now = time.monotonic()
        changes = sum(map(len, phases))
        self.board.repaired(
            {
                "down": sorted(failures.links | failures.switches),
                "before": sorted(before.failures.links | before.failures.switches),
                "event_monotonic_s": event_s,
                "computed_ms": round(1e3 * (computed_s - event_s), 3),
                "last_barrier_ms": round(1e3 * (now - event_s), 3),
                "phases": len(phases),
                "changes": changes,
                "switches": sorted({change.switch for phase in phases for change in phase}),
                "unanswered": unanswered,
            }
        )
        flush_after_s = self.repair_log.repaired(
            before.failures,
            failures,
            changes=changes,
            phases=len(phases),
            ms=1e3 * (now - event_s),
            now_s=now,
            unanswered=unanswered,
        )
        if flush_after_s:
            sdn.hub.spawn_after(flush_after_s, self._flush_log)

    def _flush_log(self) -> None:
        self.repair_log.flush(time.monotonic())

    def _send_phase(self, phase: Phase) -> list[str]:
        """Send one phase and wait for the barriers of all switches concerned that are there. Who did not answer."""
        by_switch: dict[str, list[Change]] = {}
        for change in phase:
            by_switch.setdefault(change.switch, []).append(change)
        waiting = []
        for name, changes in by_switch.items():
            datapath = self.live.get(name)
            if datapath is None or datapath in self.answers:  # not there, or about to be audited against the new state
                continue
            batch = [(change_message(datapath, self.ruleset, change), change) for change in changes]
            barrier = datapath.ofproto_parser.OFPBarrierRequest(datapath)
            sent = self.sent.setdefault(datapath, {})
            data = bytearray()
            for message, meaning in [*batch, (barrier, "repair barrier")]:
                datapath.set_xid(message)
                message.serialize()
                sent[message.xid] = meaning
                data += message.buf
            answered = self.repair_barriers[datapath, barrier.xid] = sdn.hub.Event()
            datapath.send(bytes(data))
            waiting.append((name, datapath, {message.xid: change for message, change in batch}, answered))
        unanswered = []
        for name, datapath, asked, answered in waiting:
            if answered.wait(BARRIER_TIMEOUT_S):
                self.present[name].confirmed(asked, self.refused.get(datapath, ()))
                self._has(name)
            else:
                LOG.warning("%s did not answer a repair's barrier within %g s", name, BARRIER_TIMEOUT_S)
                unanswered.append(name)
        return unanswered
