"""Content of handoffs and the account of what arrived."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from traffic.arrivals import Arriving
from traffic.pattern import LONGEST, PERIOD, content, mismatch

PEER = ("127.0.0.1", 20_000)


def test_content_is_a_function_of_transfer_and_offset() -> None:
    whole = content(7, 0, 300_000)
    assert whole[123_456:200_000] == content(7, 123_456, 200_000 - 123_456)
    assert content(8, 0, 64) != whole[:64] and len(content(1, PERIOD - 1, LONGEST)) == LONGEST


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**48), st.integers(1, 9_000), st.data())
def test_one_wrong_byte_is_found_at_its_offset(transfer: int, offset: int, size: int, data: st.DataObject) -> None:
    sent = bytearray(content(transfer, offset, size))
    assert mismatch(transfer, offset, memoryview(sent)) is None
    at = data.draw(st.integers(0, size - 1))
    sent[at] ^= data.draw(st.integers(1, 255))
    assert mismatch(transfer, offset, memoryview(sent)) == offset + at


def test_content_of_another_place_or_transfer_is_found() -> None:
    frame = memoryview(content(7, 9_000, 9_000))
    assert mismatch(7, 9_001, frame) is not None and mismatch(8, 9_000, frame) is not None


@given(st.lists(st.integers(1, 200), min_size=1, max_size=30, unique=True), st.randoms())
def test_pieces_in_any_order_make_the_whole_once(cuts: list[int], rng: object) -> None:
    edges = [0, *sorted(cuts), 201]
    pieces = list(pairwise(edges))
    rng.shuffle(pieces)  # type: ignore[attr-defined]
    arriving = Arriving(201)
    for number, (start, end) in enumerate(pieces):
        assert arriving.missing > 0
        assert arriving.add(PEER, start, end - start, number) is None
        before = max(0, start - 1)
        assert "twice" in str(arriving.add(PEER, before, end - before, number))
    assert arriving.missing == 0 and arriving.parts[PEER][0] == 201


def test_bytes_outside_the_transfer_do_not_count() -> None:
    arriving = Arriving(100)
    assert arriving.add(PEER, 90, 11, 0) == "bytes 90 to 101 of a transfer of 100"
    assert arriving.missing == 100 and not arriving.parts
