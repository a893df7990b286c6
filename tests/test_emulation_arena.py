"""Places in a registered memory: pieces that are taken never overlap, and all comes back."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulation.arena import ALIGNMENT_BYTES, Arena

SIZE, RESERVED = 1 << 16, 4096


@given(st.lists(st.integers(1, 9000), max_size=40), st.randoms(use_true_random=False))
def test_pieces_never_overlap_and_everything_comes_back(sizes: list[int], rng: random.Random) -> None:
    arena = Arena(SIZE, RESERVED)
    taken: list[tuple[int, int]] = []
    for size in sizes:
        if taken and rng.random() < 0.4:
            arena.give_back(*taken.pop(rng.randrange(len(taken))))
        offset = arena.take(size)
        if offset is None:  # fragments at worst: more than half of it is free only where gaps are small
            assert sum(each for _, each in taken) + size > SIZE // 16
            continue
        assert offset >= RESERVED and offset + size <= SIZE and offset % ALIGNMENT_BYTES == 0
        assert all(offset + size <= other or other + each <= offset for other, each in taken)
        taken.append((offset, size))
    rng.shuffle(taken)
    for piece in taken:
        arena.give_back(*piece)
    assert arena.take(SIZE - RESERVED) == RESERVED  # in one piece again


def test_what_does_not_fit_is_not_given() -> None:
    arena = Arena(SIZE, RESERVED)
    assert arena.take(SIZE - RESERVED + 1) is None
    assert arena.take(SIZE - RESERVED) == RESERVED
    assert arena.take(1) is None


def test_what_was_not_taken_is_not_taken_back() -> None:
    arena = Arena(SIZE, RESERVED)
    offset = arena.take(100)
    assert offset is not None
    with pytest.raises(ValueError, match="not taken"):
        arena.give_back(offset + ALIGNMENT_BYTES, 100)
    arena.give_back(offset, 100)
    with pytest.raises(ValueError, match="not taken"):
        arena.give_back(offset, 100)
