"""The demo's workload on larger fabrics: does the sign of the comparison hold as the scale grows?

    python -m simulation.at_scale --gpus 1024 --seeds 10

Each seed is a draw of the sessions and of every hash. Per arm: the mean and the 99th percentile of handoff times
(request of the send to arrival), and the mean TTFT; then the difference to the first arm, seed by seed, with a 95 %
interval over seeds (Student's t). Runs are independent and go to as many processes as there are cores.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenario.errors import TestbedError
from scenario.load import load_scenario, with_changes
from scenario.models import Scenario
from simulation.run import Model, no_collection, simulate
from topologies.fabric import FabricError

EXPERIMENT = Path(__file__).resolve().parent.parent / "experiments" / "coding-agent.yaml"
#: GPUs -> ports of a switch. Requests grow with the GPUs, so that each sees as much.
ASIC_PORTS = {32: 8, 64: 16, 256: 64, 1024: 64, 4096: 128, 16384: 512}
REQUESTS_A_GPU = 2
#: Two-sided 95 % quantiles of Student's t by degrees of freedom (NIST handbook, 1.3.6.7.2).
_T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


@dataclass(frozen=True)
class Figures:
    """Of one run: milliseconds, and how many handoffs crossed the fabric."""

    handoffs: int
    mean_ms: float
    p99_ms: float
    ttft_ms: float


def arms(gpus: int) -> dict[str, dict[str, Any]]:
    """Label -> what it changes in the scenario. The first is what the others are compared with."""
    roft = {"kind": "roft", "gpus": gpus, "asic_ports": ASIC_PORTS[gpus]}
    cube = {"kind": "zcube", "gpus": gpus, "asic_ports": ASIC_PORTS[gpus]}
    if gpus == 16384:  # the address plan has room for 254 GPUs on a switch
        cube["gpus_per_switch"] = 128
        roft["asic_ports"] = 256
    return {
        "ROFT, 1 queue pair": {"fabric": roft},
        "ROFT, 2 queue pairs": {"fabric": roft, "routing": {"queue_pairs": 2}},
        "ROFT, 8 queue pairs": {"fabric": roft, "routing": {"queue_pairs": 8}},
        "ROFT, spray": {"fabric": roft, "routing": {"policy": "spray"}},
        "ROFT, 3 tiers": {"fabric": {**roft, "tiers": 3, "asic_ports": max(16, ASIC_PORTS[gpus] // 2)}},
        "Rail-only": {"fabric": {**roft, "kind": "rail_only"}},
        "HPN": {"fabric": {**roft, "kind": "hpn"}},
        "ZCube": {"fabric": {**cube, "bundle": "destination"}},
        "ZCube trunk": {"fabric": {**cube, "bundle": "trunk"}},
    }


def scenario(gpus: int, label: str, seed: int) -> Scenario:
    """One point. Raises InputError where an arm cannot serve the workload."""
    base = load_scenario(EXPERIMENT)
    changes = {"seed": seed, "workload": {"requests": REQUESTS_A_GPU * gpus}, **arms(gpus)[label]}
    return with_changes(base, changes)


def run_one(point: tuple[int, str, int]) -> Figures | str:
    """Figures of a run, or why there are none."""
    times_ms: dict[int, float] = {}

    ttft_ms: list[float] = []

    def keep(table: str, rows: Iterable[Mapping[str, object]]) -> None:
        for row in rows if table == "requests" else ():
            if row["status"] == "ok" and not row["warmup"]:
                ttft_ms.append(1e3 * (float(str(row["t_first_token_s"])) - float(str(row["t_arrival_s"]))))
        for row in rows if table == "transfers" else ():
            seconds = float(str(row["ideal_s"]))
            if row["kind"] == "kv" and not math.isnan(seconds):
                times_ms[int(str(row["transfer_id"]))] = seconds * 1e3

    try:
        made = scenario(*point)
        with no_collection():
            simulate(made, model=Model.of(made), keep=keep)
    except (TestbedError, FabricError) as error:
        return str(error).splitlines()[0]
    ordered = sorted(times_ms.values())
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return Figures(len(ordered), statistics.fmean(ordered), p99, statistics.fmean(ttft_ms))


def interval(values: list[float]) -> str:
    """Mean and 95 % interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:+8.1f}  (one seed)"
    half = _T_95.get(len(values) - 1, 1.96) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:+8.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--gpus", type=int, default=1024, choices=sorted(ASIC_PORTS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--arm", action="append", help="label; default: all")
    asked = parser.parse_args()
    labels = asked.arm or list(arms(asked.gpus))
    points = [(asked.gpus, label, seed) for seed in range(1, asked.seeds + 1) for label in labels]
    began = time.monotonic()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(points, pool.map(run_one, points), strict=True))
    print(
        f"{asked.gpus:,} GPUs, shape D, {REQUESTS_A_GPU * asked.gpus:,} measured requests a run, {asked.seeds} seeds,"
        f" {time.monotonic() - began:.0f} s"
    )
    print(f"{'':20} {'mean ms':>9} {'P99 ms':>9} {'TTFT ms':>9}   mean against {labels[0]}, ms, 95 % over seeds")
    first = [found[asked.gpus, labels[0], seed] for seed in range(1, asked.seeds + 1)]
    for label in labels:
        runs = [found[asked.gpus, label, seed] for seed in range(1, asked.seeds + 1)]
        some = next((run for run in runs if isinstance(run, str)), None)
        if some is not None:
            print(f"{label:20} not served: {some}")
            continue
        good = [run for run in runs if isinstance(run, Figures)]
        columns = [statistics.fmean(getattr(run, name) for run in good) for name in ("mean_ms", "p99_ms", "ttft_ms")]
        pairs = zip(good, first, strict=True)
        less = [one.mean_ms - other.mean_ms for one, other in pairs if isinstance(other, Figures)]
        print(f"{label:20} {columns[0]:9,.1f} {columns[1]:9,.1f} {columns[2]:9,.1f}   {interval(less)}")


if __name__ == "__main__":
    main()
