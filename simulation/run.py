"""The same scenario in virtual time: on its fabric, or on an infinite core for the fabric-free bound.

On an infinite core only the GPUs' NICs limit, one of the full rate in each direction. What is left out in both:
queues, losses, headers (unless `goodput_share` says so), latency and TCP. Same engine, workload and queue pairs as
in the emulation.

How far the bound is one: an infinite core takes nothing from any handoff alone, so without contention at the NICs no
fabric is faster. Under contention it still shares NICs fairly, and a fabric that holds one handoff back may let its
neighbour at the same NIC end earlier. In a closed loop an earlier end also moves later arrivals. So it bounds the
distribution in practice, not each request by proof (`tests/test_simulation_bound.py` has the counterexample).
"""

from __future__ import annotations

import os
import platform
import time
from collections import defaultdict
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from results.schema import GPUS, REQUESTS, SCHEMA_VERSION, TRANSFERS
from results.writer import create_folder, write_json, write_table, write_yaml
from scenario.fault_names import slow_ports
from scenario.identity import scenario_sha256, workload_sha256
from scenario.models import Scenario
from scenario.scale import Scale
from simulation.executor import VirtualTime
from simulation.rows import transfer_rows
from topologies.build import build
from topologies.fabric import Fabric
from topologies.fluid import (
    BYTES_PER_S_PER_GBPS,
    FluidNetwork,
    Lane,
    Transfer,
    capacities,
    core_capacities,
    core_lanes,
    handoff_lanes,
    lanes,
    paced,
    slowed,
)
from traffic.actions import StartTransfer
from traffic.budget import demand
from traffic.engines import make_engine
from traffic.sources import make_source


@dataclass(frozen=True)
class SimulationResult:
    """A simulated run. The rows are those of `results.schema`; times are model seconds, `elapsed_wall_s` is ours."""

    scenario: Scenario
    infinite_core: bool
    goodput_share: float
    fabric: Fabric
    requests: list[dict[str, object]]
    transfers: list[dict[str, object]]
    gpus: list[dict[str, object]]
    window_s: tuple[float, float]
    end_s: float
    events: int
    elapsed_wall_s: float

    def ttft_s(self) -> dict[int, float]:
        """request_id -> TTFT of the measured requests that got a first token, in model seconds."""
        return {
            _number(row, "request_id"): _seconds(row, "first_token") - _seconds(row, "arrival")
            for row in self.requests
            if not row["warmup"] and row["status"] == "ok"
        }


def simulate(scenario: Scenario, *, infinite_core: bool = False, goodput_share: float = 1.0) -> SimulationResult:
    """Serve the scenario in virtual time. `goodput_share`: payload's share of a port's rate (1: no headers).

    Raises InputError or FabricError for a scenario that does not fit, as a run would.
    """
    began = time.monotonic()
    fabric = build(scenario.fabric)
    source = make_source(scenario)
    engine = make_engine(scenario, source, iperf3_as_flows=True)
    whole = core_capacities(fabric) if infinite_core else slowed(capacities(fabric), slow_ports(scenario, fabric))
    rates = {name: rate * goodput_share for name, rate in whole.items()}
    run = VirtualTime(engine, FluidNetwork(rates), planner(scenario, fabric, rates, infinite_core=infinite_core))
    end_s = run.run()
    window_s = engine.window_s or demand(scenario, fabric, source).window_s
    if not window_s[1] > window_s[0]:
        # One measured arrival, or none that is planned: count over the whole run, which is never empty.
        window_s = (0.0, end_s)
    return SimulationResult(
        scenario=scenario,
        infinite_core=infinite_core,
        goodput_share=goodput_share,
        fabric=fabric,
        requests=engine.requests,
        transfers=transfer_rows(run.sent.values(), rates),
        gpus=engine.gpu_states,
        window_s=window_s,
        end_s=end_s,
        events=run.events,
        elapsed_wall_s=time.monotonic() - began,
    )


def planner(
    scenario: Scenario, fabric: Fabric, rates: MutableMapping[str, float], *, infinite_core: bool
) -> Callable[[StartTransfer], Transfer]:
    """From an order to a transfer on its lanes; it counts the handoffs of a pair, for round-robin queue pairs.

    Adds to `rates` what senders pace their queue pairs to; the infinite core, which is a bound, has no pacing.
    """
    routing, pacing_gbps = scenario.routing, scenario.transport.pacing_gbps
    pace = pacing_gbps * BYTES_PER_S_PER_GBPS if pacing_gbps else None
    known: dict[tuple[str, str], tuple[Lane, ...]] = {}
    handoffs: defaultdict[tuple[str, str], int] = defaultdict(int)

    def plan(order: StartTransfer) -> Transfer:
        pair = order.src_gpu, order.dst_gpu
        if pair not in known:
            known[pair] = (
                core_lanes(*pair, routing.queue_pairs)
                if infinite_core
                else paced(lanes(fabric, *pair, scenario.paths), rates, pace)
            )
        chosen = handoff_lanes(known[pair], routing.qp_policy, handoffs[pair])
        handoffs[pair] += 1
        return Transfer(order.transfer_id, order.bytes, chosen, routing.striping)

    return plan


def fabric_free_ttft_s(scenario: Scenario) -> dict[int, float]:
    """request_id -> TTFT in model seconds that the measured requests have on an infinite core."""
    return simulate(scenario, infinite_core=True).ttft_s()


def write_run(folder: Path, result: SimulationResult) -> None:
    """Write a run folder; meta.json, which says that it is whole, comes last.

    There is no ports table: queues do not exist in this model. The infinite core has no fabric.json either.
    """
    create_folder(folder)
    write_yaml(folder / "scenario.yaml", result.scenario.model_dump(mode="json"))
    if not result.infinite_core:
        write_json(folder / "fabric.json", result.fabric.to_json())
    write_table(folder / "requests.parquet", REQUESTS, result.requests)
    write_table(folder / "transfers.parquet", TRANSFERS, result.transfers)
    write_table(folder / "gpus.parquet", GPUS, result.gpus)
    write_json(folder / "meta.json", meta(result))


def meta(result: SimulationResult) -> dict[str, object]:
    """meta.json. The hashes are those that an emulation of the scenario has."""
    scenario = result.scenario
    scale = _scale(scenario)
    return {
        "schema_version": SCHEMA_VERSION,
        "zcube_version": metadata.version("zcube-testbed"),
        "executor": "simulation",
        "infinite_core": result.infinite_core,
        "goodput_share": result.goodput_share,
        "name": scenario.name,
        "scenario_sha256": scenario_sha256(scenario),
        "workload_sha256": workload_sha256(scenario),
        "seed": scenario.seed,
        "started_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "scale": scale.to_meta(),
        "shape": scenario.serving.shape,
        "layout": scenario.serving.layout,
        "striping": scenario.routing.striping,
        "bundle": scenario.fabric.bundle if scenario.fabric.kind == "zcube" else None,
        "policy": "infinite core" if result.infinite_core else scenario.policy,
        "window": {"t_start_s": result.window_s[0], "t_end_s": result.window_s[1]},
        "end_s": result.end_s,
        "events": result.events,
        "elapsed_wall_s": result.elapsed_wall_s,
    }


def _scale(scenario: Scenario) -> Scale:
    """The scenario's scale where it is resolved, else 1: a simulation is in model units and needs none."""
    given = scenario.scale
    return Scale(given.rate_factor or 1.0, given.dilation or 1.0, given.frame_bytes)


def _number(row: dict[str, object], column: str) -> int:
    value = row[column]
    if not isinstance(value, int):
        raise TypeError(f"{column} = {value!r} is not a number")
    return value


def _seconds(row: dict[str, object], stage: str) -> float:
    value = row[f"t_{stage}_s"]
    if not isinstance(value, float):
        raise TypeError(f"t_{stage}_s = {value!r} is not a time")
    return value
