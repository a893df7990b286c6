"""Max-min fair rates: cases solved by hand, and the property that defines them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.maxmin import bottlenecks, max_min_rates

Flows = dict[int, tuple[str, ...]]

LINKS = [f"l{n}" for n in range(7)]


@st.composite
def problems(draw: st.DrawFn) -> tuple[Flows, dict[str, Fraction]]:
    """Up to 12 flows over 7 links, with capacities that often give ties."""
    routes = st.lists(st.sampled_from(LINKS), min_size=1, max_size=5, unique=True).map(tuple)
    flows = draw(st.dictionaries(st.integers(0, 30), routes, max_size=12))
    capacity = st.one_of(st.integers(1, 6).map(Fraction), st.fractions(Fraction(1, 9), 20, max_denominator=9))
    return flows, {link: draw(capacity) for link in LINKS}


def load(flows: Flows, rates: Mapping[int, float], link: str) -> float:
    return sum(rates[flow] for flow, route in flows.items() if link in route)


def test_one_flow_gets_the_narrowest_link() -> None:
    assert max_min_rates({"f": ["a", "b"]}, {"a": 10.0, "b": 4.0}) == {"f": 4.0}


def test_no_flow_no_rate() -> None:
    assert max_min_rates({}, {"a": 1.0}) == {}


def test_textbook_chain() -> None:
    """Bertsekas & Gallager, example 6.5.2's shape: a long flow over all links, short ones beside it."""
    flows = {"long": ["a", "b", "c"], "x": ["a"], "y": ["b"], "z": ["b"], "w": ["c"]}
    rates = max_min_rates(flows, {"a": 1.0, "b": 1.0, "c": 1.0})
    assert {flow: round(rate * 3, 9) for flow, rate in rates.items()} == {
        "long": 1,
        "x": 2,
        "y": 1,
        "z": 1,
        "w": 2,
    }


def test_what_a_slow_flow_leaves_goes_to_the_others() -> None:
    """Two NICs of 200 into one of 200, a third flow is held at 20 by its own link: 20 + 90 + 90."""
    flows = {1: ["nic1", "in"], 2: ["nic2", "in"], 3: ["slow", "in"]}
    rates = max_min_rates(flows, {"nic1": 200.0, "nic2": 200.0, "slow": 20.0, "in": 200.0})
    assert rates == {1: 90.0, 2: 90.0, 3: 20.0}


def test_three_levels_of_filling() -> None:
    """Levels 2 (a), 3 (b: 8 less 2, over two flows), 7 (c: 10 less 3)."""
    flows = {1: ["a"], 2: ["a", "b"], 3: ["b"], 4: ["b", "c"], 5: ["c"]}
    rates = max_min_rates(flows, {"a": 4.0, "b": 8.0, "c": 10.0})
    assert rates == {1: 2.0, 2: 2.0, 3: 3.0, 4: 3.0, 5: 7.0}


def test_the_two_directions_of_a_cable_are_two_resources() -> None:
    flows = {"there": ["gpu1-eth1", "odd1-eth2"], "back": ["gpu2-eth1", "odd1-eth1"]}
    ends = ("gpu1-eth1", "odd1-eth2", "gpu2-eth1", "odd1-eth1")
    assert max_min_rates(flows, dict.fromkeys(ends, 5.0)) == {"there": 5.0, "back": 5.0}


@given(problems())
def test_no_link_over_capacity_and_every_flow_has_a_bottleneck(
    problem: tuple[Flows, dict[str, Fraction]],
) -> None:
    """Exact arithmetic: this is the definition of max-min fairness, and it has one solution."""
    flows, capacities = problem
    rates = max_min_rates(flows, capacities)
    assert rates.keys() == flows.keys()
    for link in LINKS:
        assert load(flows, rates, link) <= capacities[link]
    for flow, route in flows.items():
        assert any(
            load(flows, rates, link) == capacities[link]
            and rates[flow] == max(rates[other] for other, way in flows.items() if link in way)
            for link in route
        )


@given(problems())
def test_floats_agree_with_exact_fractions(problem: tuple[Flows, dict[str, Fraction]]) -> None:
    flows, capacities = problem
    exact = max_min_rates(flows, capacities)
    rounded = max_min_rates(flows, {link: float(rate) for link, rate in capacities.items()})
    assert rounded == pytest.approx({flow: float(rate) for flow, rate in exact.items()}, rel=1e-9)
    assert all(bottlenecks(flows, capacities, rounded).values())


@given(problems(), st.randoms())
def test_order_is_irrelevant_to_the_last_bit(problem: tuple[Flows, dict[str, Fraction]], rng: random.Random) -> None:
    flows, exact = problem
    capacities = {link: float(rate) for link, rate in exact.items()}
    shuffled = list(flows.items())
    rng.shuffle(shuffled)
    turned = {flow: tuple(reversed(route)) for flow, route in shuffled}
    other = dict(reversed(capacities.items()))
    assert max_min_rates(turned, other) == max_min_rates(flows, capacities)


def test_bottlenecks_show_an_unfair_allocation() -> None:
    flows, capacities = {1: ["a"], 2: ["a"]}, {"a": 4.0}
    assert bottlenecks(flows, capacities, {1: 3.0, 2: 1.0}) == {1: ("a",), 2: ()}
    assert bottlenecks(flows, capacities, {1: 1.0, 2: 1.0}) == {1: (), 2: ()}


@pytest.mark.parametrize(
    ("flows", "capacities", "message"),
    [
        ({1: []}, {}, "no resource"),
        ({1: ["a", "b", "a"]}, {"a": 1.0, "b": 1.0}, "twice"),
        ({1: ["a"]}, {"a": 0.0}, "must be positive"),
        ({1: ["a"]}, {"a": float("nan")}, "must be positive"),
    ],
)
def test_what_has_no_answer_is_an_error(
    flows: dict[int, list[str]], capacities: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        max_min_rates(flows, capacities)


def test_a_link_without_capacity_is_an_error() -> None:
    with pytest.raises(KeyError):
        max_min_rates({1: ["a"]}, {})
