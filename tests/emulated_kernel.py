"""Runs inside a sandbox: the kernel as the data plane. Proves by port counters that TCP of every GPU pair takes exactly
the planned path, and reads routes, sysctls and shaping back.

    python tests/emulated_kernel.py FABRIC [SABOTAGE]     (an `ip` command line that one switch gets)
"""

from __future__ import annotations

import json
import sys

from emulated_paths import Counters, check_all, listen

from controller.rules import rules
from emulation import kernel_switch, network, shaping
from emulation.kernel_routes import kernel_routes
from emulation.netns import Batch, inside, read_sysctls
from scenario.fabric_spec import section_from_text
from topologies.build import build
from topologies.paths import walk_all_pairs

SEED = 1


def main(text: str, sabotage: str = "") -> dict[str, object]:
    fabric = build(section_from_text(text))
    net = network.build(fabric, network.EmulatedRates(1e6, 9000, 4096), "linux")
    planned = kernel_routes(fabric, rules(fabric, seed=SEED, planned=walk_all_pairs(fabric)))
    network.start_switches(net, planned)
    first = net.kernel_switches[0]
    if sabotage:
        batch = Batch()
        batch.start(inside(first.pid, ["ip", *sabotage.split()]))
        batch.finish()
    differing = kernel_switch.read_back(net.kernel_switches)
    lost = net.net.ping(net.net.hosts[:6], timeout="5")
    listeners = listen(net)
    checked = check_all(net, SEED, walk_all_pairs(fabric), Counters(net), most_wrong=1 if sabotage else 5)
    return {
        **checked,
        "pings_lost": lost,
        "listeners": len(listeners),
        "differing": differing,
        "unshaped": shaping.read_back(net.shapes),
        "dropped": sum(kernel_switch.dropped(switch.pid) for switch in net.kernel_switches),
        "sysctls": read_sysctls(first.pid, ["net/ipv4/ip_forward", "net/ipv4/fib_multipath_hash_policy"]),
        "controllers": len(net.net.controllers) + len(net.switches),
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])), flush=True)
