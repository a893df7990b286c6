"""The same scenario in virtual time: on its fabric, or on an infinite core for the fabric-free bound.

On an infinite core only the GPUs' NICs limit, one of the full rate in each direction. What is left out in both:
queues, losses and TCP; and unless asked for (`Model`), headers, latency and faults. Same engine, workload and queue
pairs as in the emulation. docs/simulation.md has the equations.

How far the bound is one: an infinite core takes nothing from any handoff alone, so without contention at the NICs no
fabric is faster. Under contention it still shares NICs fairly, and a fabric that holds one handoff back may let its
neighbour at the same NIC end earlier. In a closed loop an earlier end also moves later arrivals. So it bounds the
distribution in practice, not each request by proof (`tests/test_simulation_bound.py` has the counterexample).
"""

from __future__ import annotations

import dataclasses
import gc
import os
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from results.schema import GPUS, REQUESTS, SCHEMA_VERSION, TRANSFERS
from results.writer import EventLog, TableWriter, create_folder, write_json, write_table, write_yaml
from scenario.fault_names import slow_ports
from scenario.identity import scenario_sha256, workload_sha256
from scenario.models import Scenario
from scenario.scale import HEADER_BYTES, Scale
from scenario.simulation_section import NO_QUEUES, SimulationSection
from simulation.executor import Sent, VirtualTime, never, no_latency
from simulation.rerouting import Network, Rerouting, played
from simulation.rows import Alone, rows_of, transfer_rows
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
from topologies.routes import NONE, Failures
from traffic.actions import StartTransfer
from traffic.background import WithBackground
from traffic.budget import arrival_window_s
from traffic.engines import make_engine
from traffic.sources import make_source

if TYPE_CHECKING:
    from simulation.network import Work

#: From so many GPUs on the compiled network is used: loading it takes longer than a small run.
LARGE_GPUS = 128
#: GPU pairs whose paths are kept: finding them again costs little, keeping millions costs gigabytes.
KNOWN_PAIRS = 100_000


#: Told of each handoff that ends, with the run and the time.
Watch = Callable[[VirtualTime, float], None]


@dataclass(frozen=True)
class Model:
    """What is added to fluid flows: `goodput_share`, payload's share of a port's rate (1: no headers); latency and
    fault events as the scenario's `simulation` and `faults` say (False: neither)."""

    goodput_share: float = 1.0
    constants: bool = False

    @classmethod
    def of(cls, scenario: Scenario) -> Model:
        """What `zcube simulate` adds."""
        frame_bytes = scenario.scale.frame_bytes
        headers = scenario.simulation.headers
        return cls((frame_bytes - HEADER_BYTES) / frame_bytes if headers else 1.0, constants=True)


@dataclass(frozen=True)
class SimulationResult:
    """A simulated run. The rows are those of `results.schema`; times are model seconds, `elapsed_wall_s` is ours."""

    scenario: Scenario
    infinite_core: bool
    fabric: Fabric
    requests: Sequence[dict[str, object]]
    transfers: Sequence[dict[str, object]]
    gpus: Sequence[dict[str, object]]
    window_s: tuple[float, float]
    end_s: float
    events: int
    elapsed_wall_s: float
    model: Model = Model()
    work: Work | None = None  # of the compiled network
    interrupted: bool = False
    source: Mapping[str, object] = field(default_factory=dict)  # what the workload's source left out or cut
    background: Sequence[dict[str, object]] = ()  # what each stream beside the workload sent
    faults: Sequence[dict[str, object]] = ()  # what became of the fault events, as in events.jsonl

    def ttft_s(self) -> dict[int, float]:
        """request_id -> TTFT of the measured requests that got a first token, in model seconds."""
        return {
            _number(row, "request_id"): _seconds(row, "first_token") - _seconds(row, "arrival")
            for row in self.requests
            if not row["warmup"] and row["status"] == "ok"
        }


def simulate(
    scenario: Scenario,
    *,
    infinite_core: bool = False,
    model: Model = Model(),
    watch: Watch | None = None,
    keep: Callable[[str, Iterable[dict[str, object]]], None] | None = None,
    stop: Callable[[], bool] = never,
) -> SimulationResult:
    """Serve the scenario in virtual time, until it is over or `stop()`. `watch` is told of each handoff that ends, with
    the run and the time; `keep` takes rows with the name of their table, those of a handoff as it ends; then they are
    not in the result.

    Raises InputError or FabricError for a scenario that does not fit, as a run would.
    """
    began = time.monotonic()
    fabric = build(scenario.fabric)
    source = make_source(scenario)
    engine = make_engine(scenario, source, iperf3_as_flows=True)
    whole = core_capacities(fabric) if infinite_core else slowed(capacities(fabric), slow_ports(scenario, fabric))
    rates = {name: rate * model.goodput_share for name, rate in whole.items()}
    planned = Planner(scenario, fabric, rates, model.goodput_share, infinite_core=infinite_core)
    network = solver = make_network(scenario.fabric.gpus, rates)
    constants = scenario.simulation if model.constants and not infinite_core else None
    events = scenario.faults.events if constants is not None else ()
    repair_s = scenario.simulation.repair_ms / 1e3
    if events:
        network = Rerouting(solver, fabric, events, repair_s, planned.lanes)
    alone = Alone(rates)

    ended: list[Sent] = []

    def finished(sent: Sent) -> None:
        if keep is not None:
            keep("transfers", rows_of(sent, alone))
        else:
            ended.append(sent)
        if watch is not None and sent.end is not None:
            watch(run, sent.end.done_s)

    run = VirtualTime(
        engine,
        network,
        planned.transfer,
        latency(constants) if constants is not None else no_latency,
        finished if keep is not None or watch is not None else None,
    )
    end_s = run.run(stop)
    left = run.sent.values()
    if keep is not None:
        for sent in left:
            keep("transfers", rows_of(sent, alone))
        keep("requests", engine.request_rows())
        keep("gpus", engine.gpu_rows())
    window_s = engine.window_s or arrival_window_s(source)
    if not window_s[1] > window_s[0]:
        # One measured arrival, or none that is planned: count over the whole run, which is never empty.
        window_s = (0.0, end_s)
    return SimulationResult(
        scenario=scenario,
        infinite_core=infinite_core,
        model=model,
        fabric=fabric,
        requests=[] if keep is not None else engine.requests,
        transfers=[] if keep is not None else transfer_rows([*ended, *left], rates),
        gpus=[] if keep is not None else engine.gpu_states,
        window_s=window_s,
        end_s=end_s,
        events=run.events,
        elapsed_wall_s=time.monotonic() - began,
        work=getattr(solver, "work", None),
        interrupted=not engine.finished,
        source=getattr(source, "summary", {}),
        background=engine.account() if isinstance(engine, WithBackground) else (),
        faults=played(events, repair_s, end_s),
    )


def make_network(gpus: int, rates: Mapping[str, float]) -> Network:
    """The reference where it is fast enough; it solves all flows anew at each change."""
    if gpus < LARGE_GPUS:
        return FluidNetwork(rates)
    from simulation.network import FlowNetwork

    return FlowNetwork(rates)


class Planner:
    """From an order to a transfer on its lanes; it counts the handoffs of a pair, for round-robin queue pairs.

    Adds to `rates` what senders pace their queue pairs to; the infinite core, which is a bound, has no pacing.
    """

    def __init__(
        self,
        scenario: Scenario,
        fabric: Fabric,
        rates: MutableMapping[str, float],
        goodput_share: float,
        *,
        infinite_core: bool,
    ) -> None:
        self._scenario, self._fabric, self._rates, self._infinite_core = scenario, fabric, rates, infinite_core
        pacing_gbps = scenario.transport.pacing_gbps  # with headers, as a port's rate
        self._pace = pacing_gbps * BYTES_PER_S_PER_GBPS * goodput_share if pacing_gbps else None
        self._known: dict[tuple[str, str], tuple[Lane, ...]] = {}
        self._handoffs: defaultdict[tuple[str, str], int] = defaultdict(int)

    def transfer(self, order: StartTransfer) -> Transfer:
        """An order on the lanes of the whole fabric."""
        routing, pair = self._scenario.routing, (order.src_gpu, order.dst_gpu)
        all_lanes = self._known.get(pair)
        if all_lanes is None:
            if len(self._known) >= KNOWN_PAIRS:
                self._known.clear()
            all_lanes = self._known[pair] = self.lanes(*pair)
        nth = 0
        if routing.qp_policy == "round_robin":
            nth = self._handoffs[pair]
            self._handoffs[pair] += 1
        chosen = handoff_lanes(all_lanes, routing.qp_policy, nth)
        return Transfer(order.transfer_id, order.bytes, chosen, routing.striping)

    def lanes(self, src_gpu: str, dst_gpu: str, failures: Failures = NONE) -> tuple[Lane, ...]:
        """All queue pairs of a GPU pair on their paths."""
        if self._infinite_core:
            return core_lanes(src_gpu, dst_gpu, self._scenario.routing.queue_pairs)
        paths = self._scenario.paths
        return paced(lanes(self._fabric, src_gpu, dst_gpu, paths, failures=failures), self._rates, self._pace)


def latency(constants: SimulationSection) -> Callable[[Transfer], float]:
    """Seconds from the last byte's leaving the network to its arrival: those of the longest of its paths."""

    def seconds(transfer: Transfer) -> float:
        switches = max(len(lane.links) for lane in transfer.lanes) - 1
        return (constants.nic_latency_us + switches * constants.hop_latency_us) / 1e6

    return seconds


def fabric_free_ttft_s(scenario: Scenario) -> dict[int, float]:
    """request_id -> TTFT in model seconds that the measured requests have on an infinite core."""
    return simulate(scenario, infinite_core=True).ttft_s()


#: Tables of a run folder by name. There is no ports table: queues do not exist in this model.
TABLES = {"transfers": TRANSFERS, "requests": REQUESTS, "gpus": GPUS}


def write_run(folder: Path, result: SimulationResult) -> None:
    """Write a run folder; meta.json, which says that it is whole, comes last. The infinite core has no fabric.json."""
    create_folder(folder)
    for name, schema in TABLES.items():
        write_table(folder / f"{name}.parquet", schema, getattr(result, name))
    _write_rest(folder, result)


def simulate_into(
    folder: Path,
    scenario: Scenario,
    model: Model,
    watch: Watch | None = None,
    *,
    infinite_core: bool = False,
    stop: Callable[[], bool] = never,
) -> SimulationResult:
    """`simulate` and `write_run` for runs of any length: rows go to the tables and are not kept."""
    create_folder(folder)
    with ExitStack() as stack, no_collection():
        tables = {
            name: stack.enter_context(TableWriter(folder / f"{name}.parquet", schema))
            for name, schema in TABLES.items()
        }
        result = simulate(
            scenario,
            infinite_core=infinite_core,
            model=model,
            watch=watch,
            keep=lambda name, rows: tables[name].extend(rows),
            stop=stop,
        )
    _write_rest(folder, result)
    return result


@contextmanager
def no_collection() -> Iterator[None]:
    """Without the search for cycles, which a run does not make, and which takes a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _write_rest(folder: Path, result: SimulationResult) -> None:
    write_yaml(folder / "scenario.yaml", result.scenario.model_dump(mode="json"))
    if not result.infinite_core:
        write_json(folder / "fabric.json", result.fabric.to_json())
    if result.faults:
        with EventLog(folder / "events.jsonl") as log:
            for entry in result.faults:
                log.write(entry)
    write_json(folder / "meta.json", meta(result))


def meta(result: SimulationResult) -> dict[str, object]:
    """meta.json. The hashes are those that an emulation of the scenario has."""
    scenario = result.scenario
    scale = _scale(scenario)
    return {
        "schema_version": SCHEMA_VERSION,
        "zcube_version": metadata.version("zcube-testbed"),
        "executor": "simulation",
        "model": NO_QUEUES,
        "infinite_core": result.infinite_core,
        "goodput_share": result.model.goodput_share,
        "latency_and_faults": result.model.constants,
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
        "interrupted": result.interrupted,
        "source": result.source,
        "background": result.background,
        "faults_not_reached": not_reached(result),
        "solver": dataclasses.asdict(result.work) if result.work else None,
        "elapsed_wall_s": result.elapsed_wall_s,
    }


def not_reached(result: SimulationResult) -> list[dict[str, object]]:
    """Fault events that serving did not last for."""
    return [
        {key: value for key, value in entry.items() if key != "event"}
        for entry in result.faults
        if entry["event"] == "fault not reached"
    ]


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
