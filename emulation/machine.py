"""The 5 s check of the machine: how many switch-hops a second its two or more cores can forward, by data plane.

In a sandbox: a ZCube of 8 GPUs on four switches, unshaped in effect (2 Gb/s a port), four TCP flows of full
frames at once. Packets that the switches sent, ACKs included, per second at saturation, times `SAFE_SHARE`, is the
budget that a run may use: beyond about that share emulated queues follow the scheduler rather than the traffic.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from emulation import network, priority, sockbuf
from emulation.control import Controller, make_plan
from emulation.kernel_routes import kernel_routes
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
#: `fabric.switch` -> what forwards.
PLANES = {"ovs": "Open vSwitch", "linux": "the kernel"}


@dataclass(frozen=True)
class Machine:
    """`hops_per_s` at saturation; `budget_hops_per_s` is what a run may use."""

    hops_per_s: float
    bringup_s: float

    @property
    def budget_hops_per_s(self) -> float:
        """The packet budget of a run."""
        return SAFE_SHARE * self.hops_per_s


_MEASURED: dict[tuple[int, str], Machine] = {}


def measure(frame_bytes: int, folder: Path, progress: Progress, switch: str = "ovs") -> Machine:
    """Check this machine in a sandbox, with the data plane `fabric.switch`; its log goes to `folder`. The answer is
    kept while this process lives. Raises MachineError, RunError or KeyboardInterrupt."""
    if (frame_bytes, switch) not in _MEASURED:
        _MEASURED[frame_bytes, switch] = _measure(frame_bytes, folder, progress, switch)
    return _MEASURED[frame_bytes, switch]


def measure_all(frame_bytes: int, folder: Path, progress: Progress, switches: Iterable[str]) -> dict[str, Machine]:
    """`measure` for several data planes, each once."""
    return {switch: measure(frame_bytes, folder, progress, switch) for switch in dict.fromkeys(switches)}


def _measure(frame_bytes: int, folder: Path, progress: Progress, switch: str) -> Machine:
    require_machine()
    found: dict[str, object] = {}

    def hear(message: dict[str, object]) -> None:
        found.update(message)
        progress(message)

    create_folder(folder)
    what = PLANES[switch]
    progress({"phase": f"checking how many packets a second {what} can forward, some 5 s"})
    if sandboxed(["-m", "emulation.machine", str(frame_bytes), switch], folder, hear):
        raise KeyboardInterrupt
    return Machine(float(str(found["hops_per_s"])), float(str(found["bringup_s"])))


def _check(frame_bytes: int, switch: str) -> Mapping[str, float]:
    """Inside the sandbox."""
    began = time.monotonic()
    scenario = Scenario(
        fabric=FabricSection(kind="zcube", gpus=8, gpus_per_switch=4, gpus_per_server=4, switch=switch)
    )
    fabric = build(scenario.fabric)
    rates = network.EmulatedRates(1e7, frame_bytes, 4096)
    with contextlib.ExitStack() as left:
        if switch == "linux":
            net = network.build(fabric, rates, "linux")
            network.start_switches(net, kernel_routes(fabric, make_plan(scenario, []).rules(fabric)))
        else:
            network.make_management_bridge()
            log = left.enter_context(tempfile.TemporaryFile())
            controller = Controller(make_plan(scenario, []), STATE_DIR, log)
            left.callback(controller.close)
            net = network.build(fabric, rates)
            network.start_switches(net)
            controller.wait_confirmed()
        return _saturated(net, time.monotonic() - began)


def _saturated(net: EmulatedNetwork, bringup_s: float) -> Mapping[str, float]:
    fabric = net.fabric
    processes = []
    daemons = [switch.daemon_pid for switch in net.switches]
    priority.favour(daemons, priority.SWITCHES)  # as in a run
    priority.favour([os.getpid()], priority.AGENTS)
    for src, dst in ((1, 5), (2, 6), (3, 7), (4, 8)):
        address = str(fabric.gpus[dst - 1].ports[1].ip)
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        processes.append(net.net[f"gpu{dst}"].popen(["iperf3", "-s", "-1", "-B", address], **quiet))
        time.sleep(0.1)
        processes.append(net.net[f"gpu{src}"].popen(["iperf3", "-c", address, "-t", "30", "-C", "reno"], **quiet))
    time.sleep(0.5)
    for pid in daemons:  # as in a run
        sockbuf.deepen(pid)
    time.sleep(0.3)
    first, t0 = _sent_packets(net), time.monotonic()
    time.sleep(_SECONDS)
    second, t1 = _sent_packets(net), time.monotonic()
    for process in processes:
        process.kill()
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
    print(json.dumps(_check(int(sys.argv[1]), sys.argv[2])), flush=True)
