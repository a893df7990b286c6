"""Runs inside a sandbox: switches and cables fail one after the other while handoffs are under way.

    python tests/emulated_faults.py FABRIC SDN TRANSPORT     (such as tcp, or with a policy: "udp spray")

Handoffs go between random GPU pairs all the time. When a fault has reached the agents, every GPU pair sends one more:
those that `queue_pairs` says are joined must get it, and all that was sent before, while the fault lasts; the others
when it is over, and not before.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Collection

from emulation import network
from emulation.agents import AgentPool, Done
from emulation.control import Controller, make_plan
from emulation.faults import FaultPlayer, links_of
from emulation.netns import write_sysctls
from emulation.sandbox import STATE_DIR
from scenario.fabric_section import RoutingSection
from scenario.fabric_spec import section_from_text
from scenario.models import FaultEvent, FaultsSection, Scenario, TransportSection
from scenario.scale import Scale
from topologies.build import build
from topologies.fabric import Fabric
from topologies.paths import queue_pairs, walk_all_pairs
from topologies.routes import Failures
from traffic.agent import HEADER

#: 20 Mb/s a GPU.
SCALE = Scale(rate_factor=5e-5, dilation=1.0, frame_bytes=9000)
UNDER_WAY = 24
#: From less than one header to some 22 frames, which a GPU sends in 80 ms.
HANDOFF_BYTES = (1, 200_000)
PROBE_BYTES = 3_000
#: TCP sends again sooner than in a run, or every fault would cost seconds; what it sends for nothing does no harm here.
TCP_SOONER = {"net/ipv4/tcp_rto_min_us": "200000"}
#: Longest wait for anything that must happen: many of TCP's timeouts.
PATIENCE_S = 40.0
#: The storm: so many faults in so many seconds, and how long one lasts.
STORM_FAULTS, STORM_S, GONE_S = 24, 6.0, (0.15, 1.0)
FLAPS, FLAP_S = 14, 0.3
#: Wall seconds of one model second in the faults' clock: it is moved by hand, one event after the other.
STANDING_STILL = 1e6

Pair = tuple[str, str]


class Handoffs:
    """What was sent, and what of it has arrived."""

    def __init__(self, pool: AgentPool, fabric: Fabric) -> None:
        self.pool = pool
        self.rng = random.Random(1)
        self.pairs: list[Pair] = [(a.name, b.name) for a in fabric.gpus for b in fabric.gpus if a is not b]
        self.sent: dict[int, tuple[Pair, int]] = {}
        self.open: set[int] = set()
        self.wrong: list[str] = []

    def send(self, pair: Pair, size: int) -> int:
        number = len(self.sent) + 1
        # A handoff has at least one header for each group of queue pairs.
        self.sent[number] = pair, max(size, HEADER.size * len(self.pool.lane_groups(*pair)))
        self.open.add(number)
        self.pool.send(number, *pair, size)
        return number

    def keep_going(self, cut_off: Collection[Pair]) -> None:
        """Start handoffs until enough are under way; those that have no path now count apart."""
        waiting = len(self.of(cut_off))
        moving = len(self.open) - waiting
        while moving < UNDER_WAY:
            pair = self.rng.choice(self.pairs)
            if pair not in cut_off:
                moving += 1
            elif waiting < UNDER_WAY:
                waiting += 1
            else:
                continue
            self.send(pair, self.rng.randint(*HANDOFF_BYTES))

    def take(self, done: Done) -> None:
        pair, size = self.sent[done.transfer_id]
        if done.transfer_id not in self.open:
            self.wrong.append(f"{done.transfer_id} arrived twice")
        self.open.discard(done.transfer_id)
        arrived = sum(part.payload_bytes for part in done.parts)
        ways = {(part.queue_pair.src.node, part.queue_pair.dst.node) for part in done.parts}
        if arrived != size or ways != {pair}:
            self.wrong.append(f"{done.transfer_id} of {size} B from {pair}: {arrived} B by {ways}")

    def of(self, pairs: Collection[Pair]) -> set[int]:
        """Handoffs of these pairs that have not arrived."""
        return {number for number in self.open if self.sent[number][0] in pairs}


class FaultRun:
    """The fabric, its traffic, and the faults in turn."""

    def __init__(self, net: network.EmulatedNetwork, controller: Controller, pool: AgentPool) -> None:
        self.net, self.pool, self.controller = net, pool, controller
        self.handoffs = Handoffs(pool, net.fabric)
        self.cut_off: set[Pair] = set()
        self.agents_know: set[str] = set()
        self.queue_pairs_cut = self.handoffs_hit = self.waited = 0
        self.keep_moving = True
        fabric = net.fabric
        between = [link.id for link in fabric.links if link.tier != "access"]
        self.faults = [switch.name for switch in fabric.switches] + between
        events = [FaultEvent(at_s=2 * n, down=(name,)) for n, name in enumerate(self.faults)]
        events += [FaultEvent(at_s=2 * n + 1, up=(name,)) for n, name in enumerate(self.faults)]
        section = FaultsSection(events=tuple(events))
        self.player = FaultPlayer(net, section, controller.status_path, self._log, 0, STANDING_STILL)
        self._due(-1)

    def _log(self, event: dict[str, object]) -> None:
        if event["event"] == "flows moved":
            self.agents_know = set(event["down"])  # type: ignore[call-overload]
            self.queue_pairs_cut += int(str(event["queue_pairs_cut"]))

    def _due(self, event: int) -> None:
        """Let the clock of the faults stand just after an event (-1: before all of them)."""
        self.player.start_ns = time.monotonic_ns() - int(event * STANDING_STILL * 1e9)

    def until(self, what: str, true: Callable[[], bool]) -> None:
        """Traffic goes on until something is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            if time.monotonic() > deadline:
                left = [(number, *self.handoffs.sent[number]) for number in sorted(self.handoffs.open)]
                raise AssertionError(f"{what}: not within {PATIENCE_S:g} s; cut off {self.cut_off}; open {left}")
            if self.keep_moving:
                self.handoffs.keep_going(self.cut_off)
            for done in self.pool.poll(0.01):
                self.handoffs.take(done)
            self.player.step(self.pool)

    def arrived(self, what: str, numbers: set[int]) -> None:
        self.until(what, lambda: not numbers & self.handoffs.open)

    def play(self) -> None:
        """Every fault: down, all that is joined sends, up, all that waited arrives."""
        fabric, handoffs = self.net.fabric, self.handoffs
        self.arrived("the whole fabric", {handoffs.send(pair, PROBE_BYTES) for pair in handoffs.pairs})
        for number, name in enumerate(self.faults):
            down = set(links_of(fabric, [name]))
            failures = Failures.of(fabric, down)
            self.handoffs_hit += len(handoffs.open)
            self._due(2 * number)
            self.cut_off = {pair for pair in handoffs.pairs if not queue_pairs(fabric, *pair, failures=failures)}
            self.until(f"{name} down: agents know", lambda down=down: self.agents_know == down)  # type: ignore[misc]
            probes = {pair: handoffs.send(pair, PROBE_BYTES) for pair in handoffs.pairs}
            joined = set(handoffs.pairs) - self.cut_off
            self.arrived(f"{name} down: what is joined", handoffs.of(joined))
            waiting = handoffs.of(self.cut_off)
            early = {pair for pair in self.cut_off if probes[pair] not in waiting}
            if early:
                handoffs.wrong.append(f"{name} down: {early} arrived without a path")
            self.waited += len(waiting)
            self.cut_off = set()
            self._due(2 * number + 1)
            self.until(f"{name} up: agents know", lambda: not self.agents_know)
            hurt = {p for p in handoffs.pairs if queue_pairs(fabric, *p, failures=failures) != queue_pairs(fabric, *p)}
            again = {handoffs.send(pair, PROBE_BYTES) for pair in hurt}
            self.arrived(f"{name} up: what waited, and pairs that had lost a queue pair", waiting | again)
        self.player.finish()

    def storm(self) -> None:
        """Cables, those of GPUs too, and switches go and come back with no regard to each other, or to the agents."""
        fabric, rng = self.net.fabric, random.Random(2)
        names = [link.id for link in fabric.links] * 2 + [switch.name for switch in fabric.switches]
        events = []
        for name in rng.sample(names, STORM_FAULTS):
            at_s = rng.uniform(0, STORM_S)
            events += [FaultEvent(at_s=at_s, down=(name,)), FaultEvent(at_s=at_s + rng.uniform(*GONE_S), up=(name,))]
        self._pass("the storm", events)

    def flapping(self) -> None:
        """Two switches go and come back in turn, sooner than what they cut off is connected again."""
        names = [switch.name for switch in self.net.fabric.switches][:2]
        events = []
        for number in range(FLAPS):
            at_s, name = number * FLAP_S, (names[number % 2],)
            events += [FaultEvent(at_s=at_s, down=name), FaultEvent(at_s=at_s + FLAP_S, up=name)]
        self._pass("the flapping", events)

    def _pass(self, what: str, events: list[FaultEvent]) -> None:
        """Events in their own time, traffic going on."""
        section = FaultsSection(events=tuple(events))
        self.player = FaultPlayer(
            self.net, section, self.controller.status_path, self._log, time.monotonic_ns(), dilation=1.0
        )
        end = time.monotonic() + max(event.at_s for event in events) + 0.1
        self.until(what, lambda: time.monotonic() > end)
        self.player.finish()
        self.until(f"after {what}: agents know", lambda: not self.agents_know)

    def finish(self, planned: int) -> None:
        """Every pair once more; then all that was sent must have arrived, and every queue pair be connected again."""
        handoffs = self.handoffs
        self.arrived("the whole fabric again", {handoffs.send(pair, PROBE_BYTES) for pair in handoffs.pairs})
        self.keep_moving = False
        self.arrived("the last handoffs", set(handoffs.open))
        self.until("every queue pair is back", lambda: not any(number in self.pool.cut for number in range(planned)))


def main(text: str, sdn: str, transport: str) -> dict[str, object]:
    kind, _, policy = transport.partition(" ")
    scenario = Scenario(
        fabric=section_from_text(text),
        transport=TransportSection(kind=kind),  # type: ignore[arg-type]
        routing=RoutingSection(policy=policy or "auto"),  # type: ignore[arg-type]
    )
    fabric = build(scenario.fabric)
    pairs = dict.fromkeys((qp.src.node, qp.dst.node) for qp in walk_all_pairs(fabric))
    planned = [qp for pair in pairs for qp in scenario.paths.queue_pairs(fabric, *pair)]
    network.make_management_bridge()
    with tempfile.TemporaryFile() as controller_log:
        controller = Controller(make_plan(scenario, planned), STATE_DIR, controller_log, sdn)
        net = network.build(fabric, network.EmulatedRates(SCALE.rate_bps(1), SCALE.frame_bytes, 16_384))
        for gpu in fabric.gpus:
            write_sysctls(net.node_pid(gpu.name), TCP_SOONER)
        network.start_switches(net)
        controller.wait_confirmed()
        pool = AgentPool(net, planned, SCALE, scenario, sys.stderr.buffer)
        run = FaultRun(net, controller, pool)
        run.play()
        run.storm()
        run.flapping()
        run.finish(len(planned))
        left = pool.statistics()
        pool.close()
        repairs = controller.status()["repairs"]
        controller.close()
    return {
        "wrong": run.handoffs.wrong + pool.complaints,
        "faults": len(run.faults),
        "handoffs": len(run.handoffs.sent),
        "handoffs_hit": run.handoffs_hit,
        "waited": run.waited,
        "queue_pairs_cut": run.queue_pairs_cut,
        "moved_bytes": pool.moved_bytes,
        "still_cut": [number for number in range(len(planned)) if number in pool.cut],
        "half_arrived": left["half_arrived"],
        "repairs": len(repairs),  # type: ignore[arg-type]
        "switch_errors": [error for one in controller.status()["switches"].values() for error in one["errors"]],  # type: ignore[attr-defined]
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:4])), flush=True)
