"""Collectives as flows: who sends what when, and the formulas they are held against.

With n ranks, a buffer of S bytes a GPU and NICs of B bytes/s, on a fabric where nothing collides:

| operation | flows | bytes a NIC sends | time | bus factor |
|---|---|---|---|---|
| all_reduce | ring: 2(n-1) steps, rank i to rank i+1 | 2(n-1)/n S | 2(n-1)/n S/B | 2(n-1)/n |
| reduce_scatter | ring: n-1 steps | (n-1)/n S | (n-1)/n S/B | (n-1)/n |
| all_gather | ring: n-1 steps | (n-1)/n S | (n-1)/n S/B | (n-1)/n |
| all_to_all | each to each at once, S/n | (n-1)/n S | (n-1)/n S/B | (n-1)/n |
| incast | f senders to the first rank, S each | S | f S/B | 1 (size f S) |
| patterns | a message of S from each sender | S | S/B | 1 |

Algorithm bandwidth is size / time, bus bandwidth is that times the factor: NVIDIA/nccl-tests, doc/PERFORMANCE.md. Ring
steps: Patarasuk & Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69(2), 2009. The
ring follows the ranks, the last one back to the first; a rank sends a step's chunk when the chunk that it holds (or is
reduced into) has arrived.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from scenario.errors import InputError
from scenario.fabric_section import FabricSection
from scenario.flow_workloads import WHOLE_FABRIC, CollectiveWorkload
from scenario.models import Scenario
from topologies.build import build
from topologies.collisions import PATTERNS, Pair
from topologies.fabric import FabricError
from traffic.flow_plan import FlowPlan, PlanBuilder
from traffic.gpu_names import expand
from traffic.nic_map import split_evenly
from traffic.worst_case import most_on_one_cable

RINGS = ("all_reduce", "reduce_scatter", "all_gather")
_PATTERN_NAMES = {
    "permutation": "permutation",
    "cross_rail": "cross-rail",
    "rail_aligned": "rail-aligned",
    "g_to_one": "g-to-one",
}


def bus_factor(operation: str, ranks: int) -> float:
    """What algorithm bandwidth is multiplied with to get bus bandwidth (nccl-tests, doc/PERFORMANCE.md)."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("reduce_scatter", "all_gather", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


def collective_plan(scenario: Scenario, workload: CollectiveWorkload) -> FlowPlan:
    """All repeats, each when the one before has ended everywhere. Raises InputError for GPUs that do not fit."""
    size = round(workload.size_mb * 1e6)
    groups = _groups(scenario, workload)
    fixed = pattern_pairs(scenario, workload.operation) if workload.operation in WHOLE_FABRIC else None
    builder = PlanBuilder()
    before: tuple[int, ...] = ()
    for repeat in range(workload.warmup_repeats + workload.repeats):
        numbers = []
        for name, gpus in groups:
            senders = _incast_senders(workload, gpus) if workload.operation == "incast" else ()
            number = builder.message(
                workload.operation,
                name,
                size * len(senders) if senders else size,
                len(senders) + 1 if senders else len(gpus),
                bus_factor=bus_factor(workload.operation, len(gpus)),
                phase="warmup" if repeat < workload.warmup_repeats else "measured",
                repeat=repeat,
                after=before,
                needs=len(before),
            )
            numbers.append(number)
            if workload.operation in RINGS:
                _ring(builder, number, gpus, size, 2 if workload.operation == "all_reduce" else 1)
            elif workload.operation == "all_to_all":
                _all_to_all(builder, number, gpus, size)
            else:
                for src, dst in fixed if fixed is not None else [(sender, gpus[0]) for sender in senders]:
                    builder.flow(number, src, dst, size)
        before = tuple(numbers)
    return builder.plan(kind="collective", operation=workload.operation, groups=len(groups))


def pattern_pairs(scenario: Scenario, operation: str) -> list[Pair]:
    """The pairs of a pattern, drawn with the seed. All but `worst` are the same on every fabric of this size.

    `g_to_one` is the worst case of a ZCube of this many GPUs and ASIC ports; `worst` is the scenario's own fabric's.
    Raises InputError.
    """
    fabric = scenario.fabric
    try:
        if operation == "worst":
            return most_on_one_cable(build(fabric), scenario.paths)
        if operation == "g_to_one" and fabric.kind != "zcube":
            fabric = FabricSection(
                kind="zcube",
                gpus=fabric.gpus,
                gpus_per_server=fabric.gpus_per_server,
                asic_ports=fabric.asic_ports,
            )
        return PATTERNS[_PATTERN_NAMES[operation]](build(fabric), random.Random(scenario.seed))
    except FabricError as error:
        raise InputError("workload.operation", operation, f"does not fit this fabric: {error}") from None


def _groups(scenario: Scenario, workload: CollectiveWorkload) -> list[tuple[str, tuple[str, ...]]]:
    """(name, GPUs in rank order) of each collective."""
    ranks = scenario.fabric.gpus_per_server
    chosen = expand(workload.gpus, scenario.fabric.gpus, "workload.gpus") or [
        f"gpu{number}" for number in range(1, scenario.fabric.gpus + 1)
    ]
    found: dict[str, list[str]] = {}
    for gpu in chosen:
        server, rank = divmod(int(gpu[3:]) - 1, ranks)
        name = {"all": "all", "server": f"server{server + 1}", "rail": f"rail{rank}"}[workload.among]
        found.setdefault(name, []).append(gpu)
    if small := [name for name, gpus in found.items() if len(gpus) < 2]:
        raise InputError(
            "workload.among", workload.among, f"leaves {small[0]} one GPU alone: a collective needs two", "more GPUs"
        )
    return [(name, tuple(gpus)) for name, gpus in found.items()]


def _incast_senders(workload: CollectiveWorkload, gpus: Sequence[str]) -> tuple[str, ...]:
    others = tuple(gpus[1:])
    if workload.fan_in is not None and workload.fan_in > len(others):
        raise InputError(
            "workload.fan_in", workload.fan_in, f"{len(others)} GPUs are left besides the receiver {gpus[0]}"
        )
    # The last ones: those of the receiver's own server, which come first, would not cross the fabric.
    return others[len(others) - (workload.fan_in or len(others)) :]


def _ring(builder: PlanBuilder, message: int, gpus: Sequence[str], size: int, rounds: int) -> None:
    """`rounds` times n-1 steps; in step s rank i passes chunk i - s on, which has just arrived."""
    n = len(gpus)
    chunks = _chunks(size, n)
    before: list[int] = []
    for step in range(rounds * (n - 1)):
        now = []
        for i, gpu in enumerate(gpus):
            after = (before[i - 1],) if before else ()
            now.append(builder.flow(message, gpu, gpus[(i + 1) % n], chunks[(i - step) % n], after, step))
        before = now


def _all_to_all(builder: PlanBuilder, message: int, gpus: Sequence[str], size: int) -> None:
    """A share for each rank, the own one included, which stays. Rank i begins with rank i + 1."""
    n = len(gpus)
    chunks = _chunks(size, n)
    for turn in range(1, n):
        for i, gpu in enumerate(gpus):
            builder.flow(message, gpu, gpus[(i + turn) % n], chunks[(i + turn) % n])


def _chunks(size: int, ranks: int) -> list[int]:
    if size < ranks:
        raise InputError(
            "workload.size_mb", size / 1e6, f"{size} bytes cannot be divided among {ranks} ranks", "a larger size"
        )
    return list(split_evenly(size, ranks))
