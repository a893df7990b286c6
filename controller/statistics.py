"""Polls the counters of every switch: ports, groups (bucket by bucket) and rules. An application of its own.

It must not disturb what it measures. So a reply is not parsed here but appended to a log as it came, stamped with
CLOCK_MONOTONIC on arrival (`controller.statistics_log` has the format and the decoder), and rules are asked for in
turns: where there are thousands, so many switches a tick that about FLOW_RULES_PER_TICK rules are reported.

Orders come as JSON on a SEQPACKET socket that the launcher inherits, and each is answered with the account below:
    {"op": "start"}    everything of every switch once, then a tick every 1/hz seconds (hz 0: none); with "since_s"
                       (monotonic) ticks are due since then: those before now are missed
    {"op": "poll"}     everything of every switch once
    {"op": "finish"}   the same, and no more ticks
A log that an earlier controller has left is continued.
Answers: {"op", "ticks", "missed": ticks that were due and left out, "absent": requests not sent because the switch was
not connected, "replies", "log_bytes", "skipped": requests not sent because the one before was unanswered,
"unanswered": [switch, ...], "cpu_s": of this process since it began, "failure": null or why nothing is logged any more}
"""

from __future__ import annotations

import json
import logging
import math
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller import sdn
from controller.ruleset import COOKIE_OWNER, COOKIE_OWNER_MASK, RuleSet
from controller.statistics_log import RECORD, REPLY_MORE, whole_records_bytes

LOG = logging.getLogger("zcube.controller")

#: About so many rules are reported per tick: 1,000 a second take 0.3 % of a core here and 1 % in all the switches.
FLOW_RULES_PER_TICK = 1000
#: How long an order waits for the switches.
ANSWER_WITHIN_S = 5.0


@dataclass(frozen=True)
class Settings:
    """What the launcher gives the application. `control` is the descriptor of the socket with the orders."""

    ruleset: RuleSet
    log: Path
    hz: float
    control: int


_settings: Settings | None = None


def configure(settings: Settings) -> None:
    """To be called before the application manager makes the application."""
    global _settings
    _settings = settings


def flow_turns(rules: int) -> int:
    """Ticks until every switch has reported its rules once."""
    return max(1, math.ceil(rules / FLOW_RULES_PER_TICK))


class StatisticsApp(sdn.App):
    """One instance polls all switches of the plan; others that connect are left alone."""

    OFP_VERSIONS = [sdn.ofproto_v1_3.OFP_VERSION]  # noqa: RUF012  the library's interface

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if _settings is None:
            raise RuntimeError("controller.statistics.configure() was not called")
        self.settings = _settings
        ruleset = _settings.ruleset
        self.name_of = {dpid: name for name, dpid in ruleset.dpids.items()}
        self.turns = flow_turns(ruleset.rule_count)
        self.turn_of = {dpid: number % self.turns for number, dpid in enumerate(self.name_of)}
        self.live: dict[int, Any] = {}
        self.awaited: dict[int, set[int]] = {}  # DPID -> xids of unanswered requests
        # Unbuffered: a controller that is killed leaves what it has heard. A record cut short would hide what follows.
        self.log = open(_settings.log, "ab", buffering=0)  # noqa: SIM115  as long as the process
        with _settings.log.open("rb") as written:
            self.log.truncate(whole_records_bytes(written))
        self.control = socket.socket(fileno=_settings.control)
        self.control.setblocking(False)
        self.run = 0  # which `start` the ticks belong to; 0: none
        self.ticks = self.missed = self.absent = self.replies = self.log_bytes = self.skipped = 0
        self.failure: str | None = None
        sdn.tap_multipart(self._take)

    def start(self) -> None:
        """Called by the application manager: listen for orders."""
        super().start()
        sdn.hub.spawn(self._orders)

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPStateChange, [sdn.MAIN_DISPATCHER, sdn.DEAD_DISPATCHER])
    def on_state(self, event: Any) -> None:
        """A connection is ready, or has ended."""
        datapath, dpid = event.datapath, event.datapath.id
        if event.state == sdn.MAIN_DISPATCHER and dpid in self.name_of:
            self.live[dpid] = datapath
            self.awaited[dpid] = set()
        elif event.state == sdn.DEAD_DISPATCHER and self.live.get(dpid) is datapath:
            del self.live[dpid], self.awaited[dpid]

    def _take(self, datapath: Any, xid: int, message: bytes) -> bool:
        """Log a reply if it is to one of our requests."""
        now_ns, dpid = time.monotonic_ns(), datapath.id
        if xid not in self.awaited.get(dpid, ()) or self.live.get(dpid) is not datapath:
            return False
        if self.failure is None:
            try:
                self.log.write(RECORD.pack(now_ns, dpid, len(message)) + message)
            except OSError as error:  # a full disk must not end the controller
                self._fail(error)
        self.replies += 1
        self.log_bytes += RECORD.size + len(message)
        if not message[11] & REPLY_MORE:  # the low byte of the flags
            self.awaited[dpid].discard(xid)
        return True

    def _fail(self, error: OSError) -> None:
        self.failure = f"{self.settings.log}: {error.strerror or error}"
        LOG.error("statistics: %s", self.failure)

    def _poll(self, with_flows: Iterable[int]) -> None:
        """Ask every switch for ports and groups, and those in `with_flows` for rules: one write a switch."""
        flows = set(with_flows)
        self.absent += len(self.name_of) - len(self.live)
        for dpid, datapath in list(self.live.items()):
            if self.awaited[dpid]:
                self.skipped += 1  # asking a switch that is behind would put it further behind
                continue
            batch = bytearray()
            for request in self._requests(datapath, dpid in flows):
                self.awaited[dpid].add(datapath.set_xid(request))
                request.serialize()
                batch += request.buf
            datapath.send(bytes(batch))

    def _requests(self, datapath: Any, flows: bool) -> list[Any]:
        ofproto, parser = datapath.ofproto, datapath.ofproto_parser
        requests = [
            parser.OFPPortStatsRequest(datapath, 0, ofproto.OFPP_ANY),
            # The description says which port a bucket has: a repair may have changed it since the last tick.
            parser.OFPGroupDescStatsRequest(datapath, 0),
            parser.OFPGroupStatsRequest(datapath, 0, ofproto.OFPG_ALL),
        ]
        if flows:
            requests.append(
                parser.OFPFlowStatsRequest(
                    datapath, 0, ofproto.OFPTT_ALL, ofproto.OFPP_ANY, ofproto.OFPG_ANY,
                    COOKIE_OWNER, COOKIE_OWNER_MASK, parser.OFPMatch(),
                )
            )  # fmt: skip
        return requests

    def _orders(self) -> None:
        while True:
            sdn.wait_readable(self.control.fileno())
            data = self.control.recv(4096)
            if not data:
                self.run = 0
                return
            order = json.loads(data)
            operation = order["op"]
            self.run = 0  # the ticks of an earlier start
            answer = {"op": operation, **self._everything()}
            if operation == "start" and self.settings.hz > 0:
                self.run = time.monotonic_ns()
                sdn.hub.spawn(self._tick_on, self.run, order.get("since_s", time.monotonic()))
            self.control.send(json.dumps(answer).encode())

    def _everything(self) -> dict[str, object]:
        """Poll all of every switch, wait for the answers, and give the account."""
        deadline = time.monotonic() + ANSWER_WITHIN_S
        self._await(deadline)  # what a tick asked for
        self._poll(self.live)
        self._await(deadline)
        return {
            "ticks": self.ticks,
            "missed": self.missed,
            "absent": self.absent,
            "replies": self.replies,
            "log_bytes": self.log_bytes,
            "skipped": self.skipped,
            "unanswered": sorted(
                name for dpid, name in self.name_of.items() if dpid not in self.live or self.awaited[dpid]
            ),
            "cpu_s": time.process_time(),
            "failure": self.failure,
        }

    def _await(self, deadline: float) -> None:
        while any(self.awaited.values()) and time.monotonic() < deadline:
            sdn.hub.sleep(0.001)

    def _tick_on(self, run: int, since_s: float) -> None:
        """Ticks at a fixed rate from `since_s` on; one that is late is left out and counted, not made up for."""
        period_s = 1 / self.settings.hz
        due = since_s
        while True:
            periods = max(1, math.ceil((time.monotonic() - due) / period_s))
            self.missed += periods - 1
            due += period_s * periods
            sdn.hub.sleep(max(0.0, due - time.monotonic()))
            if self.run != run:
                return
            turn = self.ticks % self.turns
            self._poll(dpid for dpid in self.live if self.turn_of[dpid] == turn)
            self.ticks += 1
