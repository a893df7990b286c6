"""The search for the serviceable rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenario.errors import InputError
from scenario.load import check_scenario
from traffic.find_rate import Bracket, loaded, require_objectives, search


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
    assert getattr(twice.workload, key) == value and twice.name == "run-x2"


def test_without_an_objective_there_is_nothing_to_meet() -> None:
    with pytest.raises(InputError, match="needs an objective"):
        require_objectives(check_scenario({}))
    require_objectives(check_scenario({"serving": {"slo_ttft_ms": 100}}))
    require_objectives(check_scenario({"serving": {"tenants": [{"name": "a", "slo_tpot_ms": 5}]}}))


@pytest.mark.parametrize(
    "workload", [{"kind": "collective"}, {"kind": "transfers", "path": "x.csv", "direct": True}], ids=lambda w: w["kind"]
)
def test_what_is_played_as_flows_has_no_rate(workload: dict[str, object]) -> None:
    scenario = check_scenario({"workload": workload, "serving": {"slo_ttft_ms": 100}})
    with pytest.raises(InputError, match="serves no requests"):
        loaded(scenario, 1.0)
