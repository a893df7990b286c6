"""How long runs will take, as it is said before they start."""

from __future__ import annotations

import pytest

from cli.estimate import AROUND_WALL_S, fabric_free, length_note, wall_minutes
from scenario.load import check_scenario
from simulation.run import simulate


def test_an_estimate_is_serving_by_the_dilation_and_what_is_around_it() -> None:
    assert wall_minutes(0.0, 5.0) == pytest.approx(AROUND_WALL_S / 60)
    assert wall_minutes(30.0, 4.0, runs=3) == pytest.approx(3 * (AROUND_WALL_S + 120) / 60)
    assert wall_minutes(30.0, None) == wall_minutes(30.0, 1.0)  # a scale that is not resolved


def test_the_note_counts_runs_and_gives_advice_where_it_is_long() -> None:
    scenario = check_scenario({"scale": {"rate_factor": 1e-4, "dilation": 10.0}})
    short = length_note("x", {"x": scenario}, 6.0)
    assert "1 run, about 1 min" in short and "takes 10 s (a = 0.0001)" in short and "Shorter" not in short
    long = length_note("x", {"a": scenario, "b": scenario, "c": scenario}, 20.0)
    assert "3 runs, about 11 min" in long and "fewer --requests" in long


def test_the_reference_pays_for_headers() -> None:
    workload = {"kind": "burst", "handoffs": 4, "repeats": 2, "period_s": 1}
    scenario = check_scenario({"fabric": {"gpus": 16, "asic_ports": 8}, "workload": workload})
    assert fabric_free(scenario).end_s > simulate(scenario, infinite_core=True).end_s
