"""Gaps of the sampler, and two counts of the same bytes, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from emulation.checks import sampler_checks, telemetry_checks
from emulation.counter_check import compare_counters
from emulation.sampling_gaps import Gap, Watch, gap_rows
from results.schema import GAPS
from scenario.fidelity_section import FidelitySection

MS = 1_000_000


def watched(
    *samples: tuple[float, int], end_ms: float, start_ms: float = 0.0, unseen_after_ms: float = math.inf
) -> list[Gap]:
    """Gaps of a node with ticks of 2 ms: (ms, ticks until the next sample is due)."""
    watch = Watch(2 * MS, unseen_after_ms * MS)
    watch.begin(round(start_ms * MS), 1)
    for t_ms, ticks in samples:
        watch.sampled(round(t_ms * MS), ticks)
    return watch.finish(round(end_ms * MS))


def test_a_gap_is_longer_than_three_periods() -> None:
    assert watched((2, 1), (8, 1), (10, 1), end_ms=12) == []  # 6 ms are three periods
    assert watched((2, 1), (8.1, 1), end_ms=10) == [Gap(2 * MS, round(8.1 * MS), 2 * MS)]


def test_a_node_at_rest_is_due_later() -> None:
    """At rest it is looked at every four ticks: 24 ms are three periods then."""
    assert watched((2, 4), (26, 1), end_ms=28) == []
    assert watched((2, 4), (26.1, 1), end_ms=28) == [Gap(2 * MS, round(26.1 * MS), 8 * MS)]
    assert watched((2, 4), (10, 1), (17, 1), end_ms=18) == [Gap(10 * MS, 17 * MS, 2 * MS)]


def test_what_is_missing_at_both_ends_counts_and_what_came_before_serving_does_not() -> None:
    assert watched((7, 1), end_ms=8) == [Gap(0, 7 * MS, 2 * MS)]
    assert watched((2, 1), end_ms=9) == [Gap(2 * MS, 9 * MS, 2 * MS)]
    assert watched((-90, 1), (1, 1), end_ms=2) == []
    assert watched((-4, 4), (20, 1), end_ms=21) == []  # at rest as serving began: 24 ms may pass


def test_unseen_is_what_of_a_gap_lies_beyond_eight_periods_of_the_full_rate() -> None:
    """Ticks of 2 ms: eight periods are 16 ms. A gap of 6 to 16 ms has no unseen time, one of 21 ms has 5 ms."""
    gaps = watched((2, 1), (18, 1), (39, 1), end_ms=40, unseen_after_ms=16)
    assert gaps == [Gap(2 * MS, 18 * MS, 2 * MS), Gap(18 * MS, 39 * MS, 2 * MS, 5 * MS)]


def test_whatever_is_unseen_is_a_gap_a_switch_at_rest_included() -> None:
    """Three of its periods at rest would be 24 ms: what is judged after 16 ms must not be missing in the table."""
    assert watched((2, 4), (18, 1), end_ms=20, unseen_after_ms=16) == []
    assert watched((2, 4), (19, 1), end_ms=20, unseen_after_ms=16) == [Gap(2 * MS, 19 * MS, 8 * MS, 1 * MS)]


def test_unseen_time_is_that_of_serving_as_gaps_are() -> None:
    """From the start on, whatever came before; the last sample to the end counts."""
    gaps = watched((-90, 1), (17, 1), end_ms=34.5, unseen_after_ms=16)
    assert [gap.unseen_ns for gap in gaps] == [1 * MS, 1.5 * MS]


def test_what_fidelity_judges_is_the_sum_of_the_table() -> None:
    watch = Watch(2 * MS, 16.0 * MS)
    watch.begin(0, 1)
    for t_ms in (2, 10, 40, 80, 90):
        watch.sampled(t_ms * MS, 1)
    rows = gap_rows("leaf1", watch.finish(91 * MS), 0, 2.0)
    assert [round(1e3 * float(row["unseen_wall_s"])) for row in rows] == [0, 14, 24, 0]
    assert watch.unseen_s == pytest.approx(sum(float(row["unseen_wall_s"]) for row in rows)) == pytest.approx(0.038)
    judged, told = (
        {check.name: check for check in checks}
        for checks in (
            sampler_checks({"wall_s": 2.0, "serving_s": 1.0, "unseen_s": watch.unseen_s}, 2.0, 4.0, FidelitySection()),
            telemetry_checks({"gaps": len(rows), "gap_max_ms": 40.0, "gaps_node_s": 0.088, "nodes": 1}, None),
        )
    )
    assert judged["sampler_gap_pct"].value == pytest.approx(3.8) and judged["sampler_gap_pct"].ok
    assert "time of gaps beyond 8 sample periods (16 ms)" in judged["sampler_gap_pct"].text
    assert "longest of 4 gaps of more than 3 periods" in told["sampler_gap_max_ms"].text


def test_rows_are_those_of_the_table_with_model_time_beside_wall_time() -> None:
    (row,) = gap_rows("leaf1", [Gap(1_000 * MS, 1_030 * MS, 2 * MS)], 400 * MS, 3.0)
    assert list(row) == GAPS.names
    assert row == {
        "node": "leaf1",
        "t_s": pytest.approx(0.2),
        "t_wall_s": pytest.approx(0.6),
        "length_s": pytest.approx(0.01),
        "length_wall_s": pytest.approx(0.03),
        "period_wall_s": pytest.approx(0.002),
        "unseen_wall_s": 0.0,
    }


def counts(node: str, rows: list[tuple[float, int]], late_s: tuple[float, ...] = ()) -> pd.DataFrame:
    """Counts of a port that was 100 s old at 0; a reply may reach the controller late."""
    t, sent = (np.array(column) for column in zip(*rows, strict=True))
    arrived = t + np.array(late_s) if late_s else t
    return pd.DataFrame({"t_wall_s": arrived, "node": node, "port": 1, "tx_bytes_raw": sent, "duration_s": 100 + t})


def test_counters_that_began_apart_agree() -> None:
    """OpenFlow counts from the port's making, the queue from the qdisc's: only what they grew by is compared."""
    ours = counts("leaf1", [(0.0, 0), (10.0, 9_000_000)])
    told = counts("leaf1", [(-1.0, 7), (1.0, 1_000_000), (2.0, 1_900_000), (9.0, 8_200_000), (11.0, 5)])
    found = compare_counters(told, ours, 9000)
    assert found is not None
    assert (found.ports, found.times) == (1, 3)  # replies before the first and after the last sample do not count
    assert found.frames == pytest.approx(0)
    assert found.end_share == pytest.approx(0)


def test_a_reply_that_reached_the_controller_late_is_not_a_difference() -> None:
    """900,000 bytes/s: 0.2 s late would be 20 frames."""
    ours = counts("leaf1", [(0.0, 0), (10.0, 9_000_000)])
    rows = [(1.0, 900_000), (2.0, 1_800_000), (3.0, 2_700_000)]
    found = compare_counters(counts("leaf1", rows, (0.002, 0.2, 0.002)), ours, 9000)
    assert found is not None and found.frames == pytest.approx(0, abs=1e-6)


def test_the_worst_port_and_time_are_told() -> None:
    """leaf2 is 45,000 bytes (5 frames) off at 2 s, and 18,000 of 1,800,000 (1 %) at its end."""
    ours = pd.concat([counts(f"leaf{n}", [(0.0, 0), (10.0, 9_000_000)]) for n in (1, 2)])
    told = pd.concat(
        [
            counts("leaf1", [(1.0, 0), (3.0, 1_800_000 + 9000)]),
            counts("leaf2", [(1.0, 0), (2.0, 900_000 - 45_000), (3.0, 1_800_000 - 18_000)]),
            counts("leaf9", [(1.0, 0), (2.0, 10**9)]),  # not sampled
        ]
    )
    found = compare_counters(told, ours, 9000)
    assert found is not None
    assert (found.node, found.port, found.ports, found.times) == ("leaf2", 1, 2, 5)
    assert found.frames == pytest.approx(5)
    assert found.end_share == pytest.approx(0.01)


def test_one_common_time_compares_nothing() -> None:
    assert compare_counters(counts("leaf1", [(1.0, 5)]), counts("leaf1", [(0.0, 0), (2.0, 9)]), 9000) is None
