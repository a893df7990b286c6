"""Runs inside a sandbox: handoffs by the Mooncake Transfer Engine, and the bytes that every port then has sent.

python tests/emulated_mooncake.py FABRIC [DAMAGED]    DAMAGED: number of a handoff of which a byte is changed on arrival
In the end a receiver is killed with a handoff on its way.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter

from emulated_paths import Counters
from emulated_policies import sent_bytes

from emulation import network, sockbuf
from emulation.agents import Done
from emulation.control import Controller, make_plan
from emulation.mooncake import MooncakePool
from emulation.netns import inside
from emulation.sandbox import STATE_DIR
from emulation.watch import ConnectionWatch
from scenario.errors import RunError
from scenario.fabric_spec import section_from_text
from scenario.models import RoutingSection, Scenario, TransportSection
from scenario.scale import Scale
from topologies.build import build
from topologies.fabric import End

FRAMES = 200
ALONE = (("gpu1", "gpu6"), ("gpu2", "gpu7"), ("gpu8", "gpu3"), ("gpu5", "gpu1"))
#: Sent at once, twice: handoffs wait for each other at sender, fabric and receiver.
TOGETHER = (("gpu1", "gpu6"), ("gpu2", "gpu6"), ("gpu3", "gpu6"), ("gpu6", "gpu1"), ("gpu1", "gpu8")) * 2
#: More than the table that handoffs are sent from has at first, for each port.
LARGE_BYTES = 5 << 20
PATIENCE_S = 60.0


class Pool(MooncakePool):
    """Changes one byte of one handoff in its receiver's memory, after it has arrived and before it is compared."""

    damaged = 0

    def _done(self, sender: str, message: dict[str, object]) -> Done:
        number = int(str(message["id"]))
        if number == self.damaged:
            handoff = self._handoffs[number]
            pid = self.agents.processes[list(self.sockets).index(handoff.receiver)].pid
            with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
                memory.seek(self._arena_address[handoff.receiver] + handoff.offset + 70_000)
                (byte,) = memory.read(1)
                memory.seek(-1, 1)
                memory.write(bytes([byte ^ 1]))
        return super()._done(sender, message)


def frames_in_flight(net: network.EmulatedNetwork, gpu: str) -> list[int]:
    """Segments that each connection of a GPU has unacknowledged."""
    listed = subprocess.run(inside(net.node_pid(gpu), ["ss", "-tinH"]), capture_output=True, text=True, check=True)
    return [int(count) for count in re.findall(r"unacked:(\d+)", listed.stdout)]


def main(text: str, damaged: int) -> dict[str, object]:
    scenario = Scenario(
        fabric=section_from_text(text),
        routing=RoutingSection(striping="static"),
        transport=TransportSection(kind="mooncake"),
    )
    fabric, routing, scale = build(scenario.fabric), scenario.paths, Scale(1e-4, 1.0, 9000)
    pairs = [qp for pair in dict.fromkeys((*ALONE, *TOGETHER)) for qp in routing.queue_pairs(fabric, *pair)]
    network.make_management_bridge()
    controller = Controller(make_plan(scenario, pairs if routing.planned else []), STATE_DIR, sys.stderr.buffer)
    net = network.build(fabric, network.EmulatedRates(scale.rate_bps(1), 9000, 4096))
    network.start_switches(net)
    controller.wait_confirmed()
    watch = ConnectionWatch(net, routing.protocol)
    pool = Pool(net, pairs, scale, scenario, sys.stderr.buffer)
    pool.damaged = damaged
    seen = watch.paths(pairs, pool.flow)
    for switch in net.switches:
        sockbuf.deepen(switch.daemon_pid, 512 << 20, 64 << 20)
    counters = Counters(net)
    handoffs = []
    for number, pair in enumerate(ALONE, 1):
        before, began_ns = sent_bytes(counters), time.monotonic_ns()
        pool.send(number, *pair, FRAMES * scale.mss_bytes)
        done = []
        while not done:
            done = list(pool.poll(5))
        sent = sent_bytes(counters) - before
        expected: Counter[End] = Counter()
        for part in done[0].parts:
            for end in seen[part.queue_pair].egress:
                expected[end] += part.payload_bytes
        handoffs.append(
            {
                "parts": [part.payload_bytes for part in done[0].parts],
                # Acknowledgements and headers are the rest.
                "off_by": max(abs(sent[end] - expected[end]) for end in {*sent, *expected}) / sum(expected.values()),
                "frame_times": (done[0].t_ns - began_ns) / 1e9 * scale.rate_bps(400) / 8 / scale.frame_bytes,
            }
        )
    waiting = set()
    for number, pair in enumerate(TOGETHER, 1 + len(ALONE)):
        size = (FRAMES + 13 * number) * scale.mss_bytes // 4 + number
        pool.send(number, *pair, size)
        waiting.add(number)
    pool.send(number + 1, *ALONE[0], LARGE_BYTES * len(fabric.gpus[0].ports))
    waiting.add(number + 1)
    until, in_flight = time.monotonic() + PATIENCE_S, [0]
    while waiting and time.monotonic() < until:
        waiting -= {done.transfer_id for done in pool.poll(0.1)}
        in_flight += frames_in_flight(net, "gpu1")
    planned = {qp: routing.path(fabric, qp).egress for qp in pairs}
    found: dict[str, object] = {
        "statistics": pool.statistics(),
        "alone": handoffs,
        "unfinished": sorted(waiting),
        "in_flight": max(in_flight),
        "complaints": pool.complaints,
        "verified": pool.verified,
        "connections": len(pairs),
        "as_planned": sum(planned[qp] == seen[qp].egress for qp in pairs),
        "distinct_ports": len({pool.flow(qp).src_port for qp in pairs} - set(range(19_000, 20_000))),
        "processes": len(pool.agents.processes),
    }
    pool.send(100, *ALONE[0], FRAMES * scale.mss_bytes)
    pool.agents.processes[list(pool.sockets).index(ALONE[0][1])].kill()
    try:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            list(pool.poll(0.5))
    except RunError as error:
        found["after_a_kill"] = str(error)
    pool.close()
    return {**found, "exit_codes": [process.returncode for process in pool.agents.processes]}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)), flush=True)
