"""The state of the installation, and its JSON file. No SDN library in here.

`status.json` is replaced whole at every change, so a reader never sees half of it. Times are CLOCK_MONOTONIC
seconds, comparable with those of other processes on the machine.

    {"schema_version": 2,
     "state": "starting" | "waiting" | "confirmed" | "failed",
     "sdn": "ryu 4.34", "pid": 123, "listen": "127.0.0.1:6653",
     "rule_set_version": 1, "started_monotonic_s": 1.0, "confirmed_monotonic_s": 1.5 or null,
     "expected": 8, "confirmed": 8,
     "switches": {"odd1": {"dpid": 4294967297, "expected": true,
                           "state": "waiting" | "installing" | "confirmed" | "lost",
                           "rules_wanted": 16, "rules_present": 16, "groups_wanted": 0, "groups_present": 0,
                           "connections": 1, "rules_kept": 0, "rules_sent": 16, "foreign": [],
                           "connected_monotonic_s": 1.1, "confirmed_monotonic_s": 1.2, "wall_ms": 100.0,
                           "errors": []}},
     "errors": ["unknown switch ..."],
     "port_events": [{"monotonic_s": 2.0, "switch": "odd1", "port": 3, "reason": "add" | "delete" | "modify",
                      "link_down": true}],
     "failures": ["odd1-eth5--even2-eth5"],
     "repairs": [{"down": [...], "before": [...], "event_monotonic_s": 2.0, "computed_ms": 6.1,
                  "last_barrier_ms": 9.3, "phases": 2, "changes": 4, "switches": ["odd1", ...], "unanswered": []}]}

`rules_wanted` is what the switch should have now, repair rules included, and `rules_present` what of it the switch has
confirmed; groups likewise. When it connected, `rules_kept` were there and right, and `rules_sent` were sent. `foreign`
are rules and groups of somebody else. `failures` are the cables and switches that count as down;
a repair goes from what was down `before` to what is, and its times run from the first report of the failure to the last
switch's barrier. A controller that takes over begins with the `failures` that it finds in the file.

`starting`: the process has no state of its own yet; the file, if there is one, is that of the controller before it.
`confirmed`: every expected switch has answered the barrier behind its rules and none of them was refused.
`failed`: a switch refused something, or one that the plan does not know has connected; `errors`, here and
of the switch, say what. `lost` is a switch that was there and is not now; the state is then `waiting` again
until it is back and confirmed. `wall_ms` is from the connection to the barrier's reply.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SCHEMA_VERSION = 2
#: More than this many port events or errors are counted, not listed.
MAX_LISTED = 1000


@dataclass
class SwitchStatus:
    """One switch; `errors` are those of the present connection."""

    dpid: int
    expected: bool
    state: str = "waiting"
    rules_wanted: int = 0
    rules_present: int = 0
    rules_kept: int = 0
    rules_sent: int = 0
    foreign: list[str] = field(default_factory=list)
    groups_wanted: int = 0
    groups_present: int = 0
    connections: int = 0
    connected_monotonic_s: float | None = None
    confirmed_monotonic_s: float | None = None
    wall_ms: float | None = None
    errors: list[str] = field(default_factory=list)


class StatusBoard:
    """Collects what happens and writes the file; `path` None keeps it in memory."""

    def __init__(
        self,
        dpids: Mapping[str, int],
        expected: Collection[str],
        *,
        sdn: str,
        listen: str,
        rule_set_version: int,
        now_s: float,
        path: Path | None = None,
        failures: Collection[str] = (),
    ) -> None:
        self.path = path
        self.sdn, self.listen, self.rule_set_version, self.started_s = sdn, listen, rule_set_version, now_s
        self.confirmed_s: float | None = None
        self.switches = {name: SwitchStatus(dpid, name in expected) for name, dpid in dpids.items()}
        self.errors: list[str] = []
        self.port_events: list[dict[str, object]] = []
        self.ports_down: set[tuple[str, int]] = set()
        self.failures: list[str] = sorted(failures)
        self.repairs: list[dict[str, object]] = []
        self.write()

    @property
    def state(self) -> str:
        """waiting, confirmed or failed."""
        if self.errors or any(switch.errors for switch in self.switches.values()):
            return "failed"
        return "confirmed" if self.confirmed == self.expected else "waiting"

    @property
    def expected(self) -> int:
        """Switches that must confirm."""
        return sum(switch.expected for switch in self.switches.values())

    @property
    def confirmed(self) -> int:
        """Expected switches that have."""
        return sum(s.expected and s.state == "confirmed" for s in self.switches.values())

    def want(self, counts: Mapping[str, tuple[int, int]]) -> None:
        """Rules and groups that each switch should have from now on. The file has them with the next change: a repair
        does not wait for it."""
        for name, (rules, groups) in counts.items():
            self.switches[name].rules_wanted, self.switches[name].groups_wanted = rules, groups

    def have(self, name: str, *, rules: int, groups: int) -> None:
        """What of it a switch has confirmed. The file has it with the next change."""
        self.switches[name].rules_present, self.switches[name].groups_present = rules, groups

    def installing(self, name: str, connected_s: float) -> None:
        """A switch is connected and gets its rules."""
        switch = self.switches[name]
        switch.state = "installing"
        switch.connected_monotonic_s, switch.confirmed_monotonic_s, switch.wall_ms = connected_s, None, None
        switch.connections += 1
        switch.errors = []
        self.write()

    def confirm(self, name: str, now_s: float) -> None:
        """The barrier behind a switch's rules was answered."""
        switch = self.switches[name]
        switch.state, switch.confirmed_monotonic_s = "confirmed", now_s
        if switch.connected_monotonic_s is not None:
            switch.wall_ms = round((now_s - switch.connected_monotonic_s) * 1000, 3)
        if self.confirmed == self.expected and self.confirmed_s is None:
            self.confirmed_s = now_s
        self.write()

    def audited(self, name: str, *, kept: int, sent: int, foreign: list[str]) -> None:
        """What a switch had when it connected."""
        switch = self.switches[name]
        switch.rules_kept, switch.rules_sent, switch.foreign = kept, sent, foreign[:MAX_LISTED]
        self.write()

    def repaired(self, repair: dict[str, object]) -> None:
        """An update after a failure or a recovery has been confirmed."""
        down = repair["down"]
        self.failures = list(down) if isinstance(down, list) else []
        self.repairs.append(repair)
        del self.repairs[:-MAX_LISTED]
        self.write()

    def lost(self, name: str) -> None:
        """The connection of a switch has ended."""
        self.switches[name].state = "lost"
        self.write()

    def error(self, text: str, name: str | None = None) -> None:
        """Something went wrong, on one switch or in general."""
        listed = self.errors if name is None else self.switches[name].errors
        if len(listed) < MAX_LISTED and text not in listed:
            listed.append(text)
            self.write()

    def port_event(self, name: str, port: int, reason: str, link_down: bool, now_s: float) -> None:
        """A switch reported a port."""
        if len(self.port_events) < MAX_LISTED:
            self.port_events.append(
                {"monotonic_s": now_s, "switch": name, "port": port, "reason": reason, "link_down": link_down}
            )
            self.write()

    def to_json(self) -> dict[str, object]:
        """What the file holds."""
        return {
            "schema_version": SCHEMA_VERSION,
            "state": self.state,
            "sdn": self.sdn,
            "pid": os.getpid(),
            "listen": self.listen,
            "rule_set_version": self.rule_set_version,
            "started_monotonic_s": self.started_s,
            "confirmed_monotonic_s": self.confirmed_s,
            "expected": self.expected,
            "confirmed": self.confirmed,
            "switches": {name: vars(switch) for name, switch in self.switches.items()},
            "errors": self.errors,
            "port_events": self.port_events,
            "failures": self.failures,
            "repairs": self.repairs,
        }

    def write(self) -> None:
        """Replace the file at once."""
        if self.path is None:
            return
        part = self.path.with_name(self.path.name + ".part")
        # A line a field, by hand: with `indent` the library's encoder is ten times slower, and this is written often.
        lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in self.to_json().items())
        part.write_text(f"{{\n{lines}\n}}\n")
        part.replace(self.path)


def state_of(path: Path | None, pid: int) -> dict[str, object]:
    """What the process `pid` has written to the file; `starting` while that is another's, or there is none."""
    found: dict[str, object] = {}
    if path is not None:
        with contextlib.suppress(FileNotFoundError):
            found = json.loads(path.read_text())
    if found.get("pid") == pid:
        return found
    return {
        "schema_version": SCHEMA_VERSION, "state": "starting", "sdn": None, "pid": pid, "expected": 0, "confirmed": 0,
        "switches": {}, "errors": [], "port_events": [], "failures": [], "repairs": [],
    }  # fmt: skip


def failures_before(path: Path | None, dpids: Mapping[str, int], rule_set_version: int) -> tuple[str, ...] | None:
    """What counted as down in the file that an earlier controller of the same switches and rules has left.

    None: there is no such file.
    """
    if path is None:
        return None
    try:
        found = json.loads(path.read_text())
        theirs = {name: switch["dpid"] for name, switch in found["switches"].items()}
        if (theirs, found["rule_set_version"]) != (dict(dpids), rule_set_version):
            return None
        return tuple(map(str, found["failures"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
