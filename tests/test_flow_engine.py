"""The engine of flows, and the background around an engine: what starts when, failures, and the rows they leave."""

from __future__ import annotations

import pytest

from analysis.flows import flow_metrics, is_flows
from analysis.metrics import summarise
from results.reader import RunFolder, Window
from results.schema import REQUESTS
from scenario.errors import InputError
from scenario.identity import workload_sha256
from scenario.load import check_scenario
from scenario.models import Scenario
from simulation.run import simulate, write_run
from topologies.build import build
from traffic.actions import (
    CancelTransfer,
    EmitToken,
    StartTimer,
    StartTransfer,
    TimerFired,
    TimerKey,
    TimerKind,
    TransferDone,
    TransferFailed,
)
from traffic.background import FIRST_ID, WithBackground, streams
from traffic.budget import demand, pairs_of
from traffic.engines import make_engine
from traffic.flow_engine import FlowEngine
from traffic.flow_plan import FlowPlan, PlanBuilder
from traffic.flow_sources import FlowSource
from traffic.sources import make_source

FABRIC = {"kind": "zcube", "gpus": 8, "gpus_per_server": 2, "asic_ports": 4}
SCENARIO = check_scenario(
    {"fabric": FABRIC, "workload": {"kind": "collective", "in_server": "fabric", "timeout_s": 50.0}}
)


def two_messages() -> FlowPlan:
    """A chain of two flows beside a third, then a message that waits for it with a delay."""
    plan = PlanBuilder()
    first = plan.message("test", "first", 300, 3, at_s=1.0)
    a = plan.flow(first, "gpu1", "gpu3", 100)
    plan.flow(first, "gpu3", "gpu5", 100, after=(a,), step=1)
    plan.flow(first, "gpu7", "gpu5", 100)
    second = plan.message("test", "second", 10, 2, after=(first,), needs=1, delay_s=0.5)
    plan.flow(second, "gpu1", "gpu8", 10)
    return plan.plan()


def begun() -> FlowEngine:
    engine = FlowEngine(SCENARIO, two_messages())
    assert engine.start() == [StartTimer(1.0, TimerKey(TimerKind.ARRIVAL, 0))]
    started = engine.on(TimerFired(TimerKey(TimerKind.ARRIVAL, 0)), 1.0)
    assert started == [
        StartTimer(51.0, TimerKey(TimerKind.TIMEOUT, 0)),
        StartTransfer(0, 0, "gpu1", "gpu3", 100, kind="flow"),
        StartTransfer(2, 0, "gpu7", "gpu5", 100, kind="flow"),
    ]
    return engine


def test_a_flow_waits_for_its_predecessor_and_a_message_for_the_whole() -> None:
    engine = begun()
    assert engine.on(TransferDone(0), 2.0) == [StartTransfer(1, 0, "gpu3", "gpu5", 100, kind="flow", piece=1)]
    assert engine.on(TransferDone(1), 4.0) == []
    # Reported last, stamped earlier: the message ended with its last byte.
    assert engine.on(TransferDone(2), 3.0) == [EmitToken(0, 4.0), StartTimer(4.5, TimerKey(TimerKind.ARRIVAL, 1))]
    assert not engine.finished
    engine.on(TimerFired(TimerKey(TimerKind.ARRIVAL, 1)), 4.5)
    engine.on(TransferDone(3), 5.0)
    assert engine.finished and engine.window_s == (1.0, 5.0)
    rows = engine.requests
    assert [(row["status"], row["t_arrival_s"], row["t_finished_s"]) for row in rows] == [
        ("ok", 1.0, 4.0),
        ("ok", 4.5, 5.0),
    ]
    assert {key for row in rows for key in row} <= set(REQUESTS.names)
    assert engine.on(TimerFired(TimerKey(TimerKind.TIMEOUT, 0)), 51.0) == []  # over already


@pytest.mark.parametrize("why", ["failed", "timeout"])
def test_a_message_that_fails_takes_those_that_wait_for_it(why: str) -> None:
    engine = begun()
    event = TransferFailed(2) if why == "failed" else TimerFired(TimerKey(TimerKind.TIMEOUT, 0))
    assert engine.on(event, 3.0) == [CancelTransfer(0), CancelTransfer(2)]
    assert engine.finished and engine.window_s is None
    assert [row["status"] for row in engine.requests] == [why, "failed"]
    assert engine.requests[0]["kv_bytes_wasted"] == 200
    assert engine.on(TransferDone(0), 3.1) == []  # crossed the cancellation: starts nothing


def test_a_second_report_changes_nothing_and_an_unknown_one_is_a_defect() -> None:
    engine = begun()
    engine.on(TransferDone(0), 2.0)
    assert engine.on(TransferDone(0), 2.5) == []
    for event in (TransferDone(4), TimerFired(TimerKey(TimerKind.PREFILL_DONE, 0))):
        with pytest.raises(ValueError, match="no such"):
            engine.on(event, 3.0)


def test_demand_is_that_of_the_plan() -> None:
    source = FlowSource(two_messages())
    assert pairs_of(SCENARIO, source) == [("gpu1", "gpu3"), ("gpu3", "gpu5"), ("gpu7", "gpu5"), ("gpu1", "gpu8")]
    found = demand(SCENARIO, build(SCENARIO.fabric), source)
    assert found.senders_gbps == 3 * 400
    assert (found.median_transfer_bytes, found.queue_pairs_per_transfer, found.hops) == (100, 2, 2)


def test_handoffs_that_all_stay_in_a_server_leave_nothing_to_emulate() -> None:
    serving = {"shape": "A", "layout": "per_rail", "pairing": "same_block", "block_servers": 1}
    scenario = check_scenario({"fabric": FABRIC, "workload": {"kind": "synthetic", "requests": 2}, "serving": serving})
    source = make_source(scenario)
    with pytest.raises(InputError, match="no flow crosses the fabric"):
        pairs_of(scenario, source)
    with pytest.raises(InputError, match="no flow crosses the fabric"):
        demand(scenario, build(scenario.fabric), source)


def beside(*items: dict[str, object], **workload: object) -> Scenario:
    played = {"kind": "collective", "operation": "incast", "gpus": ["gpu1", "gpu3"], "size_mb": 1000, **workload}
    return check_scenario({"fabric": FABRIC, "workload": played, "background": list(items)})


def test_background_counts_in_pairs_and_in_the_packet_budget() -> None:
    scenario = beside(
        {"kind": "flows", "pairs": ["gpu5->gpu7"], "size_mb": 10},
        {"kind": "iperf3", "pairs": ["gpu6->gpu8", "gpu3->gpu8"], "gbps": 100},
    )
    source = make_source(scenario)
    assert pairs_of(scenario, source) == [("gpu3", "gpu1"), ("gpu5", "gpu7")]
    # gpu3 and gpu5 may send at line rate; gpu6 at its pace; gpu3's own stream is in its line rate.
    assert demand(scenario, build(scenario.fabric), source).senders_gbps == 400 + 400 + 100
    assert demand(beside(), build(scenario.fabric), source).senders_gbps == 400


def test_background_without_a_rate_is_a_closed_loop_until_it_stops() -> None:
    scenario = beside({"kind": "flows", "pairs": ["gpu5->gpu7"], "size_mb": 1, "start_s": 1.0, "stop_s": 3.0})
    engine = make_engine(scenario, make_source(scenario))
    assert isinstance(engine, WithBackground)
    assert StartTimer(1.0, TimerKey(TimerKind.BACKGROUND, 0)) in engine.start()
    (sent,) = engine.on(TimerFired(TimerKey(TimerKind.BACKGROUND, 0)), 1.0)
    assert sent == StartTransfer(FIRST_ID, -1, "gpu5", "gpu7", 1_000_000, kind="background")
    (again,) = engine.on(TransferDone(FIRST_ID), 2.0)
    assert isinstance(again, StartTransfer) and again.transfer_id == FIRST_ID + 1
    assert engine.on(TransferDone(FIRST_ID + 1), 3.0) == []
    assert not engine.finished
    (account,) = engine.account()
    assert (account["messages"], account["bytes_sent"], account["bytes_arrived"]) == (2, 2_000_000, 2_000_000)


def test_background_with_a_rate_sends_it_and_slows_what_shares_its_nic() -> None:
    alone = simulate(beside()).requests[0]["t_finished_s"]
    # Half of the receiver's NIC is asked for by others, who get it: 1 GB at 200 Gb/s instead of 400.
    paced = {"kind": "flows", "pairs": ["gpu5->gpu1"], "size_mb": 5, "gbps": 200}
    result = simulate(beside(paced))
    assert alone == pytest.approx(0.02)
    assert result.requests[0]["t_finished_s"] == pytest.approx(0.04, rel=0.02)
    sent = [row for row in result.transfers if row["kind"] == "background"]
    assert len({row["transfer_id"] for row in sent}) == pytest.approx(200e9 / 8 * 0.04 / 5e6, abs=2)
    # iperf3 has no packets here: the simulation plays it as paced flows.
    played = streams(beside({"kind": "iperf3", "pairs": ["gpu5->gpu1"], "gbps": 200}), iperf3=True)
    assert [(stream.size_bytes, stream.period_s) for stream in played] == [(1_250_000_000, 0.05)]
    assert streams(beside({"kind": "iperf3", "pairs": ["gpu5->gpu1"], "gbps": 200}), iperf3=False) == []


def test_background_does_not_change_the_figures_of_the_workload_s_own_flows(tmp_path: object) -> None:
    one, other = beside(), beside({"kind": "flows", "pairs": ["gpu5->gpu7"], "size_mb": 100})
    folders = []
    for name, scenario in (("one", one), ("other", other)):
        folders.append(tmp_path / name)  # type: ignore[operator]
        write_run(folders[-1], simulate(scenario))
    first, second = (summarise(RunFolder(folder)) for folder in folders)
    for key in ("flows", "flow_bytes", "makespan_s", "mean_fct_ms", "workload_hash"):
        assert first[key] == second[key], key
    assert workload_sha256(one) != workload_sha256(other)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"kind": "iperf3", "pairs": ["gpu1->gpu9"], "gbps": 1}, "'gpu1->gpu9': GPUs are gpu1 to gpu8"),
        ({"kind": "iperf3", "pairs": ["gpu1->gpu1"], "gbps": 1}, "a GPU does not send to itself"),
        ({"kind": "iperf3", "gbps": 1}, "give either pairs or pattern"),
        ({"kind": "flows", "pattern": "permutation", "size_mb": 1, "start_s": 3, "stop_s": 2}, "must be after start_s"),
        ({"kind": "flows", "pairs": ["gpu1-gpu2"], "size_mb": 1}, "string should match pattern"),
        ({"kind": "iperf3", "pairs": ["gpu1->gpu2"], "gbps": 1, "rate": 2}, "unknown key"),
    ],
)
def test_background_that_does_not_fit(item: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        scenario = beside(item)
        demand(scenario, build(scenario.fabric), make_source(scenario))


def test_summary_has_makespan_and_nccl_bandwidths(tmp_path: object) -> None:
    workload = {"kind": "collective", "operation": "all_gather", "size_mb": 1600, "in_server": "fabric", "repeats": 2}
    scenario = check_scenario({"fabric": FABRIC, "workload": {**workload, "warmup_repeats": 1}})
    folder = tmp_path / "run"  # type: ignore[operator]
    write_run(folder, simulate(scenario, infinite_core=True))
    run = RunFolder(folder)
    summary = summarise(run)
    time_s = 7 / 8 * 1.6e9 * 8 / 400e9
    assert summary["requests"] == summary["completed"] == 2
    assert summary["makespan_s"] == pytest.approx(2 * time_s)
    assert summary["mean_message_ms"] == pytest.approx(1e3 * time_s)
    assert summary["mean_algbw_gbyte_per_s"] == pytest.approx(1.6 / time_s)
    # At full NIC rate the bus bandwidth is the NIC's, whatever the number of ranks: that is what it is for.
    assert summary["mean_busbw_gbyte_per_s"] == pytest.approx(50) and summary["mean_busbw_gbps"] == pytest.approx(400)
    assert summary["flows"] == 2 * 7 * 8 and summary["flow_bytes"] == 2 * 7 * 1_600_000_000
    assert summary["p99_fct_ms"] == pytest.approx(1e3 * time_s / 7)
    assert summary["mean_fct_slowdown"] == pytest.approx(1)
    assert "mean_ttft_ms" not in summary
    rows, transfers = run.requests(), run.transfers()
    assert is_flows(rows)
    rows.loc[rows["request_id"] == 1, ["status", "t_finished_s"]] = ["timeout", float("nan")]
    cut = flow_metrics(rows, transfers, Window(0.0, 1.0), 1, 10)
    assert (cut["completed"], cut["failed"], cut["timed_out"], cut["flows"]) == (1, 1, 1, 56)


def test_nvlink_starts_when_the_latest_predecessor_arrived_whatever_the_order_of_reports() -> None:
    scenario = check_scenario({"fabric": FABRIC, "workload": {"kind": "collective"}, "serving": {"nvlink_gbps": 8}})
    plan = PlanBuilder()
    only = plan.message("test", "only", 3, 3)
    before = (plan.flow(only, "gpu3", "gpu1", 1), plan.flow(only, "gpu5", "gpu1", 1))
    plan.flow(only, "gpu1", "gpu2", 2_000_000_000, after=before)
    engine = FlowEngine(scenario, plan.plan())
    engine.on(TimerFired(TimerKey(TimerKind.ARRIVAL, 0)), 0.0)
    engine.on(TransferDone(0), 5.0)
    # Reported second, but it arrived first; 2 GB at 8 Gb/s last two seconds from when both were there.
    assert engine.on(TransferDone(1), 4.0) == [StartTimer(7.0, TimerKey(TimerKind.LOCAL_DONE, 2))]
    engine.on(TimerFired(TimerKey(TimerKind.LOCAL_DONE, 2)), 7.0)
    assert engine.requests[0]["t_finished_s"] == 7.0 and engine.requests[0]["kv_bytes_sent"] == 2
