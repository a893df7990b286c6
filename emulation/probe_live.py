"""Inside the sandbox of a run that is going on: probes its fabric beside its traffic.

    python -m emulation.probe_live RUN_FOLDER SETTINGS FAILURES    (JSON: emulation.probe.Settings; names that are down)

Planned is what the run's controller has been told, gone round what it counts as down. The probes are a few small
packets, which no socket of the run gets (`emulation.probing.packet`); events.jsonl says that they were sent. The last
line of output is {"probe": result}.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from controller.plan import load
from emulation.attach import attach
from emulation.probe import Settings, pairs_of
from emulation.probing import Probe, only_probes, probe
from emulation.sandbox import STATE_DIR, telling_errors
from emulation.watch import Watch
from results.reader import RunFolder
from results.writer import EventLog
from topologies.build import build
from topologies.paths import five_tuple
from topologies.routes import Failures


def _main(folder: Path, settings: Settings, down: list[str]) -> None:
    scenario = RunFolder(folder).scenario()
    fabric = build(scenario.fabric)
    failures = Failures.of(fabric, down)
    plan = load(STATE_DIR / "plan.json")
    told = set(plan.planned if isinstance(plan.planned, tuple) else ())
    pairs = pairs_of(scenario, fabric, settings, failures)
    net = attach(fabric)
    watch = Watch(net, only_probes(settings.protocol_number))
    began = time.monotonic()
    found = []
    for qp in pairs:
        own = five_tuple(fabric, qp, settings.protocol_number)
        flow = settings.flow(own)
        planned = flow == own and qp in told and flow.protocol in plan.protocols
        what = Probe(qp, flow, planned, plan.seed, settings.count, failures, plan.detour)
        found.append(probe(net, watch, what))
    with EventLog(folder / "events.jsonl") as events:
        ends = {"src_gpu": settings.src_gpu, "dst_gpu": settings.dst_gpu}
        packets = settings.count * len(pairs)
        events.write({"event": "probed", **ends, "packets": packets, "t_monotonic_s": began})
    print(json.dumps({"probe": settings.result(found)}), flush=True)


def main(argv: list[str]) -> int:
    """Probe as the settings say; the exit status. What went wrong is one message for the caller."""
    return telling_errors(lambda: _main(Path(argv[0]), Settings.from_json(argv[1]), json.loads(argv[2])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
