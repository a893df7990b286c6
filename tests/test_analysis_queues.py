"""Queues over time: percentiles, stretches, would-be pauses, imbalance and hot ports, each worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from analysis_runs import Plan, make_run
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import ports
from analysis.fabric_metrics import ASIC_BUFFER_BYTES, fabric_metrics, pause_thresholds
from analysis.imbalance import hot_ports, imbalance, imbalance_table, members
from analysis.metrics import load, summarise
from analysis.port_series import longest, make_series, stretches, time_percentiles
from analysis.would_pause import PauseThresholds, pausing, would_pauses
from results.reader import RunFolder, Scale, Window
from scenario.models import Scenario, TelemetrySection

SCALE = Scale(rate_factor=5e-5, dilation=2.0, frame_bytes=9000, mss_bytes=8942, model_bytes_per_frame=90e6)
FABRIC = {
    "gpus": [{"name": f"gpu{n}", "server": f"server{(n + 1) // 2}"} for n in (1, 2, 3, 4)],
    "switches": [{"name": "leaf1", "tier": "leaf"}, {"name": "leaf2", "tier": "leaf"}],
    "links": [
        {"a": {"node": f"gpu{n}", "port": 1}, "b": {"node": f"leaf{2 - n % 2}", "port": (n + 1) // 2}, "gbps": 400.0}
        for n in (1, 2, 3, 4)
    ],
}
INFOS = ports.port_infos(FABRIC)


def samples(node: str, port: int, t: list[float], sent: list[int], waiting: list[float]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "t_s": t,
            "t_wall_s": [2 * value for value in t],
            "node": node,
            "port": port,
            "tx_bytes_raw": sent,
            "drops": 0,
            "backlog_bytes_raw": [9000 * frames for frames in waiting],
        }
    )


def series(*rows: tuple[int, float, float], end_s: float = 10.0):  # type: ignore[no-untyped-def]
    port, t, frames = (np.array(column) for column in zip(*rows, strict=True))
    return make_series(port.astype(np.int64), t.astype(float), frames.astype(float), end_s)


# --- time


def test_a_sample_holds_until_the_next_of_its_port() -> None:
    found = series((0, 1.0, 5), (0, 4.0, 6), (2, 2.0, 7))
    assert found.hold_s.tolist() == [3.0, 6.0, 8.0]
    assert found.begins.tolist() == [True, False, True]


def test_percentiles_are_over_time_and_not_over_samples() -> None:
    """Port 0: 9 s of nothing, 0.6 s of 10 frames, 0.4 s of 50. Five samples, of which three see the burst."""
    found = series((0, 0.0, 0), (0, 5.0, 10), (0, 5.3, 10), (0, 5.6, 50), (0, 6.0, 0), (1, 0.0, 3))
    table = time_percentiles(found.port, found.frames, found.hold_s, 3, (50, 90, 91, 95, 96, 97, 100))
    assert table[0].tolist() == [0, 0, 10, 10, 10, 50, 50]
    assert table[1].tolist() == [3] * 7
    assert np.isnan(table[2]).all()  # no sample


@settings(deadline=None)  # another machine may be slow
@given(
    st.lists(
        st.tuples(st.integers(-1, 2), st.integers(0, 5), st.integers(1, 4)),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 100),
)
def test_percentiles_are_those_of_the_repeated_values(rows: list[tuple[int, int, int]], percent: int) -> None:
    group, values, hold = (np.array(column) for column in zip(*rows, strict=True))
    found = time_percentiles(group, values.astype(float), hold.astype(float), 3, (percent,))[:, 0]
    for index in range(3):
        mine = np.repeat(values[group == index], hold[group == index])
        if mine.size:
            assert found[index] == np.percentile(mine, percent, method="inverted_cdf")
        else:
            assert np.isnan(found[index])


def test_stretches_break_at_ports_and_where_the_state_ends() -> None:
    found = series((0, 0.0, 9), (0, 1.0, 9), (0, 3.0, 0), (0, 4.0, 9), (1, 2.0, 9), (1, 2.5, 0))
    over = stretches(found, found.frames > 5)
    assert list(zip(over.port, over.start_s, over.end_s, strict=True)) == [(0, 0, 3), (0, 4, 10), (1, 2, 2.5)]
    assert over.seconds(3).tolist() == [9.0, 0.5, 0.0]
    assert over.count(3).tolist() == [2, 1, 0]
    start_s, length_s = longest(over, 3)
    assert length_s.tolist() == [6.0, 0.5, 0.0]
    assert start_s[:2].tolist() == [4.0, 2.0]
    assert math.isnan(start_s[2])


# --- would-be pauses


def test_a_pause_lasts_from_xoff_down_to_xon() -> None:
    """XOFF 16, XON 8: 20 frames at 1 s begin a pause; 12 keep it; 8 at 4 s end it; 12 begin none; 16 at 6 s do."""
    frames = [(0.0, 0), (1.0, 20), (2.0, 12), (3.0, 9), (4.0, 8), (5.0, 12), (6.0, 16), (7.0, 0)]
    found = would_pauses(series(*((0, t, f) for t, f in frames)), PauseThresholds(16, 8))
    assert list(zip(found.start_s, found.end_s, strict=True)) == [(1.0, 4.0), (6.0, 7.0)]


def test_no_port_inherits_the_pause_of_the_port_before() -> None:
    both = series((0, 0.0, 99), (1, 0.0, 12), (1, 3.0, 16), (1, 5.0, 15))
    assert pausing(both, PauseThresholds(16, 8)).tolist() == [True, False, True, True]
    assert would_pauses(both, PauseThresholds(16, 8)).seconds(2).tolist() == [10.0, 7.0]


def test_thresholds_must_have_xon_below_xoff() -> None:
    with pytest.raises(ValueError, match=r"below XOFF \(8\)"):
        PauseThresholds(8, 8)
    with pytest.raises(ValueError, match=r"telemetry\.xon_frames = 16 must be below telemetry\.xoff_frames = 4"):
        TelemetrySection(xoff_frames=4, xon_frames=16)


def test_xoff_is_held_against_a_real_buffer() -> None:
    """20 frames of 90 MB are 1.8 GB: eleven times the 165 MB of a 51.2T ASIC."""
    found = pause_thresholds(SCALE, TelemetrySection(xoff_frames=20, xon_frames=10))
    assert found["xoff_model_bytes"] == pytest.approx(1.8e9)
    assert found["xoff_asic_buffers"] == pytest.approx(1.8e9 / ASIC_BUFFER_BYTES) == pytest.approx(10.909, abs=1e-3)


# --- imbalance


def test_imbalance_by_hand() -> None:
    """Loads 1, 1, 4: mean 2, deviations -1, -1, 2, variance (1 + 1 + 4) / 3 = 2; Jain = 6^2 / (3 * 18) = 2/3."""
    found = imbalance([1.0, 1.0, 4.0])
    assert found.max_over_mean == 2.0
    assert found.cv == pytest.approx(math.sqrt(2) / 2)
    assert found.jain == pytest.approx(2 / 3) == pytest.approx(1 / (1 + found.cv**2))


def test_imbalance_at_its_ends() -> None:
    assert (imbalance([3, 3, 3, 3]).max_over_mean, imbalance([3, 3]).cv, imbalance([3, 3]).jain) == (1, 0, 1)
    assert imbalance([0, 0, 0, 7]).jain == 0.25
    assert math.isnan(imbalance([]).jain) and math.isnan(imbalance([0.0, 0.0]).cv)


WINDOW = Window(0.0, 2.0)


def reduced(table: pd.DataFrame, window: Window = WINDOW, **more: PauseThresholds) -> ports.PortFigures:
    return ports.reduce_ports(table, INFOS, SCALE, window, 16, **more)


def test_ports_know_their_switch_rail_and_nic() -> None:
    assert {(p.node, p.port): [p.member(group) for group in ports.GROUPS] for p in INFOS.values() if p.port == 2} == {
        ("leaf1", 2): ["switch ports", "leaf to gpu", "leaf1", "rail 0, receiving", "gpu3, receiving"],
        ("leaf2", 2): ["switch ports", "leaf to gpu", "leaf2", "rail 1, receiving", "gpu4, receiving"],
    }
    assert INFOS["gpu2", 1].member("rail") == "rail 1, sending"
    assert INFOS["gpu2", 1].member("switch") is None


def test_imbalance_of_rails_switches_and_nics() -> None:
    """400G at a = 5e-5 is 20 Mb/s, 10 MB in 4 s of wall time. gpu1 and gpu3 (rail 0) send 6 and 2 MB, rail 1 nothing:
    rail 0 is at 8 of 20 MB."""
    sent = {("gpu1", 1): 6, ("gpu2", 1): 0, ("gpu3", 1): 2, ("gpu4", 1): 0, ("leaf1", 1): 4, ("leaf2", 1): 4}
    table = pd.concat(
        [samples(node, port, [0.0, 2.0], [0, mb * 1_000_000], [0, 0]) for (node, port), mb in sent.items()]
    )
    found = imbalance_table(reduced(table)).set_index("scope").to_dict("index")
    rails = found["rails, sending"]
    assert rails["members"] == 2
    assert rails["utilisation_busiest"] == pytest.approx(0.4)
    assert (rails["max_over_mean"], rails["jain"], rails["busiest"]) == (pytest.approx(2), pytest.approx(0.5), "rail 0")
    nics = found["NICs, sending"]
    assert (nics["members"], nics["busiest"]) == (4, "gpu1")
    assert nics["jain"] == pytest.approx(64 / (4 * 40))
    assert found["switches, leaf"]["jain"] == pytest.approx(1)
    assert found["ports, leaf to gpu"]["members"] == 2
    assert members(reduced(table), "switch").loc["leaf1", "utilisation"] == pytest.approx(0.4)


def test_a_member_s_percentiles_are_over_the_port_seconds_of_its_ports() -> None:
    """leaf1: one port has 30 frames for 1 of 2 s, the other none: a quarter of its 4 port-seconds."""
    table = pd.concat(
        [
            samples("leaf1", 1, [0.0, 1.0, 2.0], [0, 0, 0], [30, 0, 0]),
            samples("leaf1", 2, [0.0, 2.0], [0, 0], [0, 0]),
        ]
    )
    row = members(reduced(table), "switch").loc["leaf1"]
    assert (row["backlog_p50_frames"], row["backlog_p95_frames"]) == (0, 30)
    assert row["over_threshold_port_s"] == pytest.approx(1.0)
    found = fabric_metrics(reduced(table), SCALE, Window(0.0, 2.0), Scenario().telemetry)
    assert (found["fabric_backlog_p50_frames"], found["fabric_backlog_p95_frames"]) == (0, 30)


def test_hot_ports_and_their_moments() -> None:
    """Window of 100 s, so 1 s over 16 frames makes a port hot. leaf1:1 is over at 10..10.4 and 50..51, its peak is at
    10 s; leaf1:2 is over for 0.9 s; a NIC's own queue does not count."""
    table = pd.concat(
        [
            samples("leaf1", 1, [0, 10, 10.4, 50, 51, 100], [0] * 6, [0, 40, 0, 20, 0, 0]),
            samples("leaf1", 2, [0, 10, 10.9, 100], [0] * 4, [0, 90, 0, 0]),
            samples("gpu1", 1, [0, 100], [0, 0], [500, 500]),
        ]
    )
    window = Window(0.0, 100.0)
    found = hot_ports(reduced(table, window).table, 100.0).to_dict("records")
    assert [row["label"] for row in found] == ["leaf1:1 to gpu1"]
    (row,) = found
    assert row["over_share"] == pytest.approx(0.014)
    assert (row["peak_s"], row["backlog_peak_frames"]) == (10, 40)
    assert (row["longest_over_start_s"], row["longest_over_s"]) == (50, pytest.approx(1))


def test_would_be_pauses_reach_the_summary() -> None:
    table = samples("leaf1", 1, [0.0, 0.5, 1.0, 1.5, 2.0], [0] * 5, [0, 6, 3, 2, 0])
    figures = reduced(table, pause=PauseThresholds(5, 2))
    found = fabric_metrics(figures, SCALE, Window(0.0, 2.0), TelemetrySection(xoff_frames=5, xon_frames=2))
    assert found["fabric_would_pause_port_s"] == pytest.approx(1.0)  # 6 and 3 frames
    assert found["fabric_would_pauses"] == 1
    assert found["fabric_ports"]["leaf1:1 to gpu1"]["would_pauses"] == 1
    assert found["fabric_switches"]["leaf1"]["would_pause_port_s"] == pytest.approx(1.0)
    assert found["fabric_time_over_threshold_port_s"] == 0


def test_a_run_folder_has_them_and_they_agree_with_its_samples(tmp_path: Path) -> None:
    run = RunFolder(make_run(tmp_path / "run", Plan(requests=60, warmup=5)))
    found = summarise(run, resamples=10)
    window = run.window()
    samples_of = run.ports()
    port = found["fabric_backlog_peak_port"].split(" ")[0].split(":")
    mine = samples_of[(samples_of["node"] == port[0]) & (samples_of["port"] == int(port[1]))]
    mine = mine[(mine["t_s"] >= window.t_start_s) & (mine["t_s"] <= window.t_end_s)]
    hold = np.diff(mine["t_s"], append=window.t_end_s)
    over = (mine["backlog_bytes_raw"].to_numpy() / 9000 >= 16) @ hold
    label = found["fabric_backlog_peak_port"]
    assert found["fabric_ports"][label]["over_threshold_s"] == pytest.approx(over)
    assert found["fabric_would_pause_port_s"] > 0
    assert sum(row["would_pauses"] for row in found["fabric_switches"].values()) == found["fabric_would_pauses"]
    assert {row["members"] for scope, row in found["fabric_imbalance"].items() if scope.startswith("NICs")} == {32}
    assert load(run).scenario.telemetry.xoff_frames == 16
