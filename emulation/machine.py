"""The 5 s check of the machine: how many switch-hops a second its two or more cores can forward.

In a sandbox: a ZCube of 8 GPUs on four Open vSwitches, unshaped in effect (2 Gb/s a port), four TCP flows of full
frames at once. Packets that the switches sent, ACKs included, per second at saturation, times `SAFE_SHARE`, is the
budget that a run may use: beyond about that share emulated queues follow the scheduler rather than the traffic.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from emulation import network, priority, sockbuf
from emulation.control import Controller, make_plan
from emulation.launch import Progress, sandboxed
from emulation.network import EmulatedNetwork
from emulation.qdisc_dump import QdiscDump, decode
from emulation.sandbox import STATE_DIR, require_machine
from results.writer import create_folder
from scenario.models import FabricSection, Scenario
from topologies.build import build

#: Share of the saturated rate that is used; see docs/fidelity.md for the runs it comes from.
SAFE_SHARE = 0.35
_SECONDS = 2.0


@dataclass(frozen=True)
class Machine:
    """`hops_per_s` at saturation; `budget_hops_per_s` is what a run may use."""

    hops_per_s: float
    bringup_s: float

    @property
    def budget_hops_per_s(self) -> float:
        """The packet budget of a run."""
        return SAFE_SHARE * self.hops_per_s


def measure(frame_bytes: int, folder: Path, progress: Progress) -> Machine:
    """Check this machine in a sandbox; its log goes to `folder`. Raises MachineError, RunError or KeyboardInterrupt."""
    require_machine()
    found: dict[str, object] = {}

    def hear(message: dict[str, object]) -> None:
        found.update(message)
        progress(message)

    create_folder(folder)
    progress({"phase": "checking how many packets a second its switches can forward, some 5 s"})
    if sandboxed(["-m", "emulation.machine", str(frame_bytes)], folder, hear):
        raise KeyboardInterrupt
    return Machine(float(str(found["hops_per_s"])), float(str(found["bringup_s"])))


def _check(frame_bytes: int) -> Mapping[str, float]:
    """Inside the sandbox."""
    began = time.monotonic()
    scenario = Scenario(fabric=FabricSection(kind="zcube", gpus=8, gpus_per_switch=4, gpus_per_server=4))
    fabric = build(scenario.fabric)
    network.make_management_bridge()
    with tempfile.TemporaryFile() as log:
        controller = Controller(make_plan(scenario, []), STATE_DIR, log)
        net = network.build(fabric, network.EmulatedRates(1e7, frame_bytes, 4096))
        network.start_switches(net)
        controller.wait_confirmed()
    bringup_s = time.monotonic() - began
    processes = []
    priority.favour([switch.daemon_pid for switch in net.switches], priority.SWITCHES)  # as in a run
    priority.favour([os.getpid()], priority.AGENTS)
    for src, dst in ((1, 5), (2, 6), (3, 7), (4, 8)):
        address = str(fabric.gpus[dst - 1].ports[1].ip)
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        processes.append(net.net[f"gpu{dst}"].popen(["iperf3", "-s", "-1", "-B", address], **quiet))
        time.sleep(0.1)
        processes.append(net.net[f"gpu{src}"].popen(["iperf3", "-c", address, "-t", "30", "-C", "reno"], **quiet))
    time.sleep(0.5)
    for switch in net.switches:  # as in a run
        sockbuf.deepen(switch.daemon_pid)
    time.sleep(0.3)
    first, t0 = _sent_packets(net), time.monotonic()
    time.sleep(_SECONDS)
    second, t1 = _sent_packets(net), time.monotonic()
    for process in processes:
        process.kill()
    controller.close()
    return {"hops_per_s": (second - first) / (t1 - t0), "bringup_s": bringup_s}


def _sent_packets(net: EmulatedNetwork) -> int:
    total = 0
    for switch in net.fabric.switches:
        dump = QdiscDump(net.node_pid(switch.name))
        data = dump.read()
        layout = dump.layout(data)
        total += sum(int(decode(data, layout, port.name)["packets"].item()) for port in switch.ports)
    return total


if __name__ == "__main__":
    print(json.dumps(_check(int(sys.argv[1]))), flush=True)
