"""The envelope's arithmetic: errors of a step from its transfers, and what a sweep shows. No network."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("mininet.net", reason="Mininet comes with the distribution: bash vagrant/setup.sh")

from emulation.envelope import Step, conclusion, errors, scenario_of


def test_errors_by_hand() -> None:
    # Two permutations; a transfer has a row for each of its queue pairs and ends with the last of them.
    flows = {
        "request_id": [1, 1, 1, 2],
        "transfer_id": [1, 1, 2, 3],
        "t_submit_s": [0.0, 0.0, 0.0, 10.0],
        "t_done_s": [4.0, 4.4, 6.0, 15.0],
        "ideal_s": [4.0, 4.0, 5.0, 5.0],
    }
    found = errors(flows, 2.0)
    assert found["makespan_error_pct"] == pytest.approx(10.0)  # 6 + 5 against 5 + 5
    assert found["median_ratio"] == pytest.approx(1.1)  # of 1.1, 1.2, 1.0
    assert found["p95_ratio"] == pytest.approx(1.19)
    assert found["serving_s"] == pytest.approx(30.0)


STEP = Step(
    kind="zcube", gpus=32, rate_factor=1e-5, nic_mbps=4, serving_s=9, makespan_error_pct=1, median_ratio=1.01,
    p95_ratio=1.1, cpu_pct=30, budget_used_pct=50, hops_per_s=1e4, valid=True, failed=(), checks={},
)  # fmt: skip


def sweep(*steps: tuple[float, bool]) -> list[Step]:
    """Steps of (makespan error, valid), at rising rates."""
    return [
        dataclasses.replace(STEP, rate_factor=(number + 1) * 1e-5, makespan_error_pct=error, valid=valid)
        for number, (error, valid) in enumerate(steps)
    ]


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([(1, True), (2, True), (9, False), (9, False)], "from a = 3e-05; INVALID from a = 3e-05: within one step"),
        ([(1, True), (2, False), (9, False), (9, False)], "from a = 3e-05; INVALID from a = 2e-05: within one step"),
        ([(1, False), (2, False), (9, False), (9, False)], "2 steps early"),
        ([(1, True), (9, True), (9, True), (9, False)], "2 steps LATE"),
        ([(1, True), (1, True)], "at no step; INVALID at no step"),
        # 7 % at any load is the transport's own; 2 % more than that is none of the machine's
        ([(7, True), (9, True), (11, False)], "from a = 3e-05; INVALID from a = 3e-05: within one step"),
    ],
)
def test_a_sweep_shows_where_it_leaves_the_goals_and_where_it_is_invalid(
    steps: list[tuple[float, bool]], says: str
) -> None:
    assert says in conclusion(sweep(*steps))


def test_the_goals_are_wider_on_the_larger_fabric_and_hold_for_the_median_both_ways() -> None:
    assert not dataclasses.replace(STEP, makespan_error_pct=4).faithful()
    assert dataclasses.replace(STEP, makespan_error_pct=4, gpus=64).faithful()
    assert not dataclasses.replace(STEP, median_ratio=0.94).faithful()
    assert dataclasses.replace(STEP, median_ratio=0.94, gpus=64).faithful()


@pytest.mark.parametrize("kind", ["zcube", "roft"])
def test_a_flow_lasts_as_long_at_every_rate(kind: str) -> None:
    slow, fast = (scenario_of(kind, 32, a, 1).scale for a in (2e-5, 8e-5))
    assert slow.dilation == fast.dilation
    assert scenario_of(kind, 32, None, 1).scale.rate_factor is None
