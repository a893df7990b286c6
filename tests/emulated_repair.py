"""Runs inside a sandbox: cables and switches fail and come back, and port counters prove where TCP goes meanwhile.

python tests/emulated_repair.py FABRIC SDN
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

from emulated_paths import Counters, check_all, listen

from emulation import network
from emulation.control import Controller, make_plan
from emulation.netns import entered
from emulation.sandbox import STATE_DIR
from emulation.takeover import replace_controller
from scenario.fabric_spec import section_from_text
from scenario.models import Scenario
from topologies.build import build
from topologies.fabric import End, Fabric
from topologies.paths import QueuePair, queue_pairs, walk_all_pairs
from topologies.routes import Failures

PAIRS = 8


def set_link(net: network.EmulatedNetwork, end: End, state: str) -> None:
    """One end of a cable up or down; the other loses or gets its carrier."""
    with entered(net.node_pid(end.node)):
        subprocess.run(["ip", "link", "set", "dev", net.fabric.port(end.node, end.port).name, state], check=True)


def wait_failures(controller: Controller, wanted: set[str], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while set(controller.status().get("failures", ())) != wanted:  # type: ignore[call-overload]
        if time.monotonic() > deadline:
            raise AssertionError(f"{controller.status().get('failures')} is not {wanted}")
        time.sleep(0.02)


def surviving(fabric: Fabric, failures: Failures, rng: random.Random) -> list[QueuePair]:
    """Some queue pairs that still have a path, those of the hurt GPUs among them."""
    pairs = [(a.name, b.name) for a in fabric.gpus for b in fabric.gpus if a is not b]
    chosen = rng.sample(pairs, min(PAIRS, len(pairs)))
    return [qp for pair in chosen for qp in queue_pairs(fabric, *pair, failures=failures)]


def failures_in_the_gap(
    net: network.EmulatedNetwork, controller: Controller, seed: int, counters: Counters, rng: random.Random
) -> tuple[list[dict[str, object]], list[object]]:
    """Cables that fail or come back while no controller is there: what each new one did, and wrong paths after it."""
    first, second = [link for link in net.fabric.links if link.tier != "access"][:2]
    set_link(net, first.a, "down")
    wait_failures(controller, {first.id})
    gaps, wrong = [], []
    for change, state, left in ((None, "", [first]), (second, "down", [first, second]), (first, "up", [second])):
        controller.process.send_signal(signal.SIGKILL)
        controller.process.wait()
        if change is not None:
            set_link(net, change.a, state)
        replace_controller(controller, net.switches)
        status = controller.wait_confirmed()
        wait_failures(controller, {link.id for link in left})
        failures = Failures.of(net.fabric, [link.id for link in left])
        wrong += check_all(net, seed, surviving(net.fabric, failures, rng), counters, failures)["wrong"]  # type: ignore[misc]
        switches: dict[str, dict[str, int]] = status["switches"]  # type: ignore[assignment]
        repairs: list[dict[str, object]] = controller.status()["repairs"]  # type: ignore[assignment]
        after: dict[str, dict[str, int]] = controller.status()["switches"]  # type: ignore[assignment]
        gaps.append(
            {
                "miscounted": [name for name, one in after.items() if one["rules_present"] != one["rules_wanted"]],
                "rules_sent": sum(found["rules_sent"] for found in switches.values()),
                "repairs": [[len(repair["before"]), len(repair["down"])] for repair in repairs],  # type: ignore[arg-type]
            }
        )
    set_link(net, second.a, "up")
    wait_failures(controller, set())
    return gaps, wrong


def uncounted(controller: Controller, repair: dict[str, int], rules_of: Mapping[str, Sequence[object]]) -> list[object]:
    """Switches of which the status counts other rules than those of the whole fabric and of the repair."""
    switches: dict[str, dict[str, int]] = controller.status()["switches"]  # type: ignore[assignment]
    return [
        (name, one["rules_wanted"], one["rules_present"], expected)
        for name, one in switches.items()
        if {one["rules_wanted"], one["rules_present"]} != {expected := len(rules_of[name]) + repair.get(name, 0)}
    ]


def main(text: str, sdn: str) -> dict[str, object]:
    scenario = Scenario(fabric=section_from_text(text))
    fabric = build(scenario.fabric)
    rng = random.Random(1)
    network.make_management_bridge()
    with tempfile.TemporaryFile() as log:
        plan = make_plan(scenario, walk_all_pairs(fabric))
        controller = Controller(plan, STATE_DIR, log, sdn)
        net = network.build(fabric, network.EmulatedRates(1e6, 9000, 4096))
        network.start_switches(net)
        controller.wait_confirmed()
        listeners = listen(net)
        counters = Counters(net)
        wrong: list[object] = []
        failed = 0
        repairer, rules_of = plan.repairer(fabric), plan.rules(fabric).rules
        for link in [link for link in fabric.links if link.tier != "access"]:
            failures = Failures.of(fabric, [link.id])
            set_link(net, link.a, "down")
            wait_failures(controller, {link.id})
            wrong += check_all(net, scenario.seed, surviving(fabric, failures, rng), counters, failures)["wrong"]  # type: ignore[misc]
            overlay = repairer.overlay(failures)
            wrong += uncounted(controller, {name: len(rules) for name, rules in overlay.rules.items()}, rules_of)
            set_link(net, link.a, "up")
            wait_failures(controller, set())
            failed += 1
        wrong += check_all(net, scenario.seed, surviving(fabric, Failures(), rng), counters)["wrong"]  # type: ignore[misc]
        repairs: list[dict[str, object]] = controller.status()["repairs"]  # type: ignore[assignment]

        # The controller dies and a new one takes over: nothing that is right is touched.
        controller.process.send_signal(signal.SIGKILL)
        controller.process.wait()
        check = check_all(net, scenario.seed, surviving(fabric, Failures(), rng), counters)
        wrong += check["wrong"]  # type: ignore[misc]
        began = time.monotonic()
        replace_controller(controller, net.switches)
        status = controller.wait_confirmed()
        takeover_s = time.monotonic() - began
        switches: dict[str, dict[str, int]] = status["switches"]  # type: ignore[assignment]
        added = {name: found["rules_sent"] for name, found in switches.items()}
        kept = {name: found["rules_kept"] for name, found in switches.items()}

        gaps, more_wrong = failures_in_the_gap(net, controller, scenario.seed, counters, rng)
        wrong += more_wrong

        # A switch dies: its paths are taken away once it has been gone for a while.
        victim = net.switches[-1]
        os.kill(victim.daemon_pid, signal.SIGKILL)
        wait_failures(controller, {victim.name})
        failures = Failures.of(fabric, [victim.name])
        check = check_all(net, scenario.seed, surviving(fabric, failures, rng), counters, failures)
        wrong += check["wrong"]  # type: ignore[misc]
        controller.close()
    return {
        "wrong": wrong,
        "links_failed": failed,
        "listeners": len(listeners),
        "repairs": len(repairs),
        "changes": sum(int(str(repair["changes"])) for repair in repairs),
        "last_barrier_ms_median": statistics.median(float(str(r["last_barrier_ms"])) for r in repairs),
        "computed_ms_median": statistics.median(float(str(r["computed_ms"])) for r in repairs),
        "takeover_s": takeover_s,
        "rules_sent": added,
        "rules_kept": kept,
        "gaps": gaps,
        "rules": {name: len(found) for name, found in plan.rules(fabric).rules.items()},
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2])), flush=True)
