"""Part of `make bench`: what the traffic agents cost: CPU at a given rate, and their overhead on a long handoff.

    python -m emulation.bench_agents          both transports, and mooncake where that extra is installed

One ROFT of 32 GPUs in 8 servers is brought up in a sandbox for each transport. For the CPU share eight GPUs, one a
server, send at line rate without a pause to another GPU of their leaf, so that the rates add up to `AGGREGATE_MBPS` on
the wire; the agents' CPU time is their processes' own. For the overhead single handoffs of `LONE_FRAMES` frames go over
the idle fabric, with pauses in which the shapers' buckets fill; their time is held against that of their bytes with
headers at line rate, less the burst of two frames that a shaper lets through at once. Last, a TCP and a UDP queue pair
send into one port, and their shares are told. What mooncake costs is told and has no goal: its threads are not ours.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from emulation import network, sockbuf
from emulation.agents import AgentPool
from emulation.control import Controller, make_plan
from emulation.meta import cpu_model
from emulation.mooncake import MooncakePool
from emulation.mooncake_extra import problem
from emulation.sandbox import STATE_DIR, Sandbox, require_machine
from emulation.shaping import port_shape
from scenario.errors import RunError, TestbedError
from scenario.fabric_spec import section_from_text
from scenario.models import RoutingSection, Scenario, TransportSection
from scenario.scale import Scale
from topologies.build import build

KINDS, EXTRA = ("tcp", "udp"), "mooncake"
FABRIC = "roft:gpus=32"
AGGREGATE_MBPS, SENDERS, LOADED_S = 200, 8, 6.0
FRAMES, LONE_FRAMES, LONE_HANDOFFS, PAUSE_S = 200, 100, 15, 0.05
MAX_CPU_SHARE, MAX_OVERHEAD = 0.25, 0.01
FRAME_BYTES, BUFFER_FRAMES = 9000, 4096
SHARES, SHARED_FRAMES, SHARED_S = "shares", 50, 12.0
#: One GPU sends at AGGREGATE_MBPS / SENDERS.
SCALE = Scale(AGGREGATE_MBPS / SENDERS * 1e6 / 400e9, 1.0, FRAME_BYTES)


def pairs_of(count: int) -> list[tuple[str, str]]:
    """Rank 0 of each server to that of the next on its leaf (four servers a leaf): no cable has two senders."""
    return [(f"gpu{4 * n + 1}", f"gpu{4 * (n // 4 * 4 + (n + 1) % 4) + 1}") for n in range(count)]


@dataclass
class _Bench:
    """The fabric, and pools of agents on it."""

    log: Any
    planned: Sequence[tuple[str, str]]

    def __post_init__(self) -> None:
        scenario = self._scenario("udp")
        self.fabric = build(scenario.fabric)
        pairs = [qp for pair in self.planned for qp in scenario.paths.queue_pairs(self.fabric, *pair)]
        network.make_management_bridge()
        self.controller = Controller(make_plan(scenario, pairs), STATE_DIR, self.log)
        self.net = network.build(self.fabric, network.EmulatedRates(SCALE.rate_bps(1), FRAME_BYTES, BUFFER_FRAMES))
        network.start_switches(self.net)
        self.controller.wait_confirmed()
        os.setpriority(os.PRIO_PROCESS, 0, -15)  # as in a run

    def _scenario(self, kind: str) -> Scenario:
        transport = TransportSection.model_validate({"kind": kind})
        striping = RoutingSection(striping="static" if kind == EXTRA else "adaptive")
        return Scenario(fabric=section_from_text(FABRIC), transport=transport, routing=striping)

    def pool(self, kind: str, pairs: Sequence[tuple[str, str]]) -> AgentPool:
        scenario = self._scenario(kind)
        queue_pairs = [qp for pair in pairs for qp in scenario.paths.queue_pairs(self.fabric, *pair)]
        return (MooncakePool if kind == EXTRA else AgentPool)(self.net, queue_pairs, SCALE, scenario, self.log)

    def deepen(self) -> None:
        """Give the sockets of switches that have forwarded the buffers of a run, or they would drop."""
        for switch in self.net.switches:
            sockbuf.deepen(switch.daemon_pid)


class _Load:
    """Two handoffs always under way on each pair of a pool: the next one waits while one is sent."""

    def __init__(self, pool: AgentPool, pairs: Sequence[tuple[str, str]], payload: int) -> None:
        self.pool, self.payload, self.ended = pool, payload, 0
        self._pair_of: dict[int, tuple[str, str]] = {}
        self._number = 0
        for pair in (*pairs, *pairs):
            self._send(pair)

    def _send(self, pair: tuple[str, str]) -> None:
        self._number += 1
        self._pair_of[self._number] = pair
        self.pool.send(self._number, *pair, self.payload)

    def step(self, timeout_s: float) -> None:
        for done in self.pool.poll(timeout_s):
            self.ended += 1
            self._send(self._pair_of.pop(done.transfer_id))

    def mbps(self, seconds: float) -> float:
        """On the wire, of handoffs that ended."""
        return self.ended * SCALE.wire_bytes(self.payload) * 8 / seconds / 1e6


def resident_mb(pid: int) -> float:
    """What a process has in memory (VmRSS)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def measure(kind: str, log: Any) -> dict[str, Any]:
    """One transport: see the module."""
    pairs = pairs_of(SENDERS)
    bench = _Bench(log, pairs)
    pool = bench.pool(kind, pairs)
    payload = FRAMES * SCALE.mss_bytes
    burst_bytes = port_shape("", 1, FRAME_BYTES, 1).burst_bytes
    lone_payload = LONE_FRAMES * SCALE.mss_bytes
    ideal_s = (SCALE.wire_bytes(lone_payload) - burst_bytes) * 8 / SCALE.rate_bps(400)
    for pair in pairs:
        pool.transfer_alone(*pair, payload // 10, 30)
    bench.deepen()
    lone = []
    for _ in range(LONE_HANDOFFS):
        time.sleep(PAUSE_S)
        lone.append(pool.transfer_alone(*pairs[0], lone_payload, 30) / ideal_s - 1)
    before, began = pool.statistics(), time.monotonic()
    load = _Load(pool, pairs, payload)
    while time.monotonic() - began < LOADED_S:
        load.step(0.5)
    elapsed, after = time.monotonic() - began, pool.statistics()
    memory_mb = statistics.median(resident_mb(process.pid) for process in pool.agents.processes)
    pool.close()
    bench.controller.close()
    return {
        "memory_mb": memory_mb,
        "processes": len(pool.agents.processes),
        "cpu_share": (after["cpu_s"] - before["cpu_s"]) / elapsed,
        "kernel_share": (after["kernel_s"] - before["kernel_s"]) / elapsed,
        "mbps": load.mbps(elapsed),
        "overhead": statistics.median(lone),
        "resent": after["retransmits"],
        "verified": pool.verified,
        "complaints": pool.complaints,
    }


def measure_shares(log: Any) -> dict[str, float]:
    """One queue pair of each transport into the same GPU port, both always busy: rates on the wire in Mb/s."""
    pairs = {"tcp": ("gpu1", "gpu9"), "udp": ("gpu5", "gpu9")}  # one leaf
    bench = _Bench(log, list(pairs.values()))
    pools = {kind: bench.pool(kind, [pair]) for kind, pair in pairs.items()}
    for kind, pool in pools.items():
        pool.transfer_alone(*pairs[kind], SCALE.mss_bytes, 30)
    bench.deepen()
    loads = {kind: _Load(pool, [pairs[kind]], SHARED_FRAMES * SCALE.mss_bytes) for kind, pool in pools.items()}
    began = time.monotonic()
    while time.monotonic() - began < SHARED_S:
        for load in loads.values():
            load.step(0.01)
    elapsed = time.monotonic() - began
    for pool in pools.values():
        pool.close()
    bench.controller.close()
    return {kind: load.mbps(elapsed) for kind, load in loads.items()}


def _in_sandbox(kind: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="zcube-bench-") as folder:
        log_path = Path(folder) / "log"
        with (
            open(log_path, "wb") as log,
            Sandbox(["-m", "emulation.bench_agents", kind], stderr=log) as sandbox,
        ):
            assert sandbox.process.stdout is not None
            output = sandbox.process.stdout.read()
            if sandbox.wait(30):
                raise RunError(f"the measurement of {kind} failed: {log_path.read_text()[-1500:]}")
    found: dict[str, Any] = json.loads(output)
    return found


def table(console: Console) -> bool:
    """Measure the transports and print a table; True when every goal was met."""
    require_machine()
    kinds = KINDS if problem() else (*KINDS, EXTRA)
    found = {kind: _in_sandbox(kind) for kind in kinds}
    shares = _in_sandbox(SHARES)
    shown = Table("traffic agents", "goal", *kinds)
    for name, goal, text in (
        ("processes for 32 GPUs, 8 of them busy", "at most 8", "{processes}"),
        ("CPU at the rate below, of a core, all agents", f"< {MAX_CPU_SHARE:.0%}", "{cpu_share:.1%}"),
        ("of which in the kernel", "", "{kernel_share:.1%}"),
        ("rate on the wire, Mb/s", f"about {AGGREGATE_MBPS}", "{mbps:.0f}"),
        (f"overhead on a handoff of {LONE_FRAMES} frames", f"< {MAX_OVERHEAD:.0%}", "{overhead:+.2%}"),
        ("memory of a process, MB", "", "{memory_mb:.0f}"),
        ("packets sent again", "0", "{resent:.0f}"),
        ("transfers verified", "all", "{verified}"),
    ):
        shown.add_row(name, goal, *(text.format(**found[kind]) for kind in kinds))
    console.print(shown)
    total = sum(shares.values())
    told = ", ".join(f"{kind} {mbps / total:.0%}" for kind, mbps in shares.items())
    console.print(
        f"one queue pair of each into one port of {SCALE.rate_bps(400) / 1e6:g} Mb/s: {told} of {total:.1f} Mb/s"
    )
    console.print(f"{cpu_model()}, {os.cpu_count()} cores; {SENDERS} senders, {LOADED_S:g} s, {FRAME_BYTES} B frames")
    return all(
        one["cpu_share"] < MAX_CPU_SHARE and one["overhead"] < MAX_OVERHEAD and not one["complaints"]
        for one in (found[kind] for kind in KINDS)
    )


def main(argv: list[str]) -> int:
    """Without arguments the table; with a transport its measurement, inside the sandbox."""
    if argv:
        log = sys.stderr.buffer
        print(json.dumps(measure_shares(log) if argv[0] == SHARES else measure(argv[0], log)), flush=True)
        return 0
    try:
        table(Console(width=None if sys.stdout.isatty() else 120))
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
