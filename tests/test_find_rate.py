"""The search for the serviceable rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenario.errors import InputError
from scenario.load import check_scenario
from traffic.find_rate import Bracket, loaded, reach, require_objectives, search


@given(limit=st.floats(0.04, 30))
def test_the_limit_is_bracketed_from_any_start(limit: float) -> None:
    asked: list[float] = []

    def meets(factor: float) -> bool:
        asked.append(factor)
        return factor <= limit

    found = search(meets)
    assert found.met is not None and found.missed is not None
    assert found.met <= limit < found.missed <= found.met * 1.1
    assert len(asked) < 15


def test_a_limit_out_of_reach_is_said() -> None:
    assert search(lambda _: True) == Bracket(32.0, None)
    assert search(lambda _: False) == Bracket(None, 1 / 32)


@pytest.mark.parametrize(
    ("workload", "key", "value"),
    [
        ({"kind": "coding_agent", "utilisation": 0.4}, "utilisation", 0.8),
        ({"kind": "coding_agent", "utilisation": 0.9}, "utilisation", 1.5),
        ({"kind": "synthetic"}, "speedup", 2.0),
        ({"kind": "burst", "period_s": 6.0}, "period_s", 3.0),
        ({"kind": "sessions", "path": "x.json", "users": 3}, "users", 6),
    ],
)
def test_load_is_what_the_workload_has(workload: dict[str, object], key: str, value: float) -> None:
    twice = loaded(check_scenario({"workload": workload}), 2.0)
    assert getattr(twice.workload, key) == value
    assert twice.name == ("run-x1.67" if value == 1.5 else "run-x2"), "the load that is applied, not the one asked for"


def test_without_an_objective_there_is_nothing_to_meet() -> None:
    with pytest.raises(InputError, match="needs an objective"):
        require_objectives(check_scenario({}))
    require_objectives(check_scenario({"serving": {"slo_ttft_ms": 100}}))
    require_objectives(check_scenario({"serving": {"tenants": [{"name": "a", "slo_tpot_ms": 5}]}}))


@pytest.mark.parametrize(
    "workload", [{"kind": "collective"}, {"kind": "transfers", "path": "x.csv", "direct": True}]
)
def test_what_is_played_as_flows_has_no_rate(workload: dict[str, object]) -> None:
    scenario = check_scenario({"workload": workload, "serving": {"slo_ttft_ms": 100}})
    with pytest.raises(InputError, match="serves no requests"):
        loaded(scenario, 1.0)


@pytest.mark.parametrize(
    ("workload", "sessions", "highest", "bound"),
    [
        ({"kind": "coding_agent", "utilisation": 0.5}, 9, 3.0, "utilisation 1.5"),
        ({"kind": "sessions", "path": "x.json", "users": 4}, 7, 7 / 4, "users 7: no more sessions"),
        ({"kind": "sessions", "path": "x.json", "users": 9}, 7, 1.0, "users 7: no more sessions"),
        ({"kind": "burst", "period_s": 1.0, "window_ms": 700}, 9, 10 / 7, "bursts overlap"),
        ({"kind": "burst", "period_s": 0.7, "window_ms": 700}, 9, 1.0, "bursts overlap"),
        ({"kind": "burst", "period_s": 1.0, "window_ms": 0}, 9, 32.0, "no higher"),
        ({"kind": "synthetic", "speedup": 1e6}, 9, 1.0, "speedup 1e+06"),
        ({"kind": "synthetic"}, 9, 32.0, "no higher"),
    ],
)
def test_the_search_ends_where_load_no_longer_changes(
    workload: dict[str, object], sessions: int, highest: float, bound: str
) -> None:
    scenario = check_scenario({"workload": workload})
    asked = []

    def meets(factor: float) -> bool:
        asked.append(loaded(scenario, factor, sessions).workload.model_dump_json())
        return True

    found = reach(scenario, sessions)
    assert search(meets, applied=found.applied) == Bracket(pytest.approx(highest), None)
    assert bound in found.bounds[1]
    assert len(set(asked)) == len(asked), "no load is tried twice"


def test_the_least_load_is_a_bound_too() -> None:
    scenario = check_scenario({"workload": {"kind": "coding_agent", "utilisation": 0.004}})
    found = reach(scenario)
    assert search(lambda factor: bool(loaded(scenario, factor).seed < 0), applied=found.applied) == Bracket(None, 0.25)
    assert found.bounds[0] == "workload.utilisation 0.001"


@pytest.mark.parametrize(("users", "limit"), [(1, 1), (1, 5), (3, 1), (3, 2), (3, 17), (40, 41)])
def test_a_factor_of_users_is_one_that_was_applied(users: int, limit: int) -> None:
    scenario = check_scenario({"workload": {"kind": "sessions", "path": "x.json", "users": users}})
    asked: list[int] = []

    def meets(factor: float) -> bool:
        asked.append(loaded(scenario, factor, 100).workload.users)  # type: ignore[union-attr]
        assert factor * users == pytest.approx(asked[-1])
        return asked[-1] <= limit

    found = search(meets, applied=reach(scenario, 100).applied)
    assert found.met is not None and found.missed is not None
    assert found.met * users <= limit + 1e-9 < found.missed * users
    assert len(set(asked)) == len(asked)
