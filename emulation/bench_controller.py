"""`make bench`: the controller, measured on real Open vSwitch instances: rules, repairs, memory, discovery, takeover.

Each measurement has a sandbox of its own. For rules and repairs the fabric is built without GPUs: all switches are
there, one Open vSwitch each, with all of their ports and cables; a port towards a GPU hangs on an idle interface with
carrier. A switch does not see the difference, since no traffic is sent, and 32 switches of a 256-GPU fabric fit on a
small machine. Discovery has all GPUs, which announce themselves.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.table import Table

from controller.plan import Plan
from emulation import cabling, network
from emulation.control import Controller, make_plan
from emulation.meta import cpu_model
from emulation.netns import Batch, entered, inside, write_sysctls
from emulation.network import SWITCH_SYSCTLS, EmulatedNetwork
from emulation.sandbox import STATE_DIR, Sandbox, require_machine
from emulation.takeover import ControllerKeeper, replace_controller
from scenario.errors import RunError, TestbedError
from scenario.fabric_spec import section_from_text
from scenario.models import Scenario
from topologies.build import build
from topologies.cabling_model import planned_cables
from topologies.cabling_verify import verify
from topologies.fabric import End, Fabric
from topologies.paths import walk_all_pairs

SEED = 1
PUSHES, FAILURES, DISCOVERIES, TAKEOVERS = 5, 20, 5, 3
LARGE = "zcube:gpus=256,asic_ports=16"
MIDDLE = ("zcube:gpus=64,asic_ports=16", "roft:gpus=64,asic_ports=16")
SMALL = "zcube:gpus=32"
LIBRARIES = ("ryu", "os-ken")
MAX_PUSH_S, MAX_REPAIR_MS, MAX_MEMORY_MB, MAX_DISCOVERY_S, MAX_TAKEOVER_S = 3.0, 200.0, 150.0, 1.0, 3.0
#: How long a repair may take before the measurement gives up.
_REPAIR_TIMEOUT_S = 10.0
#: 400 Gb/s become 400 Mb/s: nothing is sent.
_BPS_PER_GBPS, _FRAME_BYTES, _BUFFER_FRAMES = 1e6, 9000, 4096


def without_gpus(fabric: Fabric) -> Fabric:
    """The switches of a fabric with all of their ports, and the cables between them."""
    return replace(fabric, gpus=(), links=tuple(link for link in fabric.links if link.tier != "access"))


def _bring_up(wired: Fabric) -> EmulatedNetwork:
    network.make_management_bridge()
    write_sysctls(os.getpid(), SWITCH_SYSCTLS)
    net = network.build(wired, network.EmulatedRates(_BPS_PER_GBPS, _FRAME_BYTES, _BUFFER_FRAMES))
    loose = sum((owner.name, port.number) not in wired.link_at for owner in wired.nodes for port in owner.ports)
    lines = "".join(f"link set u{number} up\n" for number in range(1, loose + 1))  # carrier, as of a GPU that is there
    subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True)
    return net


def _plan(text: str, planned: bool) -> tuple[Fabric, Plan]:
    scenario = Scenario(fabric=section_from_text(text), seed=SEED)
    fabric = build(scenario.fabric)
    return fabric, make_plan(scenario, walk_all_pairs(fabric) if planned else [])


def measure_pushes(text: str, sdn: str, log: IO[bytes]) -> dict[str, Any]:
    """Push all rules to empty switches, PUSHES times, by a new controller each time, to which the switches are told to
    connect when it listens, as in a takeover. (Left alone they would come as their own attempts are due, over 8 s.)

    `push_s`: first connection to last barrier; `from_start_s`: start of the controller's process to last barrier;
    `memory_mb`: largest resident memory of its process.
    """
    fabric, plan = _plan(text, planned=False)
    found: dict[str, Any] = {"push_s": [], "from_start_s": [], "memory_mb": [], "switches": len(fabric.switches)}
    net = _bring_up(without_gpus(fabric))
    network.start_switches(net)
    controller = Controller(plan, STATE_DIR, log, sdn)
    controller.wait_confirmed()
    for _ in range(PUSHES):
        _empty(net)
        controller.close()
        began = time.monotonic()
        replace_controller(controller, net.switches)
        status = controller.wait_confirmed()
        switches: list[dict[str, Any]] = list(status["switches"].values())  # type: ignore[attr-defined]
        last = max(switch["confirmed_monotonic_s"] for switch in switches)
        found["push_s"].append(last - min(switch["connected_monotonic_s"] for switch in switches))
        found["from_start_s"].append(last - began)
        found["memory_mb"].append(_peak_memory_mb(controller.process.pid))
        found["rules"] = sum(switch["rules_sent"] for switch in switches)
    controller.close()
    return found


def _empty(net: EmulatedNetwork) -> None:
    for command in ("del-flows", "del-groups"):
        batch = Batch()
        for switch in net.switches:
            argv = ["ovs-ofctl", "-O", "OpenFlow13", command, switch.name]
            batch.start(inside(switch.pid, argv), env=switch.environment)
        batch.finish()


def _peak_memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RunError(f"process {pid} does not tell its largest resident memory (VmHWM)")


def measure_repairs(text: str, sdn: str, log: IO[bytes]) -> dict[str, Any]:
    """Let FAILURES different cables between switches fail, one at a time; all pairs of GPUs have planned queue pairs.

    `repair_ms`: first PORT_STATUS at the controller to last barrier; `recovery_ms`: the same when the cable is back.
    """
    fabric, plan = _plan(text, planned=True)
    net = _bring_up(without_gpus(fabric))
    controller = Controller(plan, STATE_DIR, log, sdn)
    network.start_switches(net)
    controller.wait_confirmed(60)
    cables = random.Random(SEED).sample(net.fabric.links, FAILURES)
    for number, link in enumerate(cables):
        for count, state in ((2 * number + 1, "down"), (2 * number + 2, "up")):
            _set_link(net, link.a, state)
            _await_repairs(controller, count)
    repairs: list[dict[str, Any]] = controller.status()["repairs"]  # type: ignore[assignment]
    controller.close()
    return {
        "repair_ms": [repair["last_barrier_ms"] for repair in repairs if repair["down"]],
        "recovery_ms": [repair["last_barrier_ms"] for repair in repairs if not repair["down"]],
        "changes": [repair["changes"] for repair in repairs if repair["down"]],
        "rules": plan.rules(fabric).rule_count,
        "switches": len(fabric.switches),
    }


def _set_link(net: EmulatedNetwork, end: End, state: str) -> None:
    with entered(net.node_pid(end.node)):
        subprocess.run(["ip", "link", "set", "dev", net.fabric.port(end.node, end.port).name, state], check=True)


def _await_repairs(controller: Controller, count: int) -> None:
    deadline = time.monotonic() + _REPAIR_TIMEOUT_S
    while len(controller.status().get("repairs", ())) < count:  # type: ignore[arg-type]
        if time.monotonic() > deadline:
            raise RunError(f"repair {count} did not end within {_REPAIR_TIMEOUT_S:.0f} s; is the machine very busy?")
        time.sleep(0.02)


def measure_discovery(text: str, sdn: str, log: IO[bytes]) -> dict[str, Any]:
    """Discover the cabling DISCOVERIES times, by a new controller each time; `discovery_s` from all rules confirmed."""
    fabric, plan = _plan(text, planned=False)
    net = _bring_up(fabric)
    network.start_switches(net)
    found: dict[str, Any] = {"discovery_s": [], "cables": len(fabric.links)}
    for _ in range(DISCOVERIES):
        controller = Controller(plan, STATE_DIR, log, sdn, discover=True)
        status = controller.wait_confirmed()
        content = cabling.observe(net, ControllerKeeper(controller, net.switches))
        found["discovery_s"].append(time.monotonic() - float(str(status["confirmed_monotonic_s"])))
        if not verify(planned_cables(fabric), cabling.sightings(content), "both").clean:
            raise RunError("the discovered cabling is not the planned one")
        controller.close()
        for path in STATE_DIR.glob("controller-*.json"):
            path.unlink()
    return found


def measure_takeovers(text: str, sdn: str, log: IO[bytes]) -> dict[str, Any]:
    """Kill the controller TAKEOVERS times, as a run would find it; `takeover_s` from the end noticed to all rules
    confirmed to the next, which stood by. Raises RunError when it sent a rule: all were right."""
    fabric, plan = _plan(text, planned=False)
    net = _bring_up(without_gpus(fabric))
    controller = Controller(plan, STATE_DIR, log, sdn, keep_standby=True)
    network.start_switches(net)
    controller.wait_confirmed()
    keeper = ControllerKeeper(controller, net.switches)
    for _ in range(TAKEOVERS):
        time.sleep(1)  # the next one has to be ready
        controller.process.kill()
        controller.process.wait()
        keeper.finish()
    if any(each.rules_sent or not each.stood_by for each in keeper.restarts):
        raise RunError(f"a takeover sent rules, or was not by a standby: {keeper.restarts}")
    controller.close()
    return {"takeover_s": [each.quiet_s for each in keeper.restarts], "rules": keeper.restarts[0].rules_kept}


MEASUREMENTS: dict[str, Callable[[str, str, IO[bytes]], dict[str, Any]]] = {
    "pushes": measure_pushes,
    "repairs": measure_repairs,
    "discovery": measure_discovery,
    "takeovers": measure_takeovers,
}


def _sandboxed(what: str, text: str, sdn: str) -> dict[str, Any]:
    with tempfile.TemporaryFile() as log:
        with Sandbox(["-m", "emulation.bench_controller", what, text, sdn], stderr=log) as sandbox:
            assert sandbox.process.stdout is not None
            output = sandbox.process.stdout.read()
            code = sandbox.wait(10)
        if code:
            log.seek(0)
            last = "\n".join(log.read().decode(errors="replace").strip().splitlines()[-5:])
            raise RunError(f"{what} on {text} with {sdn} could not be measured (status {code}):\n{last}")
    found: dict[str, Any] = json.loads(output)
    return found


def bench(console: Console) -> int:
    """Measure and print one table. Returns 1 when a goal is missed."""
    require_machine()
    table = Table("figure", "goal", "measured: median [worst]", "n")
    missed: list[str] = []

    def row(figure: str, goal: float | None, unit: str, values: list[float], judged: float | None = None) -> None:
        middle, worst = statistics.median(values), max(values)
        limit = "" if goal is None else f"< {goal:g} {unit}"
        if goal is not None and (middle if judged is None else judged) >= goal:
            missed.append(figure)
        table.add_row(figure, limit, f"{middle:,.3g} [{worst:,.3g}] {unit}", str(len(values)))

    for sdn in LIBRARIES:
        found = _sandboxed("pushes", LARGE, sdn)
        name = f"{sdn}, {LARGE}: {found['rules']:,} rules, {found['switches']} switches"
        row(f"{name}, first connection to last barrier", MAX_PUSH_S, "s", found["push_s"], max(found["push_s"]))
        row(f"{sdn}, the same from the start of the controller's process", None, "s", found["from_start_s"])
        row(f"{sdn}, memory of the controller, peak", MAX_MEMORY_MB, "MB", found["memory_mb"], max(found["memory_mb"]))
    for text in MIDDLE:
        found = _sandboxed("repairs", text, LIBRARIES[0])
        name = f"{text}, {found['rules']:,} rules"
        row(f"{name}: a cable fails, PORT_STATUS to last barrier", MAX_REPAIR_MS, "ms", found["repair_ms"])
        row(f"{text}: it comes back", None, "ms", found["recovery_ms"])
        row(f"{text}: rules and groups changed by a failure", None, "changes", found["changes"])
    found = _sandboxed("discovery", SMALL, LIBRARIES[0])
    name = f"{SMALL}: {found['cables']} cables discovered by LLDP, from all rules confirmed"
    row(name, MAX_DISCOVERY_S, "s", found["discovery_s"], max(found["discovery_s"]))
    for sdn in LIBRARIES:
        found = _sandboxed("takeovers", SMALL, sdn)
        name = f"{sdn}, {SMALL}: {found['rules']} rules, controller killed, to all rules confirmed to the next"
        row(name, MAX_TAKEOVER_S, "s", found["takeover_s"], max(found["takeover_s"]))
    console.print(table)
    console.print(
        f"Controller, seed {SEED}, {cpu_model()}, {os.cpu_count()} cores. Open vSwitch in userspace, one instance a"
        " switch. Rules and repairs without GPU hosts: every switch with all of its ports and cables, those towards"
        " GPUs on idle interfaces. Rules go to empty switches, which are told to connect at one moment. Judged by the"
        " worst, repairs by the median."
    )
    for figure in missed:
        console.print(f"MISSED: {figure}. Is the machine busy with something else?")
    return 1 if missed else 0


def main(argv: list[str]) -> int:
    """Without arguments the table; with WHAT FABRIC SDN one measurement, inside a sandbox."""
    if argv:
        print(json.dumps(MEASUREMENTS[argv[0]](argv[1], argv[2], sys.stderr.buffer)), flush=True)
        return 0
    return bench(Console(width=None if sys.stdout.isatty() else 120))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except TestbedError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
