"""Runs inside a sandbox: one emulated fabric serves scenario after scenario, each with real handoffs.

python tests/emulated_serving.py FABRIC VARIANTS DILATION    (variants: JSON, {name: {section: {key: value}}})
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict

from emulation import network
from emulation.agents import AgentPool
from emulation.control import Controller, make_plan
from emulation.sandbox import STATE_DIR
from emulation.serve import ServingLoop
from scenario.fabric_spec import section_from_text
from scenario.load import with_changes
from scenario.models import Scenario
from scenario.scale import Scale
from topologies.build import build
from traffic.engine import Engine
from traffic.shapes import planned_pairs
from traffic.sources import make_source

BASE = {
    "workload": {
        "kind": "synthetic",
        "requests": 8,
        "arrivals": {"kind": "poisson", "rate_per_s": 6},
        "lengths": {
            "kind": "lognormal",
            "input_median": 4000,
            "input_sigma": 0.5,
            "output_median": 10,
            "output_sigma": 0.5,
        },
    },
    "serving": {"model": "llama-3.1-8b", "timeout_s": 60},
}
LIMIT_S = 60.0
#: Emulated bytes of one byte.
BYTE_FACTOR = 3e-5


def main(text: str, variants: dict[str, dict[str, dict[str, object]]], dilation: float) -> dict[str, object]:
    base = with_changes(Scenario(fabric=section_from_text(text)), BASE)
    scenarios = {name: with_changes(base, changes) for name, changes in variants.items()}
    fabric, scale = build(base.fabric), Scale(BYTE_FACTOR / dilation, dilation, 9000)
    pairs = dict.fromkeys(pair for one in scenarios.values() for pair in planned_pairs(one))
    queue_pairs = [qp for pair in pairs for qp in base.paths.queue_pairs(fabric, *pair)]
    network.make_management_bridge()
    found: dict[str, object] = {}
    with tempfile.TemporaryFile() as log:
        controller = Controller(make_plan(base, queue_pairs), STATE_DIR, log)
        net = network.build(fabric, network.EmulatedRates(scale.rate_bps(1), 9000, 4096))
        network.start_switches(net)
        controller.wait_confirmed()
        pool = AgentPool(net, queue_pairs, scale, base, log)
        for name, scenario in scenarios.items():
            found[name] = serve(scenario, pool, scale)
    return found


def serve(scenario: Scenario, pool: AgentPool, scale: Scale) -> dict[str, object]:
    engine = Engine(scenario, make_source(scenario))
    loop = ServingLoop(engine, pool, scale, time.monotonic_ns() + 50_000_000)
    until = time.monotonic() + LIMIT_S
    loop.run(lambda: time.monotonic() > until, lambda _: None)
    sent = list(loop.transfers.values())
    deadline = time.monotonic() + 20  # what was sent in advance, or between experts, arrives before the next scenario
    while any(item.done is None for item in sent) and time.monotonic() < deadline:
        for done in pool.poll(0.1):
            if done.transfer_id in loop.transfers:
                loop.transfers[done.transfer_id].done = done
    arrived = {
        item.order.transfer_id: sum(part.payload_bytes for part in item.done.parts) for item in sent if item.done
    }
    return {
        "status": Counter(row["status"] for row in engine.requests if row["phase"] == "measured"),
        "wrong_bytes": [
            asdict(item.order)
            for item in sent
            if arrived.get(item.order.transfer_id) != scale.payload_bytes(item.order.bytes)
        ],
        "transfers": len(sent),
        "kinds": Counter(item.order.kind for item in sent),
        "pieces": max((item.order.piece for item in sent), default=0),
        "pairs": len({(item.order.src_gpu, item.order.dst_gpu) for item in sent}),
        "senders": sorted({item.order.src_gpu for item in sent if item.order.kind == "kv"}),
        "rows": [
            {key: row[key] for key in ("local", "held_tokens", "cached_tokens", "kv_bytes_sent", "input_tokens")}
            for row in engine.requests
        ],
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3]))), flush=True)
