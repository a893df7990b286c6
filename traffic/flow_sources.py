"""From a scenario to the plan of a workload without serving."""

from __future__ import annotations

from collections.abc import Sequence

from scenario.errors import InputError
from scenario.flow_workloads import CollectiveWorkload, MatrixWorkload
from scenario.models import Scenario
from scenario.trace_workloads import TransfersWorkload
from topologies.build import build
from topologies.export_htsim import node_order
from traffic.collectives import collective_plan
from traffic.flow_plan import FlowPlan, PlanBuilder
from traffic.matrix_files import Connections, Matrix, read_matrix_file
from traffic.open_loop import phase_of
from traffic.readers.trace import FORMATS, Trace
from traffic.requests import Request


class FlowSource:
    """A `traffic.requests.Source` without requests: what is played is its plan. `count`: messages."""

    requests: Sequence[Request] = ()
    measured_ids: frozenset[int] = frozenset()

    def __init__(self, plan: FlowPlan) -> None:
        self.plan = plan
        self.summary = plan.summary

    @property
    def count(self) -> int:
        """Messages, warm-up included."""
        return len(self.plan.messages)

    def initial(self) -> list[tuple[float, Request]]:
        """Nothing arrives."""
        return []

    def following(self, request: Request, finished_s: float) -> tuple[float, Request] | None:
        """Nothing follows."""
        return None


def flow_source(scenario: Scenario) -> FlowSource:
    """The plan of `workload`. Raises InputError where settings or file do not fit the fabric."""
    workload = scenario.workload
    if isinstance(workload, CollectiveWorkload):
        return FlowSource(collective_plan(scenario, workload))
    if isinstance(workload, MatrixWorkload):
        return FlowSource(_matrix_plan(scenario, workload))
    if isinstance(workload, TransfersWorkload):
        return FlowSource(_log_plan(scenario, workload))
    raise InputError("workload.kind", workload.kind, "is served, not played")


def _matrix_plan(scenario: Scenario, workload: MatrixWorkload) -> FlowPlan:
    content = read_matrix_file(workload.path)
    if isinstance(content, Connections):
        return _connections_plan(scenario, workload, content)
    for matrix in content:
        if matrix.ranks > scenario.fabric.gpus:
            raise InputError(
                f"workload.path: {workload.path}",
                matrix.ranks,
                f"ranks, and the fabric has {scenario.fabric.gpus} GPUs",
                "raise fabric.gpus",
            )
    return _series_plan(workload, content)


def _series_plan(workload: MatrixWorkload, matrices: Sequence[Matrix]) -> FlowPlan:
    """A message a matrix, one after the other: kvbench's ct-perftest times them so."""
    builder = PlanBuilder()
    before: tuple[int, ...] = ()
    for repeat in range(workload.warmup_repeats + workload.repeats):
        for matrix in matrices:
            if not matrix.cells:
                continue
            number = builder.message(
                "matrix",
                matrix.name,
                sum(cell.size_bytes for cell in matrix.cells),
                matrix.ranks,
                phase="warmup" if repeat < workload.warmup_repeats else "measured",
                repeat=repeat,
                at_s=matrix.delay_s,
                after=before,
                needs=len(before),
                delay_s=matrix.delay_s,
            )
            for cell in matrix.cells:
                builder.flow(number, f"gpu{cell.src + 1}", f"gpu{cell.dst + 1}", cell.size_bytes)
            before = (number,)
    if not builder.flows:
        raise InputError("workload.path", str(workload.path), "holds zeros only: nothing is sent")
    return builder.plan(kind="matrix", matrices=len(matrices))


def _connections_plan(scenario: Scenario, workload: MatrixWorkload, content: Connections) -> FlowPlan:
    """A message a connection. A repeat begins when all of the one before has ended, with its own time 0."""
    gpus = _nodes(scenario, workload, content.nodes)
    builder = PlanBuilder()
    each = len(content.connections)
    for repeat in range(workload.warmup_repeats + workload.repeats):
        first = repeat * each
        before = tuple(range(first - each, first)) if repeat else ()
        for number, one in enumerate(content.connections, first):
            after, needs = before, len(before)
            if one.trigger is not None:
                after = tuple(first + i for i, other in enumerate(content.connections) if one.trigger in other.fires)
                needs = content.triggers[one.trigger].needs
            start_s = one.start_s or 0.0
            builder.message(
                "connection",
                one.name,
                one.cell.size_bytes,
                2,
                phase="warmup" if repeat < workload.warmup_repeats else "measured",
                repeat=repeat,
                at_s=start_s,
                after=after,
                needs=needs,
                delay_s=start_s,
            )
            builder.flow(number, gpus[one.cell.src], gpus[one.cell.dst], one.cell.size_bytes)
    return builder.plan(kind="matrix", connections=each)


def _nodes(scenario: Scenario, workload: MatrixWorkload, nodes: int) -> list[str]:
    """Node number -> GPU."""
    gpus = scenario.fabric.gpus
    if workload.numbering == "export":
        order = [end.node for end in node_order(build(scenario.fabric))]
        if nodes != len(order):
            raise InputError(
                f"workload.path: {workload.path}: Nodes", nodes, f"this fabric has {len(order)} NIC ports",
                "export the matrix for this fabric, or workload.numbering: rank",
            )  # fmt: skip
        return order
    if nodes > gpus:
        raise InputError(
            f"workload.path: {workload.path}: Nodes", nodes, f"the fabric has {gpus} GPUs",
            "raise fabric.gpus; workload.numbering: export where nodes are NIC ports",
        )  # fmt: skip
    return [f"gpu{node + 1}" for node in range(nodes)]


def _log_plan(scenario: Scenario, workload: TransfersWorkload) -> FlowPlan:
    """A message a row, at its time; the same window of the log that serving would take, without cool-down."""
    needed = workload.warmup_requests + workload.requests
    trace = Trace(workload.path, FORMATS["transfers"], skip_bad_rows=workload.skip_bad_rows, seed=scenario.seed)
    known = {f"gpu{n}" for n in range(1, scenario.fabric.gpus + 1)}
    builder = PlanBuilder()
    first_ns = rows = 0
    for row in trace:
        rows += 1
        if rows <= workload.skip:
            continue
        index = len(builder.messages)
        if index == 0:
            first_ns = row.at_ns
        src, dst = (label if label.startswith("gpu") else f"gpu{label}" for label in (row.prefill_gpu, row.decode_gpu))
        where = f"workload.path: {workload.path}, line {row.line}"
        for column, gpu in (("src_gpu", src), ("dst_gpu", dst)):
            if gpu not in known:
                raise InputError(
                    f"{where}, column {column}", gpu, f"must be gpu1 to gpu{scenario.fabric.gpus}", "raise fabric.gpus"
                )
        if src == dst:
            raise InputError(where, src, "sends to itself: src_gpu and dst_gpu must differ")
        number = builder.message(
            "transfer",
            row.session or f"row{rows}",
            row.kv_bytes,
            2,
            phase=phase_of(index, workload.warmup_requests, workload.requests),
            at_s=(row.at_ns - first_ns) / 1e9 / workload.speedup,
        )
        builder.flow(number, src, dst, row.kv_bytes)
        if index + 1 == needed:
            break
    if len(builder.messages) < needed:
        raise InputError(
            "workload.requests", workload.requests,
            f"{workload.path} has {rows:,} rows; skip {workload.skip:,} + warmup_requests {workload.warmup_requests:,}"
            f" + requests {workload.requests:,} need {workload.skip + needed:,}",
            "Lower workload.skip, workload.warmup_requests or workload.requests.",
        )  # fmt: skip
    return builder.plan(kind="transfers", rows_read=rows, bad_rows_skipped=trace.bad_rows)
