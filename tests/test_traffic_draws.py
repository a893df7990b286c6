"""Keyed draws and placement."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traffic.rng import LogNormal, QuantileTable, choice, exponential, lognormal, uniform


def test_a_draw_depends_on_seed_key_and_purpose_only() -> None:
    keys = [(s, t) for s in range(40) for t in range(5)]
    forwards = {key: uniform(1, *key, purpose="think") for key in keys}
    backwards = {key: uniform(1, *key, purpose="think") for key in reversed(keys)}
    assert forwards == backwards
    assert len(set(forwards.values())) == len(keys)
    assert uniform(2, 0, 0, purpose="think") != forwards[0, 0]
    assert uniform(1, 0, 0, purpose="output") != forwards[0, 0]


def test_keys_do_not_run_together() -> None:
    assert uniform(1, 1, 23, purpose="p") != uniform(1, 12, 3, purpose="p")
    assert uniform(1, 1, purpose="p") != uniform(1, "1", purpose="p")
    assert uniform(11, 1, purpose="p") != uniform(1, 11, purpose="p")


def test_a_draw_is_the_same_on_every_machine() -> None:
    # A pinned value: a change here changes every seeded result.
    draw = uniform(1, 2, 3, purpose="think")
    assert draw == 0.5187249310023905


def test_uniform_is_uniform_and_uncorrelated() -> None:
    draws = [uniform(7, i, purpose="x") for i in range(20_000)]
    assert min(draws) > 0 and max(draws) < 1
    assert statistics.fmean(draws) == pytest.approx(0.5, abs=0.01)
    assert statistics.pvariance(draws) == pytest.approx(1 / 12, rel=0.03)
    assert statistics.correlation(draws[:-1], draws[1:]) == pytest.approx(0, abs=0.03)
    others = [uniform(8, i, purpose="x") for i in range(20_000)]
    assert statistics.correlation(draws, others) == pytest.approx(0, abs=0.03)


def test_exponential_lognormal_choice() -> None:
    waits = [exponential(1, i, purpose="w", mean=3.0) for i in range(20_000)]
    assert statistics.fmean(waits) == pytest.approx(3.0, rel=0.03)
    law = LogNormal(median=10.0, sigma=0.8)
    values = sorted(lognormal(1, i, purpose="v", law=law) for i in range(20_000))
    assert values[10_000] == pytest.approx(10.0, rel=0.03)
    assert statistics.fmean(values) == pytest.approx(law.mean, rel=0.03)
    picks = [choice(1, i, purpose="c", options=["a", "b", "c"]) for i in range(3000)]
    assert all(900 < picks.count(x) < 1100 for x in "abc")


def test_length_biased_is_the_law_weighted_by_value() -> None:
    law = LogNormal(median=10.0, sigma=0.8)
    # Mean of the weighted law is E[X^2] / E[X].
    second_moment = law.median**2 * math.exp(2 * law.sigma**2)
    assert law.length_biased().mean == pytest.approx(second_moment / law.mean)


@given(p=st.floats(0, 1))
def test_quantile_table(p: float) -> None:
    table = QuantileTable((0.0, 0.5, 0.9, 1.0), (10.0, 100.0, 100.0, 5000.0))
    assert 10.0 <= table.quantile(p) <= 5000.0 * (1 + 1e-12)
    for q, value in zip(table.probabilities, table.values, strict=True):
        assert table.quantile(q) == pytest.approx(value)


def test_quantile_table_mean_is_the_integral() -> None:
    table = QuantileTable((0.0, 0.5, 1.0), (10.0, 100.0, 5000.0))
    numeric = statistics.fmean(table.quantile((i + 0.5) / 20_000) for i in range(20_000))
    assert table.mean == pytest.approx(numeric, rel=1e-4)


@pytest.mark.parametrize(
    ("p", "v"),
    [((0.0, 0.5), (1.0, 2.0)), ((0.0, 1.0), (2.0, 1.0)), ((0.0, 1.0), (0.0, 1.0)), ((0.0, 0.0, 1.0), (1.0, 1.0, 2.0))],
)
def test_bad_quantile_tables(p: tuple[float, ...], v: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="quantile table"):
        QuantileTable(p, v)
