"""Inside a sandbox of its own: brings a fabric up and probes it.

    python -m emulation.probe_run SETTINGS      (JSON: the fields of emulation.probe.Settings)

The last line of output is {"probe": result}.
"""

from __future__ import annotations

import json
import sys

from controller.plan import FabricPlan, Plan
from emulation import network
from emulation.control import Controller
from emulation.probe import Settings
from emulation.probing import Probe, only_probes
from emulation.probing import probe as probe_flow
from emulation.sandbox import STATE_DIR, telling_errors
from emulation.watch import Watch
from topologies.build import build
from topologies.fabric import Fabric
from topologies.paths import QueuePair, five_tuple, queue_pairs

#: Emulated bit/s per Gb/s: rates do not matter here.
_BPS_PER_GBPS = 1e6


def bring_up(fabric: Fabric, plan: Plan) -> tuple[network.EmulatedNetwork, Controller]:
    """The fabric with the plan's rules confirmed. Raises RunError."""
    network.make_management_bridge()
    controller = Controller(plan, STATE_DIR, sys.stderr.buffer)
    net = network.build(fabric, network.EmulatedRates(_BPS_PER_GBPS, 9000, 4096))
    network.start_switches(net)
    controller.wait_confirmed()
    return net, controller


def plan_of(settings: Settings, fabric: Fabric) -> tuple[Plan, list[QueuePair]]:
    """The rules for the queue pairs that are probed, and these: one a port pair."""
    pairs = [
        qp
        for qp in queue_pairs(fabric, settings.src_gpu, settings.dst_gpu, settings.queue_pair + 1)
        if qp.index == settings.queue_pair
    ]
    plan = Plan(
        FabricPlan(**settings.fabric),
        seed=settings.seed,
        planned=tuple(pairs),
        protocols=(settings.protocol_number,),
    )
    return plan, pairs


def probe(settings: Settings, net: network.EmulatedNetwork, pairs: list[QueuePair]) -> dict[str, object]:
    """Probe every port pair; the result as JSON (see docs/controller.md)."""
    watch = Watch(net, only_probes(settings.protocol_number))
    found = []
    for qp in pairs:
        own = five_tuple(net.fabric, qp, settings.protocol_number)
        flow = settings.flow(own)
        found.append(probe_flow(net, watch, Probe(qp, flow, flow == own, settings.seed, settings.count)))
    watch.close()
    return settings.result(found)


def main(argv: list[str]) -> int:
    """Probe as the settings say; the exit status. What went wrong is one message for the caller."""
    return telling_errors(lambda: _main(argv))


def _main(argv: list[str]) -> None:
    settings = Settings.from_json(argv[0])
    fabric = build(FabricPlan(**settings.fabric))
    plan, pairs = plan_of(settings, fabric)
    net, controller = bring_up(fabric, plan)
    print(json.dumps({"probe": probe(settings, net, pairs)}), flush=True)
    controller.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
