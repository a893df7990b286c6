"""Runs inside a sandbox: what the running fabric says about its cabling, and what discovery leaves behind.

    python tests/emulated_cabling.py SCENARIO_JSON SDN_LIBRARY [deaf]

With `deaf` odd1 sends nothing out of its third port, as on a fibre that carries light one way.
"""

from __future__ import annotations

import json
import sys
import tempfile

from emulation import cabling, network
from emulation.control import Controller, make_plan
from emulation.sandbox import STATE_DIR
from emulation.takeover import ControllerKeeper
from scenario.load import check_scenario
from scenario.wiring import as_wired
from topologies.build import build


class DiesWhileListening(ControllerKeeper):
    """Of which the first controller is killed in the middle of its discovery."""

    killed = False

    def step(self) -> None:
        if not self.killed and self.controller.cabling()["state"] == "listening":
            self.killed = True
            self.controller.process.kill()
            self.controller.process.wait()
        super().step()


def main(text: str, sdn: str, sabotage: str = "") -> dict[str, object]:
    scenario = check_scenario(json.loads(text))
    network.make_management_bridge()
    with tempfile.TemporaryFile() as log:
        plan = make_plan(scenario, [])
        controller = Controller(plan, STATE_DIR, log, sdn, discover=True, keep_standby=sabotage == "death, standby")
        fabric = as_wired(scenario.faults, build(scenario.fabric))
        net = network.build(fabric, network.EmulatedRates(1e6, 9000, 4096))
        network.start_switches(net)
        controller.wait_confirmed()
        if sabotage == "deaf":
            switch = net.net["odd1"]
            switch.ovs("ovs-ofctl", "-O", "OpenFlow13", "mod-port", "odd1", "odd1-eth3", "no-forward")
        keeper = (DiesWhileListening if "death" in sabotage else ControllerKeeper)(controller, net.switches)
        observed = cabling.observe(net, keeper)
    tables = {}
    for switch in net.switches:
        flows = switch.ovs("ovs-ofctl", "-O", "OpenFlow13", "dump-flows", switch.name).splitlines()
        tables[switch.name] = [sum("cookie=" in flow for flow in flows), sum("0x88cc" in flow for flow in flows)]
    rules = plan.rules(build(scenario.fabric)).rules
    return {
        "observed": observed,
        "sdn": controller.status()["sdn"],
        "restarts": [restart.stood_by for restart in keeper.restarts],
        "tables": tables,
        "rules": {name: [len(found), 0] for name, found in rules.items()},
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])), flush=True)
