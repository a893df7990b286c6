"""Things that last are found by time as a plain search over all of them finds them."""

from __future__ import annotations

import random

import pytest

from analysis.in_time import InTime


@pytest.mark.parametrize("seed", range(20))
def test_the_same_are_found_as_by_looking_at_all(seed: int) -> None:
    dice = random.Random(seed)
    spans = [
        (start, start + dice.randrange(0, 12)) for start in (dice.randrange(40) for _ in range(dice.randrange(30)))
    ]
    names = InTime(range(len(spans)), spans)
    for _ in range(40):
        start_s = dice.randrange(-2, 45)
        end_s = start_s + dice.randrange(1, 9)
        wanted = [place for place, (begins, ends) in enumerate(spans) if begins < end_s and ends > start_s]
        assert names.between(start_s, end_s) == wanted
