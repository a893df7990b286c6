"""Cables and switches that fail while serving, as the scenario says, and what the run learns of them.

A cable fails by taking one end's interface down: the other end loses its carrier and both switches tell the controller.
A switch fails as all its cables. The controller's status says what counts as down and how long the repair took; the
agents are told from it, so they move their flows when the network knows, not when the scenario does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from emulation.agents import AgentPool
from emulation.interfaces import Interfaces
from emulation.network import EmulatedNetwork
from emulation.switch_caches import switch_caches
from scenario.errors import InputError
from scenario.models import FaultEvent, FaultsSection
from topologies.fabric import End, Fabric, FabricError
from topologies.routes import Failures

#: How often the controller's status is looked at (it is a file that is replaced).
_LOOK_EVERY_S = 0.02


def links_of(fabric: Fabric, names: Iterable[str]) -> list[str]:
    """Ids of the cables that the names of cables and switches stand for. Raises InputError."""
    try:
        failures = Failures.of(fabric, names)
    except FabricError as error:
        raise InputError("faults.events", error.value, error.allowed) from None
    return [
        link.id for link in fabric.links if link.id in failures.links or {link.a.node, link.b.node} & failures.switches
    ]


class FaultLedger:
    """Which interfaces are down, and because of what: a cable that failed by its name stays down when the switch at its
    end comes back, and the other way round."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self._reasons: dict[End, set[str]] = {}
        self._links = {link.id: link for link in fabric.links}

    def play(self, events: Iterable[FaultEvent]) -> dict[End, bool]:
        """Interfaces that change with these events, one after the other: whether they are up at last."""
        touched: dict[End, bool] = {}
        for event in events:
            for names, fails in ((event.down, True), (event.up, False)):
                for name in names:
                    for end in self._ends(name):
                        reasons = self._reasons.setdefault(end, set())
                        touched.setdefault(end, not reasons)
                        (reasons.add if fails else reasons.discard)(name)
        return {end: not self._reasons[end] for end, was_up in touched.items() if was_up == bool(self._reasons[end])}

    def _ends(self, name: str) -> list[End]:
        """A switch is all its own interfaces. Of a cable it is a switch's end: its switch hears of it at once."""
        if name in self.fabric.switch_by_name:
            return [End(name, port.number) for port in self.fabric.switch_by_name[name].ports]
        link = self._links[name]
        return [link.b if link.tier == "access" else link.a]


@dataclass
class FaultPlayer:
    """Plays the events, and carries news of the controller to the agents. `log` takes events for events.jsonl."""

    network: EmulatedNetwork
    faults: FaultsSection
    status_path: Path | None  # None: no controller, and then no events
    log: Callable[[dict[str, object]], None]
    start_ns: int
    dilation: float
    _next: int = 0
    _looked: float = 0.0
    _seen_mtime_ns: int = 0
    _pid: object = None
    _told: int = 0  # repairs of the controller with that pid that have been logged
    _down: set[str] = field(default_factory=set)
    repairs: list[dict[str, object]] = field(default_factory=list)
    failures_played: int = 0  # events that took something down

    def __post_init__(self) -> None:
        self._events = sorted(self.faults.events, key=lambda event: event.at_s)
        self._ledger = FaultLedger(self.network.fabric)
        self._interfaces = Interfaces(self.network.node_pid)
        self._caches = switch_caches(self.network)

    def step(self, pool: AgentPool) -> None:
        """Do what is due; to be called often."""
        if not self._events:
            return
        now_ns, first = time.monotonic_ns(), self._next
        while self._next < len(self._events) and self._wall_ns(self._events[self._next].at_s) <= now_ns:
            self._next += 1
        due = self._events[first : self._next]
        if due:
            self._set(due)
        if time.monotonic() - self._looked >= _LOOK_EVERY_S:
            self._looked = time.monotonic()
            self._look(pool)

    def _wall_ns(self, at_s: float) -> int:
        return self.start_ns + int(at_s * self.dilation * 1e9)

    def _set(self, due: Iterable[FaultEvent]) -> None:
        """All that is due as one change, in the background: the engine does not wait."""
        changes = self._ledger.play(due)
        self.failures_played += sum(bool(event.down) for event in due)
        port = self.network.fabric.port
        self._interfaces.set({(end.node, port(end.node, end.port).name): up for end, up in changes.items()})
        now_s = time.monotonic()
        for event in due:
            for state, names in (("down", event.down), ("up", event.up)):
                if names:
                    self.log({"event": f"fault {state}", "what": list(names), "t_monotonic_s": now_s})

    def finish(self) -> list[dict[str, object]]:
        """Wait for what was started, and log the events that serving did not last for; returns them.

        Raises RunError when a change of an interface was refused, or a switch did not drop its cache.
        """
        self._interfaces.finish()
        self._caches.finish()
        served_s = (time.monotonic_ns() - self.start_ns) / 1e9 / self.dilation
        missed: list[dict[str, object]] = [
            {"at_s": event.at_s, "down": list(event.down), "up": list(event.up), "served_s": round(served_s, 3)}
            for event in self._events[self._next :]
        ]
        for event in missed:
            self.log({"event": "fault not reached", **event, "t_monotonic_s": time.monotonic()})
        return missed

    def _look(self, pool: AgentPool) -> None:
        if self.status_path is None:
            return
        try:
            mtime_ns = self.status_path.stat().st_mtime_ns
            if mtime_ns == self._seen_mtime_ns:
                return
            status = json.loads(self.status_path.read_text())
        except (FileNotFoundError, ValueError):
            return
        self._seen_mtime_ns = mtime_ns
        down = set(status.get("failures", ()))
        if status.get("pid") != self._pid:  # a new controller lists its own repairs; it knows the failures of the other
            self._pid, self._told = status.get("pid"), 0
        for repair in status.get("repairs", ())[self._told :]:
            self._told += 1
            self.repairs.append(repair)
            self._caches.ask(repair["switches"])
            self.log({"event": "repaired", "t_monotonic_s": time.monotonic(), **repair})
        if down != self._down:
            self._down = down
            moved = pool.set_failures(Failures.of(self.network.fabric, down))
            now_s = time.monotonic()
            self.log({"event": "flows moved", "down": sorted(down), "queue_pairs_cut": moved, "t_monotonic_s": now_s})
