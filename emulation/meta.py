"""meta.json: what the numbers were made with. Kept with the data, since it decides how far they can be compared."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from emulation import mooncake, mooncake_extra
from emulation.netns import read_sysctls
from emulation.network import HOST_SYSCTLS, OFFLOADS_OFF, EmulatedNetwork
from results.schema import SCHEMA_VERSION
from scenario.identity import scenario_sha256, workload_sha256
from scenario.models import Scenario
from scenario.scale import Scale

DATAPATHS = {
    "ovs": "netdev (userspace), one Open vSwitch per switch",
    "linux": "the kernel's IP forwarding, one network namespace per switch, static routes",
}


def collect(
    scenario: Scenario,
    scale: Scale,
    network: EmulatedNetwork,
    *,
    start_ns: int,
    window_s: tuple[float, float],
) -> dict[str, object]:
    """The whole of meta.json. `window_s` is the stretch of model time over which throughput is counted."""
    some_gpu = network.fabric.gpus[0]
    some_switch = network.fabric.switches[0]
    return {
        "schema_version": SCHEMA_VERSION,
        "zcube_version": metadata.version("zcube-testbed"),
        "executor": "emulation",
        "name": scenario.name,
        "scenario_sha256": scenario_sha256(scenario),
        "workload_sha256": workload_sha256(scenario),
        "seed": scenario.seed,
        "started_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "data_plane": network.data_plane,
        "ovs_version": _first_line(["ovs-vswitchd", "--version"]) if network.data_plane == "ovs" else None,
        "mininet": _mininet_version(),
        "python": platform.python_version(),
        "cpu_model": cpu_model(),
        "cores": os.cpu_count(),
        "scale": scale.to_meta(),
        "shape": scenario.serving.shape,
        "layout": scenario.serving.layout,
        "striping": scenario.routing.striping,
        "bundle": scenario.fabric.bundle if scenario.fabric.kind == "zcube" else None,
        "policy": scenario.policy,
        "transport": scenario.transport.kind,
        "mooncake_version": mooncake_extra.version() if scenario.transport.kind == "mooncake" else None,
        "congestion_control": "swift" if scenario.transport.kind == "udp" else scenario.transport.congestion_control,
        "inflight_cap_frames": scenario.transport.inflight_cap_frames,
        "queue_limit_frames": {
            "nic": network.queue_limit_frames(some_gpu.name),
            **{switch.tier: network.queue_limit_frames(switch.name) for switch in network.fabric.switches},
        },
        "qdiscs": {
            "kind": "tbf",
            "nic": str(network.shapes[network.node_pid(some_gpu.name)][0]),
            "switch": str(network.shapes[network.node_pid(some_switch.name)][-1]),
        },
        "offloads": " ".join(OFFLOADS_OFF),
        "datapath": DATAPATHS[network.data_plane],
        "sysctls": read_sysctls(network.node_pid(some_gpu.name), sorted({*HOST_SYSCTLS, *mooncake.SYSCTLS})),
        "t0_monotonic_s": start_ns / 1e9,
        "window": {"t_start_s": window_s[0], "t_end_s": window_s[1]},
        "bringup_wall_s": dict(network.bringup_wall_s),
    }


def cpu_model() -> str:
    """The processor's name as the kernel gives it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _first_line(argv: list[str]) -> str:
    lines = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines()
    return lines[0] if lines else "unknown"


def _mininet_version() -> str:
    from mininet.net import VERSION

    return str(VERSION)
