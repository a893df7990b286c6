"""Runs inside a sandbox: probes on a fabric of which rules are changed behind the controller's back.

python tests/emulated_probe.py SETTINGS SWITCH RULE...      (RULE as for ovs-ofctl add-flow; a probe after each)
"""

from __future__ import annotations

import json
import sys

from controller.plan import FabricPlan
from emulation.probe import Settings
from emulation.probe_run import bring_up, plan_of, probe
from topologies.build import build


def main(text: str, switch: str, *rules: str) -> list[dict[str, object]]:
    settings = Settings.from_json(text)
    fabric = build(FabricPlan(**settings.fabric))  # type: ignore[arg-type]
    plan, pairs = plan_of(settings, fabric)
    net, controller = bring_up(fabric, plan)
    found = []
    for rule in rules:
        net.net[switch].ovs("ovs-ofctl", "-O", "OpenFlow13", "add-flow", switch, rule)
        found.append(probe(settings, net, pairs))
    controller.close()
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])), flush=True)
