"""Runs inside a sandbox: handoffs under a policy, and the bytes that every port then has sent.

python tests/emulated_policies.py FABRIC POLICY TRANSPORT
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter

from emulated_paths import Counters

from emulation import network
from emulation.agents import AgentPool
from emulation.control import Controller, make_plan
from emulation.qdisc_dump import decode
from emulation.sandbox import STATE_DIR
from emulation.watch import ConnectionWatch
from scenario.fabric_spec import section_from_text
from scenario.models import RoutingSection, Scenario, TransportSection
from scenario.scale import Scale
from topologies.build import build
from topologies.fabric import End

FRAMES = 200
PAIRS = (("gpu1", "gpu6"), ("gpu2", "gpu13"), ("gpu5", "gpu16"), ("gpu9", "gpu3"), ("gpu12", "gpu7"), ("gpu1", "gpu2"))


def sent_bytes(counters: Counters) -> Counter[End]:
    found: Counter[End] = Counter()
    for owner in counters.net.fabric.nodes:
        data = counters.dumps[owner.name].read()
        for port in owner.ports:
            found[End(owner.name, port.number)] = decode(data, counters.layouts[owner.name], port.name)["bytes"].item()
    return found


def main(text: str, policy: str, transport: str) -> dict[str, object]:
    scenario = Scenario(
        fabric=section_from_text(text),
        routing=RoutingSection(policy=policy),  # type: ignore[arg-type]
        transport=TransportSection(kind=transport),  # type: ignore[arg-type]
    )
    fabric, routing, scale = build(scenario.fabric), scenario.paths, Scale(1e-4, 1.0, 9000)
    pairs = [qp for pair in PAIRS for qp in routing.queue_pairs(fabric, *pair)]
    network.make_management_bridge()
    with tempfile.TemporaryFile() as log:
        controller = Controller(make_plan(scenario, pairs if routing.planned else []), STATE_DIR, log)
        net = network.build(fabric, network.EmulatedRates(scale.rate_bps(1), 9000, 4096))
        network.start_switches(net)
        controller.wait_confirmed()
        watch = ConnectionWatch(net, routing.protocol)
        pool = AgentPool(net, pairs, scale, scenario, log)
        seen = watch.paths(pairs)
    counters = Counters(net)
    handoffs = []
    for number, pair in enumerate(PAIRS, 1):
        before = sent_bytes(counters)
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
                "pair": pair,
                "parts": [part.payload_bytes for part in done[0].parts],
                # Acknowledgements and headers are the rest.
                "off_by": max(abs(sent[end] - expected[end]) for end in {*sent, *expected}) / sum(expected.values()),
            }
        )
    planned = {qp: routing.path(fabric, qp).egress for qp in pairs}
    return {
        "handoffs": handoffs,
        "complaints": pool.complaints,
        "verified": pool.verified,
        "connections": len(pairs),
        "as_planned": sum(planned[qp] == seen[qp].egress for qp in pairs),
        "paths": len({seen[qp].egress for qp in pairs}),
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:4])), flush=True)
