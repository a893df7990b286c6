"""Every metric against a case worked out by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import metrics, ports, requests, stats, transfers
from results.reader import Scale, Window
from results.schema import REQUESTS, STAGES

SCALE = Scale(rate_factor=5e-5, dilation=2.0, frame_bytes=9000, mss_bytes=8942, model_bytes_per_frame=90e6)


def request(request_id: int, instants: tuple[float, ...], **more: Any) -> dict[str, Any]:
    """A measured request with these instants, in the order of STAGES."""
    row: dict[str, Any] = {
        "request_id": request_id,
        "session_id": request_id,
        "turn": 0,
        "warmup": False,
        "status": "ok",
        "input_tokens": 1000,
        "cached_tokens": 0,
        "output_tokens": 11,
        "slo_ttft_ms": np.nan,
    }
    row |= dict(zip((f"t_{stage}_s" for stage in STAGES), instants, strict=True))
    return row | more


def by_port(found: ports.PortFigures) -> dict[tuple[str, int], dict[str, Any]]:
    """The port table as plain values."""
    return {
        (str(row["node"]), int(row["port"])): {str(k): v for k, v in row.items()}
        for row in found.table.to_dict("records")
    }


def table(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(rows).reindex(columns=REQUESTS.names)


#: arrival 0, first token 1.0 s, finished 3.0 s
PLAIN = (0.0, 0.1, 0.3, 0.6, 0.65, 0.95, 0.97, 1.0, 3.0)


def run_data(rows: pd.DataFrame, window: Window, moved: pd.DataFrame | None = None) -> metrics.RunData:
    empty = pd.DataFrame(columns=transfers.COLUMNS)
    return metrics.RunData(rows, empty if moved is None else moved, None, SCALE, window)


# --- percentiles and intervals


def test_percentiles_are_linear_between_ranks() -> None:
    assert stats.percentile([10, 20, 30, 40], 50) == 25
    assert stats.percentile([10, 20, 30, 40], 90) == pytest.approx(37)  # rank 2.7 between 30 and 40
    assert np.isnan(stats.percentile([], 50))


def test_describe_uses_the_population_deviation_as_vllm_does() -> None:
    found = stats.describe([1.0, 3.0])
    assert (found["mean"], found["median"], found["std"]) == (2.0, 2.0, 1.0)


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 9)), min_size=1, max_size=30),
    st.sampled_from([0.0, 33.0, 50.0, 90.0, 99.0, 100.0]),
)
def test_weighted_percentiles_are_those_of_the_repeated_values(pairs: list[tuple[float, int]], percent: float) -> None:
    values = np.array([value for value, _ in pairs])
    counts = np.array([count for _, count in pairs])
    found = stats.weighted_percentiles(values, counts, (percent,))[0]
    assert found == pytest.approx(np.percentile(np.repeat(values, counts), percent))


def test_intervals_cover_the_true_mean_about_as_often_as_they_say() -> None:
    random = np.random.default_rng(3)
    hits = 0
    for trial in range(200):
        values = random.exponential(100.0, 120)
        interval = stats.bootstrap(values, np.arange(120), seed=trial, resamples=300)["mean"]
        hits += interval.low <= 100.0 <= interval.high
    assert 0.88 <= hits / 200 <= 0.99


def test_intervals_take_whole_sessions() -> None:
    """Ten sessions of 50 equal values hold ten facts, not five hundred."""
    random = np.random.default_rng(1)
    values = np.repeat(random.normal(100, 10, 10), 50)
    by_session = stats.bootstrap(values, np.repeat(np.arange(10), 50), seed=1)["mean"]
    by_request = stats.bootstrap(values, np.arange(500), seed=1)["mean"]
    ratio = (by_session.high - by_session.low) / (by_request.high - by_request.low)
    assert 5 < ratio < 9  # sqrt(50) = 7.1


def test_intervals_are_reproducible_and_need_two_sessions() -> None:
    values, units = [1.0, 2.0, 3.0], [1, 1, 2]
    assert stats.bootstrap(values, units, seed=5) == stats.bootstrap(values, units, seed=5)
    assert stats.bootstrap(values, [1, 1, 1], seed=5) == {}
    assert stats.bootstrap([], [], seed=5) == {}


# --- requests


def test_stages_sum_to_ttft() -> None:
    rows = table(request(1, PLAIN))
    stages = requests.stage_seconds(rows)
    assert stages.iloc[0].round(6).to_dict() == {
        "arrival": 0.1,
        "prefill_waiting": 0.2,
        "prefill_forward": 0.3,
        "decode_alloc": 0.05,
        "kv_transfer": 0.3,
        "decode_waiting": 0.02,
        "decode_first_step": 0.03,
        "first_token": 2.0,
    }
    total = stages[list(requests.TTFT_STAGES)].sum(axis=1) * 1e3
    assert total.iloc[0] == pytest.approx(requests.ttft_ms(rows).iloc[0]) == pytest.approx(1000)


def test_an_instant_that_did_not_happen_lasts_no_time() -> None:
    instants = (0.0, 0.1, 0.3, np.nan, 0.65, 0.95, np.nan, 1.0, 3.0)
    stages = requests.stage_seconds(table(request(1, instants))).iloc[0]
    assert (stages["decode_alloc"], stages["decode_first_step"]) == (0.0, 0.0)
    assert stages[list(requests.TTFT_STAGES)].sum() == pytest.approx(1.0)


def test_tpot_and_itl_weigh_differently() -> None:
    rows = table(
        request(1, PLAIN),  # 10 gaps in 2 s: 200 ms
        request(2, (*PLAIN[:8], 2.0), output_tokens=101),  # 100 gaps in 1 s: 10 ms
        request(3, PLAIN, output_tokens=1),  # no gap at all
    )
    found = metrics.summarise_data(run_data(rows, Window(0, 10)), seed=1, resamples=10)
    assert found["mean_tpot_ms"] == pytest.approx((200 + 10) / 2)
    assert found["mean_itl_ms"] == pytest.approx((10 * 200 + 100 * 10) / 110)
    assert found["median_itl_ms"] == pytest.approx(10)
    assert found["tpot_note"] == "compute model only"


def test_failures_are_counted_and_left_out_of_ttft() -> None:
    lost = (*PLAIN[:7], np.nan, np.nan)
    rows = table(
        request(1, PLAIN),
        request(2, lost, status="timeout"),
        request(3, lost, status="unfinished"),
        request(4, PLAIN, warmup=True),
    )
    found = metrics.summarise_data(run_data(rows, Window(0, 10)), seed=1, resamples=10)
    assert (found["requests"], found["completed"], found["failed"]) == (3, 1, 2)
    assert (found["timed_out"], found["unfinished"]) == (1, 1)
    assert found["mean_ttft_ms"] == pytest.approx(1000)
    assert found["total_output_tokens"] == 11


def test_throughput_comes_from_the_window() -> None:
    rows = table(
        request(1, PLAIN),  # finished at 3.0: inside
        request(2, tuple(t + 2 for t in PLAIN)),  # first token at 3, finished at 5: outside
        request(3, PLAIN, warmup=True),  # warm-up is served work as well
    )
    found = metrics.summarise_data(run_data(rows, Window(2.0, 4.0)), seed=1, resamples=10)
    assert found["duration"] == 2.0
    assert found["request_throughput"] == pytest.approx(2 / 2)
    # 1 and 3: half of the ten later tokens each; 2: the first one and half of the ten.
    assert found["output_throughput"] == pytest.approx((5 + 5 + 1 + 5) / 2)
    assert found["input_throughput"] == pytest.approx(1000 / 2)  # only 2 had its first token inside
    assert found["total_token_throughput"] == pytest.approx(500 + 8)


def test_a_single_output_token_counts_once() -> None:
    instants = (*PLAIN[:8], 1.0)
    rows = table(request(1, instants, output_tokens=1))
    assert requests.output_tokens_in(rows, 0.5, 1.5) == 1
    assert requests.output_tokens_in(rows, 1.5, 2.5) == 0


def test_goodput_counts_failures_as_misses() -> None:
    lost = (*PLAIN[:7], np.nan, np.nan)
    rows = table(
        request(1, PLAIN, slo_ttft_ms=1200),
        request(2, PLAIN, slo_ttft_ms=900),
        request(3, lost, slo_ttft_ms=1200, status="timeout"),
        request(4, PLAIN, slo_ttft_ms=1200),
        request(5, PLAIN, slo_ttft_ms=1200, status="timeout"),  # came in the end, but the client had gone
    )
    found = metrics.summarise_data(run_data(rows, Window(0, 4)), seed=1, resamples=10)
    assert found["slo_attainment"] == pytest.approx(2 / 5)
    assert found["request_goodput"] == pytest.approx(2 / 4)
    none = metrics.summarise_data(run_data(table(request(1, PLAIN)), Window(0, 4)), seed=1, resamples=10)
    assert "slo_attainment" not in none


def test_the_slowest_twentieth() -> None:
    rows = table(
        *(request(i, (*PLAIN[:5], 0.95 + i, 0.97 + i, 1.0 + i, 50.0)) for i in range(40)),
    )
    assert list(metrics.slowest_requests(rows)) == [39, 38]
    found = metrics.summarise_data(run_data(rows, Window(0, 60)), seed=1, resamples=10)
    assert found["slowest_stage_ms"]["kv_transfer"] == pytest.approx(1e3 * (0.3 + 38.5))
    assert sum(found["mean_stage_ms"].values()) == pytest.approx(found["mean_ttft_ms"])


def test_a_run_without_a_completed_request_has_no_figures_and_no_crash() -> None:
    lost = (*PLAIN[:7], np.nan, np.nan)
    found = metrics.summarise_data(run_data(table(request(1, lost, status="timeout")), Window(0, 4)), 1, 10)
    assert found["completed"] == 0
    assert np.isnan(found["mean_ttft_ms"])
    assert found["request_throughput"] == 0


def test_the_workload_hash_sees_the_questions_and_not_the_answers() -> None:
    rows = table(request(1, PLAIN), request(2, PLAIN))
    other = table(request(2, tuple(t + 5 for t in PLAIN), status="timeout"), request(1, PLAIN))
    assert requests.workload_hash(rows) == requests.workload_hash(other)
    changed = table(request(1, PLAIN), request(2, PLAIN, input_tokens=1001))
    assert requests.workload_hash(rows) != requests.workload_hash(changed)


# --- transfers


def flow(request_id: int, size: int, submit: float, done: float, **more: Any) -> dict[str, Any]:
    row = {"request_id": request_id, "path": ["a", "b"], "bytes": size, "t_submit_s": submit, "t_done_s": done}
    return row | {"isolated_s": 0.1, "status": "ok"} | more


def test_a_handoff_lasts_from_first_submit_to_last_byte() -> None:
    moved = pd.DataFrame(
        [
            flow(1, 100, 0.6, 0.8),
            flow(1, 300, 0.65, 1.0),
            flow(2, 50, 1.0, 1.1),
            flow(2, 50, 1.0, np.nan, status="unfinished"),
        ]
    )
    found = transfers.handoffs(moved)
    assert found.loc[1, "total_s"] == pytest.approx(0.4)
    assert found.loc[1, "bytes"] == 400
    assert found.loc[1, "slowdown"] == pytest.approx(4)
    assert found["total_s"].isna().tolist() == [False, True]  # not 0.1: a part of it never arrived
    assert transfers.gigabits_per_s(moved, Window(0.9, 1.9)) == pytest.approx((300 + 50) * 8 / 1e9)


def test_exposed_and_total_transfer_time_differ() -> None:
    moved = pd.DataFrame([flow(1, 100, 0.3, 0.95), flow(9, 100, 0.0, 50.0)])  # 9 is nobody's handoff
    found = metrics.summarise_data(run_data(table(request(1, PLAIN)), Window(0, 4), moved), 1, 10)
    assert found["p50_kv_transfer_exposed_ms"] == pytest.approx(300)
    assert found["p50_kv_transfer_total_ms"] == pytest.approx(650)
    assert found["kv_transfer_handoffs"] == 1


def test_paths_are_weighted_by_bytes_and_each_switch_adds_a_frame_time() -> None:
    rates = {"n1": 400.0, "u": 400.0, "d": 200.0}
    moved = pd.DataFrame(
        [flow(1, 300, 0, 1, path=["n1", "u", "d"]), flow(2, 100, 0, 1, path=["n1", "d"]), flow(3, 9, 0, 1, path=None)]
    )
    found = transfers.path_figures(moved, rates, SCALE)
    assert found is not None
    assert found.switches_mean == pytest.approx((3 * 2 + 1 * 1) / 4)
    assert found.one_switch_share == pytest.approx(0.25)
    # 72,000 bits at 20 Mb/s: 3.6 ms of wall time, 1.8 ms of model time; twice that at 200G.
    assert found.store_and_forward_ms == pytest.approx(0.75 * (1.8 + 3.6) + 0.25 * 3.6)
    assert transfers.path_figures(moved.iloc[2:], rates, SCALE) is None


# --- ports

FABRIC = {
    "gpus": [{"name": "gpu1", "server": "s1", "ports": []}],
    "switches": [{"name": "leaf1", "tier": "leaf"}, {"name": "spine1", "tier": "spine"}],
    "links": [
        {"id": "a", "tier": "access", "a": {"node": "gpu1", "port": 1}, "b": {"node": "leaf1", "port": 1}, "gbps": 400},
        {
            "id": "b",
            "tier": "uplink",
            "a": {"node": "leaf1", "port": 2},
            "b": {"node": "spine1", "port": 1},
            "gbps": 400,
        },
    ],
}
INFOS = ports.port_infos(FABRIC)


def samples(node: str, port: int, t: list[float], sent: list[int], waiting: list[int]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "t_s": t,
            "t_wall_s": [2 * value for value in t],
            "node": node,
            "port": port,
            "tx_bytes_raw": sent,
            "drops": [0] * len(t),
            "backlog_bytes_raw": [9000 * frames for frames in waiting],
        }
    )


def test_ports_know_their_tier_and_role() -> None:
    assert {(p.node, p.port): (p.tier, p.role) for p in INFOS.values()} == {
        ("gpu1", 1): ("gpu to leaf", "GPU to switch"),
        ("leaf1", 1): ("leaf to gpu", "switch to GPU"),
        ("leaf1", 2): ("leaf to spine", "switch to switch"),
        ("spine1", 1): ("spine to leaf", "switch to switch"),
    }


def test_load_is_bytes_over_rate_and_elapsed_wall_time() -> None:
    """400G at a = 5e-5 is 20 Mb/s. 4 s of wall time carry 10 MB at most; 2.5 MB were sent: 25 %."""
    port = samples("leaf1", 2, [0.0, 1.0, 2.0, 3.0], [0, 500_000, 2_000_000, 3_000_000], [0, 0, 0, 0])
    found = by_port(ports.reduce_ports(port, INFOS, SCALE, Window(1.0, 3.0), 16))
    assert found["leaf1", 2]["load"] == pytest.approx(2_500_000 * 8 / 20e6 / 4)
    assert found["leaf1", 2]["samples"] == 3
    assert np.isnan(found["spine1", 1]["load"])


def test_backlog_holds_until_the_next_sample() -> None:
    """Irregular samples: 10 frames for 0.5 s, 40 for 0.1 s, none for 1.4 s: the mean over time is 4.5."""
    port = samples("leaf1", 2, [0.0, 0.5, 0.6, 5.0], [0, 0, 0, 0], [10, 40, 0, 99])
    found = by_port(ports.reduce_ports(port, INFOS, SCALE, Window(0.0, 2.0), 40))
    row = found["leaf1", 2]
    assert row["backlog_peak_frames"] == 40  # the 99 came after the window
    assert row["backlog_mean_frames"] == pytest.approx((10 * 0.5 + 40 * 0.1) / 2.0)
    assert row["over_threshold_s"] == pytest.approx(0.1)


def test_order_of_rows_and_unknown_ports_do_not_matter() -> None:
    port = samples("leaf1", 2, [0.0, 1.0, 2.0], [0, 100, 900], [1, 2, 3])
    noise = samples("mgmt0", 1, [0.5], [5], [500])
    high = samples("leaf1", 99, [0.5], [5], [500])
    mixed = pd.concat([noise, port, high]).sample(frac=1, random_state=4)
    window = Window(0.0, 2.0)
    plain = ports.reduce_ports(port, INFOS, SCALE, window, 16)
    shuffled = ports.reduce_ports(mixed, INFOS, SCALE, window, 16)
    pd.testing.assert_frame_equal(plain.table, shuffled.table)
    np.testing.assert_array_equal(plain.backlog.frames, shuffled.backlog.frames)


def test_time_bins_keep_the_peak_and_carry_the_last_value() -> None:
    times = [0.0, 0.1, 0.2, 7.5]
    port = samples("leaf1", 2, times, [0] * 4, [0, 50, 3, 0])
    found = ports.reduce_ports(port, INFOS, SCALE, Window(0.0, 8.0), 16, max_bins=4).backlog
    row = [p.label for p in found.ports].index("leaf1:2 to spine1")
    assert found.bin_start_s.tolist() == [0, 2, 4, 6]
    assert found.frames[row].tolist() == [50, 3, 3, 3]  # 3 still held when the last bin began
    assert "gpu1" not in {p.node for p in found.ports}


def test_fabric_figures_sum_over_ports_and_give_model_bytes() -> None:
    both = pd.concat(
        [
            samples("leaf1", 2, [0.0, 2.0], [0, 5_000_000], [4, 4]),
            samples("spine1", 1, [0.0, 2.0], [0, 1_000_000], [0, 2]),
            samples("gpu1", 1, [0.0, 2.0], [0, 0], [1000, 1000]),  # a sender's own queue is not the fabric's
        ]
    )
    window = Window(0.0, 2.0)
    data = run_data(table(request(1, PLAIN)), window)
    data = dataclasses.replace(data, ports=ports.reduce_ports(both, INFOS, SCALE, window, 16))
    found = metrics.summarise_data(data, 1, 10)
    assert found["fabric_backlog_peak_frames"] == 4
    assert found["fabric_backlog_peak_bytes"] == pytest.approx(4 * 90e6)
    assert found["fabric_backlog_total_mean_frames"] == pytest.approx(4)
    assert found["fabric_backlog_mean_frames"] == pytest.approx(2)
    assert found["fabric_switch_ports"] == 2
    role = found["fabric_roles"]["switch to switch"]
    assert role["load_busiest"] == pytest.approx(5e6 * 8 / 20e6 / 4)
    assert role["load_mean"] == pytest.approx((0.5 + 0.1) / 2)
    assert role["busiest_port"] == "leaf1:2 to spine1"
    assert list(found["fabric_tiers"]) == ["gpu to leaf", "leaf to spine", "spine to leaf"]
