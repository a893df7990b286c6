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
from emulation.probe import Settings
from emulation.probing import Probe, only_probes, probe
from emulation.sandbox import STATE_DIR
from emulation.watch import Watch
from results.reader import RunFolder
from results.writer import EventLog
from scenario.errors import RunError, TestbedError
from scenario.models import Scenario
from topologies.build import build
from topologies.fabric import Fabric
from topologies.paths import QueuePair, five_tuple
from topologies.routes import Failures


def pairs_of(scenario: Scenario, fabric: Fabric, settings: Settings, failures: Failures) -> list[QueuePair]:
    """Of every port pair that still has a path, the queue pair asked for: the n-th, where indices are chosen so that
    each has a path of its own (`spray`). Raises RunError where there is none."""
    by_ports: dict[tuple[int, int], list[QueuePair]] = {}
    for qp in scenario.paths.queue_pairs(fabric, settings.src_gpu, settings.dst_gpu, failures):
        by_ports.setdefault((qp.src.port, qp.dst.port), []).append(qp)
    if not by_ports:
        raise RunError(f"{settings.src_gpu} and {settings.dst_gpu} are cut off from each other by what is down")
    most = max(map(len, by_ports.values()))
    if settings.queue_pair >= most:
        raise RunError(f"--queue-pair = {settings.queue_pair}: the run has {most} a port pair, counted from 0")
    return [found[settings.queue_pair] for found in by_ports.values() if settings.queue_pair < len(found)]


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
    try:
        _main(Path(argv[0]), Settings.from_json(argv[1]), json.loads(argv[2]))
    except TestbedError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
