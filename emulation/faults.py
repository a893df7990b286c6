"""Cables and switches that fail while serving, as the scenario says, and what the run learns of them.

A cable fails by taking one end's interface down: the other end loses its carrier and both switches tell the controller.
A switch fails as all its cables. The controller's status says what counts as down and how long the repair took; the
agents are told from it, so they move their flows when the network knows, not when the scenario does.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from emulation.agents import AgentPool
from emulation.netns import entered
from emulation.network import EmulatedNetwork
from scenario.errors import InputError, RunError
from scenario.models import FaultsSection
from topologies.fabric import Fabric, FabricError
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


@dataclass
class FaultPlayer:
    """Plays the events, and carries news of the controller to the agents. `log` takes events for events.jsonl."""

    network: EmulatedNetwork
    faults: FaultsSection
    status_path: Path
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
    _started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._events = sorted(self.faults.events, key=lambda event: event.at_s)

    def step(self, pool: AgentPool) -> None:
        """Do what is due; to be called often."""
        if not self._events:
            return
        now_ns = time.monotonic_ns()
        while self._next < len(self._events) and self._wall_ns(self._events[self._next].at_s) <= now_ns:
            event = self._events[self._next]
            self._next += 1
            for state, names in (("down", event.down), ("up", event.up)):
                self._set(names, state)
                if names:
                    self.log({"event": f"fault {state}", "what": list(names), "t_monotonic_s": time.monotonic()})
        if time.monotonic() - self._looked >= _LOOK_EVERY_S:
            self._looked = time.monotonic()
            self._look(pool)

    def _wall_ns(self, at_s: float) -> int:
        return self.start_ns + int(at_s * self.dilation * 1e9)

    def _set(self, names: Iterable[str], state: str) -> None:
        """Interfaces down or up, in the background: the engine does not wait. A switch is all its own interfaces."""
        fabric = self.network.fabric
        by_node: dict[str, list[int]] = {}
        for name in names:
            if name in fabric.switch_by_name:
                by_node.setdefault(name, []).extend(port.number for port in fabric.switch_by_name[name].ports)
            else:
                link = next(link for link in fabric.links if link.id == name)
                end = link.b if link.tier == "access" else link.a  # a switch's end: its switch hears of it at once
                by_node.setdefault(end.node, []).append(end.port)
        for node, ports in by_node.items():
            lines = "".join(f"link set dev {fabric.port(node, port).name} {state}\n" for port in ports)
            with entered(self.network.node_pid(node)):
                process = subprocess.Popen(["ip", "-batch", "-"], stdin=subprocess.PIPE, text=True)
            assert process.stdin is not None
            process.stdin.write(lines)
            process.stdin.close()
            self._started.append(process)

    def finish(self) -> list[dict[str, object]]:
        """Wait for what was started, and log the events that serving did not last for; returns them.

        Raises RunError when a change of an interface was refused.
        """
        for process in self._started:
            if process.wait(5):
                raise RunError(f"an interface could not be changed (ip ended with status {process.returncode})")
        served_s = (time.monotonic_ns() - self.start_ns) / 1e9 / self.dilation
        missed: list[dict[str, object]] = [
            {"at_s": event.at_s, "down": list(event.down), "up": list(event.up), "served_s": round(served_s, 3)}
            for event in self._events[self._next :]
        ]
        for event in missed:
            self.log({"event": "fault not reached", **event, "t_monotonic_s": time.monotonic()})
        return missed

    def _look(self, pool: AgentPool) -> None:
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
            self.log({"event": "repaired", "t_monotonic_s": time.monotonic(), **repair})
        if down != self._down:
            self._down = down
            moved = pool.set_failures(Failures.of(self.network.fabric, down))
            now_s = time.monotonic()
            self.log({"event": "flows moved", "down": sorted(down), "queue_pairs_cut": moved, "t_monotonic_s": now_s})
