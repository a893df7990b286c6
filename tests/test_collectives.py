"""Collectives in virtual time: bytes on every cable and the time equal the formulas where nothing collides."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from scenario.errors import InputError
from scenario.flow_workloads import CollectiveWorkload
from scenario.load import check_scenario
from scenario.models import Scenario
from simulation.run import SimulationResult, simulate
from topologies.build import build
from traffic import flow_plan
from traffic.budget import pairs_of
from traffic.collectives import bus_factor
from traffic.flow_engine import crosses_fabric
from traffic.flow_sources import flow_source
from traffic.worst_case import matching, most_on_one_cable

ZCUBE = {"kind": "zcube", "gpus": 16, "gpus_per_server": 4, "asic_ports": 8}
ROFT = {**ZCUBE, "kind": "roft"}
#: Every GPU below one switch, so nothing can collide.
ONE_LEAF = {"kind": "rail_only", "gpus": 8, "gpus_per_server": 1, "asic_ports": 8, "tiers": 1}
SIZE = 1_600_000_000
B = 400e9 / 8


def played(fabric: dict[str, object], operation: str, **more: object) -> Scenario:
    workload = {"kind": "collective", "operation": operation, "size_mb": SIZE / 1e6, "in_server": "fabric", **more}
    return check_scenario({"fabric": fabric, "workload": workload})


def durations(result: SimulationResult) -> list[float]:
    return [row["t_finished_s"] - row["t_arrival_s"] for row in result.requests]  # type: ignore[operator]


def by_link(result: SimulationResult) -> Counter[tuple[str, str]]:
    """Bytes of each cable, by the GPU end's direction: ("out", cable) for the first of a path, ("in", ...) the last."""
    found: Counter[tuple[str, str]] = Counter()
    for row in result.transfers:
        path = row["path"]
        found["out", path[0]] += row["bytes"]  # type: ignore[index, operator]
        found["in", path[-1]] += row["bytes"]  # type: ignore[index, operator]
    return found


FORMULAS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}


@pytest.mark.parametrize("operation", FORMULAS)
def test_bytes_of_every_cable_and_the_time_are_the_formula_s(operation: str) -> None:
    n = 8
    share = FORMULAS[operation](n)
    result = simulate(played(ONE_LEAF, operation, repeats=3))
    assert durations(result) == pytest.approx([share * SIZE / B] * 3, rel=1e-9)
    cables = by_link(result)
    assert len(cables) == 2 * n
    assert set(cables.values()) == {round(3 * share * SIZE)}
    # One after the other, without a gap.
    assert result.window_s == (0.0, pytest.approx(3 * share * SIZE / B))
    assert [row["bus_factor"] for row in result.requests] == [share] * 3


@pytest.mark.parametrize("operation", FORMULAS)
@pytest.mark.parametrize("fabric", [ZCUBE, ROFT], ids=["zcube", "roft"])
def test_no_fabric_is_faster_than_the_formula(operation: str, fabric: dict[str, object]) -> None:
    ideal = FORMULAS[operation](16) * SIZE / B
    assert durations(simulate(played(fabric, operation), infinite_core=True)) == pytest.approx([ideal])
    (real,) = durations(simulate(played(fabric, operation)))
    assert real >= ideal * (1 - 1e-9)
    sent: Counter[str] = Counter()
    for row in simulate(played(fabric, operation)).transfers:
        sent[str(row["src_gpu"])] += int(row["bytes"])  # type: ignore[call-overload]
    assert set(sent.values()) == {round(FORMULAS[operation](16) * SIZE)}


def test_a_ring_passes_on_what_has_arrived() -> None:
    plan = flow_source(played(ONE_LEAF, "all_reduce")).plan
    has = {gpu: {(gpu, chunk) for chunk in range(8)} for gpu in range(8)}  # (whose part of the sum, which chunk)
    for number, flow in enumerate(plan.flows):
        src, dst = int(flow.src[3:]) - 1, int(flow.dst[3:]) - 1
        assert dst == (src + 1) % 8
        chunk = (src - flow.step) % 8
        # The predecessor is the flow that brought this chunk, one step before.
        if flow.step:
            (before,) = (plan.flows[n] for n in flow.after)
            assert (before.dst, before.step) == (flow.src, flow.step - 1)
        else:
            assert flow.after == ()
        has[dst] |= {part for part in has[src] if part[1] == chunk}
        assert number == len([f for f in plan.flows[:number] if f.step <= flow.step])
    assert all(len(parts) == 64 for parts in has.values())  # everybody has every part of every chunk


def test_sizes_that_do_not_divide_lose_nothing() -> None:
    scenario = check_scenario(
        {"fabric": ONE_LEAF, "workload": {"kind": "collective", "operation": "all_to_all", "size_mb": 1.000_003}}
    )
    received: Counter[str] = Counter()
    for flow in flow_source(scenario).plan.flows:
        received[flow.dst] += flow.size_bytes
    own = {f"gpu{i + 1}": size for i, size in enumerate([125001] * 3 + [125000] * 5)}
    # Each rank gets its share from the seven others; its own share stays.
    assert received == {gpu: 7 * size for gpu, size in own.items()}


def test_incast_takes_the_receivers_nic() -> None:
    result = simulate(played(ONE_LEAF, "incast", fan_in=5))
    assert durations(result) == pytest.approx([5 * SIZE / B])
    assert result.requests[0]["message_bytes"] == 5 * SIZE
    assert {row["dst_gpu"] for row in result.transfers} == {"gpu1"}
    with pytest.raises(InputError, match=r"fan_in = 8: 7 GPUs are left besides the receiver gpu1"):
        flow_source(played(ONE_LEAF, "incast", fan_in=8))


def test_inside_a_server_nvlink_carries_it() -> None:
    scenario = played(ZCUBE, "all_to_all", in_server="nvlink")
    plan = flow_source(scenario).plan
    on_fabric = [flow for flow in plan.flows if crosses_fabric(scenario, flow)]
    assert len(plan.flows) - len(on_fabric) == 16 * 3
    result = simulate(scenario)
    assert len({row["transfer_id"] for row in result.transfers}) == len(on_fabric) == 16 * 12
    assert result.requests[0]["kv_bytes_sent"] == 16 * 12 * SIZE // 16
    # Servers by themselves need no fabric: a ring of four at NVLink's 3600 Gb/s. There is nothing to emulate in it.
    inside = played(ZCUBE, "all_gather", in_server="nvlink", among="server")
    assert durations(simulate(inside)) == pytest.approx([3 / 4 * SIZE * 8 / 3600e9] * 4)
    with pytest.raises(InputError, match="no flow crosses the fabric"):
        pairs_of(inside, flow_source(inside))


def test_one_collective_a_rail_or_a_server_at_the_same_time() -> None:
    rails = simulate(played(ROFT, "all_reduce", among="rail"))
    assert [row["tenant"] for row in rails.requests] == ["rail0", "rail1", "rail2", "rail3"]
    # Each rail below its own leaf: nothing collides, four ranks each.
    assert durations(rails) == pytest.approx([2 * 3 / 4 * SIZE / B] * 4)
    assert {row["ranks"] for row in rails.requests} == {4}
    some = simulate(played(ROFT, "all_gather", gpus=["gpu1-gpu2", "gpu9"]))
    assert {row["src_gpu"] for row in some.transfers} == {"gpu1", "gpu2", "gpu9"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": ["gpu1", "gpu17"]}, r"workload.gpus = 'gpu17': must be one of gpu1 to gpu16"),
        ({"gpus": ["gpu1-gpu4", "gpu3"]}, "'gpu3': is named twice"),
        ({"gpus": ["gpu1", "gpu2", "gpu5"], "among": "server"}, "leaves server2 one GPU alone"),
        (
            {"size_mb": 0.001, "operation": "all_to_all", "fabric": {"gpus": 1024, "asic_ports": 64}},
            "cannot be divided",
        ),
    ],
)
def test_what_does_not_fit_is_said(changes: dict[str, object], message: str) -> None:
    fabric = changes.pop("fabric", ZCUBE)
    workload = {"kind": "collective", "operation": "all_reduce", **changes}
    with pytest.raises(InputError, match=message):
        flow_source(check_scenario({"fabric": fabric, "workload": workload}))


def test_settings_that_contradict_are_refused() -> None:
    with pytest.raises(InputError, match="permutation chooses its GPUs"):
        played(ZCUBE, "permutation", gpus=["gpu1"])
    with pytest.raises(InputError, match="fan_in is for incast"):
        played(ZCUBE, "all_reduce", fan_in=3)


@pytest.mark.parametrize("operation", ["permutation", "cross_rail", "rail_aligned", "g_to_one"])
def test_a_pattern_is_the_same_on_every_fabric(operation: str) -> None:
    plans = [flow_source(played(fabric, operation)).plan for fabric in (ZCUBE, ROFT)]
    pairs = [[(flow.src, flow.dst) for flow in plan.flows] for plan in plans]
    assert pairs[0] == pairs[1]
    assert len({src for src, _ in pairs[0]}) == len({dst for _, dst in pairs[0]}) == len(pairs[0])


def test_g_to_one_crosses_the_cables_of_one_pair_of_switches() -> None:
    scenario = played(ZCUBE, "g_to_one")
    fabric = build(scenario.fabric)
    result = simulate(scenario)
    crossing = [row for row in result.transfers if row["src_port"] == 1]
    switches = {tuple(end.split("-eth")[0] for end in str(row["path"][1]).split("--")) for row in crossing}  # type: ignore[index]
    assert len(switches) == 1
    assert fabric.kind == "zcube" and len(crossing) == 8
    (real,) = durations(result)
    assert real > SIZE / B


def test_worst_is_at_least_as_bad_as_any_permutation_and_a_matching() -> None:
    assert len(matching({"a": ["x", "y"], "b": ["x"], "c": ["x", "z"]})) == 3  # needs augmenting paths
    for fabric in (ZCUBE, ROFT):
        scenario = played(fabric, "worst")
        pairs = most_on_one_cable(build(scenario.fabric), scenario.paths)
        assert len({src for src, _ in pairs}) == len({dst for _, dst in pairs}) == len(pairs)
        worst = slowest_on_a_cable(scenario)
        for seed in range(5):
            other = played(fabric, "permutation")
            assert worst >= slowest_on_a_cable(other.model_copy(update={"seed": seed, "routing": scenario.routing}))


def slowest_on_a_cable(scenario: Scenario) -> int:
    """Most transfers on one direction of a cable between switches."""
    users: defaultdict[tuple[str, int, str], set[object]] = defaultdict(set)
    for row in simulate(scenario).transfers:
        path = row["path"]
        entry = str(path[0]).split("--")[1][:3]  # type: ignore[index]  # odd to even is not even to odd
        for place, cable in enumerate(path[1:-1], 1):  # type: ignore[index]
            users[entry, place, cable].add(row["transfer_id"])
    return max((len(found) for found in users.values()), default=0)


@pytest.mark.parametrize(
    ("operation", "factor"), [("all_reduce", 1.75), ("all_gather", 0.875), ("all_to_all", 0.875), ("incast", 1.0)]
)
def test_bus_factors_are_those_of_nccl_tests(operation: str, factor: float) -> None:
    assert bus_factor(operation, 8) == factor


def test_too_many_flows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flow_plan.MOST_FLOWS == 2_000_000
    monkeypatch.setattr(flow_plan, "MOST_FLOWS", 2_000)  # as many as it says are made before it refuses
    workload = CollectiveWorkload(operation="all_to_all", repeats=3)
    with pytest.raises(InputError, match="more than 2,000 flows"):
        flow_source(check_scenario({"fabric": {"gpus": 32, "asic_ports": 8}, "workload": workload.model_dump()}))
