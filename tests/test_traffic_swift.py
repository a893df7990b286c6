"""Swift's window and the account of datagrams, without sockets."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traffic.datagrams import ACK, DATA, Incoming, Piece, pack, unpack
from traffic.swift import BASE_FRAMES, BETA, FS_RANGE, MAX_MDF, MIN_CWND, Swift

FRAME_NS = 1_000_000


def swift(hops: int = 3, cwnd: float = 16.0) -> Swift:
    found = Swift(FRAME_NS, hops, 16.0)
    found.cwnd = cwnd
    return found


def test_target_is_base_plus_hops_plus_flow_scaling() -> None:
    base = BASE_FRAMES * FRAME_NS
    assert swift(3).target_ns() - swift(1).target_ns() == pytest.approx(2 * FRAME_NS)
    assert swift(0, 0.1).target_ns() == pytest.approx(base * (1 + FS_RANGE))
    lone = Swift(FRAME_NS, 0, 1000.0)
    assert lone.target_ns() == pytest.approx(base)  # above FS_MAX_CWND nothing is added


def test_below_target_one_packet_a_round_trip_more() -> None:
    one = swift(cwnd=8.0)
    for _ in range(8):
        one.on_ack(FRAME_NS, 1, 0)
    assert one.cwnd == pytest.approx(9, abs=0.1)
    small = swift(cwnd=0.25)
    small.on_ack(FRAME_NS, 1, 0)
    assert small.cwnd == 1.25


def test_above_target_it_shrinks_by_the_excess_once_a_round_trip() -> None:
    one = swift(cwnd=8.0)
    target = one.target_ns()
    one.on_ack(1.25 * target, 1, 10**12)
    assert one.cwnd == pytest.approx(8 * (1 - BETA * 0.25 / 1.25))
    before = one.cwnd
    one.on_ack(1.25 * target, 1, 10**12 + 1000)
    assert one.cwnd == before
    one.on_ack(100 * target, 1, 2 * 10**12)
    assert one.cwnd == pytest.approx(before * (1 - MAX_MDF))


def test_window_stays_in_bounds_and_paces_below_one() -> None:
    one = swift()
    for turn in range(100):
        one.on_ack(FRAME_NS, 4, turn)
    assert one.cwnd == 16.0 and one.gap_ns() == 0
    for turn in range(100):
        one.on_timeout((turn + 1) * 10**12)
    assert one.cwnd == MIN_CWND and one.timeouts == 100
    assert one.gap_ns() == pytest.approx(one.rtt_ns / MIN_CWND)


def test_two_windows_that_share_a_queue_become_equal() -> None:
    """AIMD on a common delay: the delay of a queue that both fill, one frame time a packet."""
    a, b = swift(cwnd=15.0), swift(cwnd=2.0)
    now = 0.0
    for _ in range(400):
        delay = (a.cwnd + b.cwnd) * FRAME_NS
        now += delay
        for one in (a, b):
            one.on_ack(delay, max(1, round(one.cwnd)), int(now))
    assert 0.8 < a.cwnd / b.cwnd < 1.25


@given(
    st.integers(0, 65_535),
    st.integers(0, 0x7FFF),
    st.integers(0, 2**32 - 2),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**48 - 1),
    st.integers(0, 2**48 - 1),
    st.booleans(),
)
def test_a_header_comes_back(port: int, turn: int, psn: int, transfer: int, total: int, offset: int, now: bool) -> None:
    data = pack(port, turn, psn, transfer, total, offset, answer_now=now)
    found = unpack(memoryview(data), len(data) + 100)
    assert found == Piece(port, turn, psn, transfer, total, offset, 100, now)
    assert unpack(memoryview(data), DATA.size - 1) is None


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_order_pieces_count_in_theirs_and_gaps_are_told(seed: int) -> None:
    rng = random.Random(seed)
    order = list(range(60))
    rng.shuffle(order)
    incoming, came, counted = Incoming(1), set[int](), list[int]()
    for psn in order:
        piece = Piece(20_000, 1, psn, 1, 60, psn, 1, False)
        assert not incoming.has(psn)
        counted += [ready.psn for ready, _ in incoming.take(piece, 20_000)]
        came.add(psn)
        assert all(incoming.has(one) for one in came)
        data = incoming.answer(20_000, psn)
        _, _, first_missing, answers = ACK.unpack_from(data)
        beyond = int.from_bytes(data[ACK.size :], "little")
        told = set(range(first_missing)) | {first_missing + 1 + bit for bit in range(64) if beyond >> bit & 1}
        assert told == came and answers == psn
    assert counted == list(range(60))
