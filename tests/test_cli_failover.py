"""`zcube failover --cable`: names are held against every arm before anything runs."""

from __future__ import annotations

import pytest

from cli.failover import ARMS, cables_of_arms
from cli.options import EXPERIMENTS
from scenario.arms import arms
from scenario.errors import InputError
from scenario.load import load_scenario

SIDES = arms(load_scenario(EXPERIMENTS / "failover.yaml"), ARMS)


def test_each_arm_gets_its_own_name_or_one_that_all_have() -> None:
    assert cables_of_arms(SIDES, ["roft=leaf1", "ZCube=odd1"]) == {"ROFT": "leaf1", "ZCube": "odd1"}
    assert cables_of_arms(SIDES, ["ZCube=odd1"]) == {"ZCube": "odd1"}
    assert cables_of_arms(SIDES, []) == {}


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["odd1"], "ROFT has no cable or switch of this name"),
        (["ROFT=odd1"], "ROFT has no cable or switch of this name"),
        (["leaf1"], "ZCube has no cable or switch of this name"),
        ([""], "ROFT has no cable or switch of this name"),
        (["ZCube="], "ZCube has no cable or switch of this name"),
        (["HPN=leaf1"], "must be an arm: ROFT or ZCube"),
        (["=leaf1"], "must be an arm: ROFT or ZCube"),
        (["ROFT=leaf1", "ROFT=leaf2"], "is the second for ROFT"),
    ],
)
def test_names_that_an_arm_does_not_have_are_refused(texts: list[str], why: str) -> None:
    with pytest.raises(InputError, match=why) as error:
        cables_of_arms(SIDES, texts)
    assert error.value.field == "--cable"
