"""Runs inside a sandbox: every operation on one emulated fabric of 8 GPUs, and the bytes that each NIC then has sent.

python tests/emulated_flows.py FABRIC
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter

from emulated_paths import Counters
from emulated_policies import sent_bytes

from emulation import network
from emulation.agents import AgentPool
from emulation.control import Controller, make_plan
from emulation.sandbox import STATE_DIR
from emulation.serve import ServingLoop
from scenario.fabric_spec import section_from_text
from scenario.flow_workloads import CollectiveWorkload
from scenario.models import Scenario
from scenario.scale import Scale
from topologies.build import build
from traffic.budget import pairs_of
from traffic.engines import make_engine
from traffic.sources import make_source

#: 40 Mb/s a GPU, fast enough that an incast's queue does not make TCP's timer fire; 320 kB a GPU's buffer.
SCALE, SIZE_MB = Scale(1e-4, 0.5, 9000), 6400
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "incast", "permutation", "g_to_one", "worst")
PATIENCE_S = 60.0


def scenario_of(fabric: str, operation: str) -> Scenario:
    workload = CollectiveWorkload(operation=operation, size_mb=SIZE_MB, in_server="fabric")  # type: ignore[arg-type]
    return Scenario(fabric=section_from_text(fabric), workload=workload)


def carried(loop: ServingLoop) -> dict[str, int]:
    """Payload bytes that each GPU's queue pairs brought to their receivers, which report them."""
    found: Counter[str] = Counter()
    for item in loop.transfers.values():
        for part in item.done.parts if item.done else ():
            found[part.queue_pair.src.node] += part.payload_bytes
    return dict(found)


def main(text: str) -> dict[str, object]:
    scenarios = {operation: scenario_of(text, operation) for operation in OPERATIONS}
    sources = {operation: make_source(scenario) for operation, scenario in scenarios.items()}
    some = scenarios["all_to_all"]
    fabric = build(some.fabric)
    pairs = dict.fromkeys(p for op in OPERATIONS for p in pairs_of(scenarios[op], sources[op]))
    queue_pairs = [qp for pair in pairs for qp in some.paths.queue_pairs(fabric, *pair)]
    network.make_management_bridge()
    with tempfile.TemporaryFile() as log:
        controller = Controller(make_plan(some, queue_pairs), STATE_DIR, log)
        net = network.build(fabric, network.EmulatedRates(SCALE.rate_bps(1), 9000, 4096))
        network.start_switches(net)
        controller.wait_confirmed()
        pool = AgentPool(net, queue_pairs, SCALE, some, log)
    counters = Counters(net)
    found: dict[str, object] = {}
    for operation, scenario in scenarios.items():
        before = sent_bytes(counters)
        engine = make_engine(scenario, sources[operation])
        loop = ServingLoop(engine, pool, SCALE, time.monotonic_ns())
        deadline = time.monotonic() + PATIENCE_S
        loop.run(lambda deadline=deadline: time.monotonic() > deadline, lambda _: None)  # type: ignore[misc]
        sent = sent_bytes(counters) - before
        gpus = {gpu.name for gpu in fabric.gpus}
        nics = {name: sum(size for end, size in sent.items() if end.node == name) for name in sorted(gpus)}
        found[operation] = {
            "status": [row["status"] for row in engine.requests],
            "stages": [row["t_finished_s"] > row["t_arrival_s"] for row in engine.requests],  # type: ignore[operator]
            "sent": nics,
            "carried": carried(loop),
            "emitted": loop.first_tokens,
        }
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])), flush=True)
