"""The fluid network: timelines solved by hand, and properties of random ones."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from topologies.fluid import (
    Completion,
    FluidNetwork,
    Lane,
    Striping,
    Transfer,
    isolated_s,
    replay,
    replay_completions,
)
from topologies.maxmin import max_min_rates
from topologies.paths import End, QueuePair


def lane(src: str, dst: str, *resources: str, port: int = 1, index: int = 0) -> Lane:
    """A lane between ports of the same number over the given resources."""
    return Lane(QueuePair(End(src, port), End(dst, port), index), resources)


def done(ends: list[Completion]) -> dict[int, float]:
    return {end.transfer.transfer_id: end.done_s for end in ends}


def two_port_pair(src: str = "a", dst: str = "b") -> tuple[Lane, Lane]:
    """Two lanes over disjoint paths, the second through a middle link."""
    return lane(src, dst, f"{src}1", f"{dst}1"), lane(src, dst, f"{src}2", "mid", f"{dst}2", port=2)


ENDS = [f"{gpu}{port}" for gpu in "abcd" for port in (1, 2)]
TWO_PORTS = dict.fromkeys([*ENDS, "mid"], 5.0)


def test_two_transfers_share_a_nic() -> None:
    """10 B/s, 100 B and 50 B: 5 B/s each until the short one ends at 10 s; the other's 50 B take 5 s more."""
    starts = [(Transfer(1, 100, (lane("a", "b", "a", "b"),)), 0.0), (Transfer(2, 50, (lane("a", "c", "a", "c"),)), 0.0)]
    assert replay(dict.fromkeys("abc", 10.0), starts) == {2: 10.0, 1: 15.0}


def test_arrival_in_the_middle() -> None:
    """60 B are left at 4 s; 30 B beside them take until 10 s; then 30 B are left, 3 s alone."""
    starts = [(Transfer(1, 100, (lane("a", "b", "a", "b"),)), 0.0), (Transfer(2, 30, (lane("c", "b", "c", "b"),)), 4.0)]
    assert replay(dict.fromkeys("abc", 10.0), starts) == {2: 10.0, 1: 13.0}


@pytest.mark.parametrize(
    ("striping", "done_s", "carried", "lane_done_s"),
    [("adaptive", 10.0, (50.0, 25.0), (10.0, 10.0)), ("static", 15.0, (37.5, 37.5), (7.5, 15.0))],
)
def test_crosswise_ports_with_one_lane_congested(
    striping: Striping, done_s: float, carried: tuple[float, ...], lane_done_s: tuple[float, ...]
) -> None:
    """75 B over 5 B/s beside 2.5 B/s: one pool empties at 7.5 B/s; halves of 37.5 B end at 7.5 s and 15 s."""
    other = Transfer(2, 1000, (lane("c", "d", "c2", "mid", "d2", port=2),))
    ends = replay_completions(TWO_PORTS, [(Transfer(1, 75, two_port_pair(), striping), 0.0), (other, 0.0)])
    assert ends[0].transfer.transfer_id == 1
    assert (ends[0].done_s, ends[0].lane_bytes, ends[0].lane_done_s) == (done_s, carried, lane_done_s)


def test_both_stripings_are_equal_alone() -> None:
    for striping in ("adaptive", "static"):
        assert isolated_s(TWO_PORTS, Transfer(1, 100, two_port_pair(), striping)) == 10.0


def test_static_lane_speeds_up_when_its_sister_ends() -> None:
    """Two queue pairs on one 10 B/s port, one held at 2 B/s: 8 + 2 B/s; 50 B each: 6.25 s and 25 s."""
    both = (lane("a", "b", "port", "fast"), lane("a", "b", "port", "slow", index=1))
    capacities = {"port": 10.0, "fast": 10.0, "slow": 2.0}
    assert isolated_s(capacities, Transfer(1, 100, both, "static")) == 25.0
    equal = Transfer(1, 100, (both[0], lane("a", "b", "port", "fast", index=1)), "static")
    assert isolated_s(capacities, equal) == 10.0


def test_a_queue_pair_is_first_in_first_out() -> None:
    """The second transfer of a pair waits, so the first is not slowed; the third, from elsewhere, shares."""
    pair = (lane("a", "b", "a", "b"),)
    starts = [(Transfer(n, 100, pair), float(n)) for n in range(3)]
    assert replay({"a": 10.0, "b": 10.0}, starts) == {0: 10.0, 1: 20.0, 2: 30.0}


def test_under_static_each_lane_moves_on_by_itself() -> None:
    """Lane 1 (5 B/s) ends its 50 B of the first at 10 s and goes on with the second while lane 2 (2.5 B/s, the other
    flow takes half of `mid`) needs 20 s for each."""
    other = Transfer(9, 10_000, (lane("c", "d", "c2", "mid", "d2", port=2),))
    starts = [(Transfer(n, 100, two_port_pair(), "static"), 0.0) for n in (1, 2)]
    ends = {e.transfer.transfer_id: e for e in replay_completions(TWO_PORTS, [*starts, (other, 0.0)])}
    assert ends[1].lane_done_s == (10.0, 20.0)
    assert ends[2].lane_done_s == (20.0, 40.0)
    assert (ends[1].done_s, ends[2].done_s) == (20.0, 40.0)


def test_adaptive_pool_waits_on_one_lane_and_draws_on_the_other() -> None:
    """Transfer 2 shares lane 1 with transfer 1 (20 B at 5 B/s, until 4 s): 5 B/s until then, 10 B/s after."""
    one, two = two_port_pair()
    starts = [(Transfer(1, 20, (one,)), 0.0), (Transfer(2, 60, (one, two)), 0.0)]
    ends = {e.transfer.transfer_id: e for e in replay_completions(TWO_PORTS, starts)}
    assert (ends[1].done_s, ends[2].done_s, ends[2].lane_bytes) == (4.0, 8.0, (20.0, 40.0))


def test_a_pool_emptied_by_one_lane_leaves_the_queue_of_the_other() -> None:
    """Transfer 2 ends before lane 1 is free for it; transfer 3 then takes lane 1 as if 2 had never waited."""
    one, two = two_port_pair()
    starts = [
        (Transfer(1, 100, (one,)), 0.0),
        (Transfer(2, 10, (one, two)), 0.0),
        (Transfer(3, 50, (one,)), 0.0),
    ]
    assert replay(TWO_PORTS, starts) == {2: 2.0, 1: 20.0, 3: 30.0}


def test_simultaneous_ends_are_reported_by_id() -> None:
    starts = [(Transfer(n, 50, (lane(f"s{n}", f"d{n}", f"s{n}", f"d{n}"),)), 0.0) for n in (3, 1, 2)]
    capacities = dict.fromkeys([f"{end}{n}" for end in "sd" for n in (1, 2, 3)], 7.0)
    ends = replay_completions(capacities, starts)
    assert [end.transfer.transfer_id for end in ends] == [1, 2, 3]
    assert len({end.done_s for end in ends}) == 1


def test_nothing_to_send_ends_at_once_but_in_turn() -> None:
    pair = (lane("a", "b", "a", "b"),)
    starts = [(Transfer(1, 0, pair), 3.0), (Transfer(2, 10, pair), 4.0), (Transfer(3, 0, pair, "static"), 4.0)]
    assert replay({"a": 10.0, "b": 10.0}, starts) == {1: 3.0, 2: 5.0, 3: 5.0}


def test_what_waited_with_nothing_to_send_is_reported_in_order_too() -> None:
    """Transfer 0 waits behind 1 and ends at the same instant: found later, reported first."""
    pair = (lane("a", "b", "a", "b"),)
    starts = [(Transfer(1, 10, pair), 0.0), (Transfer(0, 0, pair), 0.5)]
    ends = replay_completions({"a": 10.0, "b": 10.0}, starts)
    assert [(end.done_s, end.transfer.transfer_id) for end in ends] == [(1.0, 0), (1.0, 1)]


def test_cancel_frees_the_way_and_reports_what_was_carried() -> None:
    """20 B each at 4 s; the rest of the second, 80 B, takes 8 s alone."""
    net = FluidNetwork(dict.fromkeys("abc", 10.0))
    net.start(Transfer(1, 100, (lane("a", "b", "a", "b"),)), 0.0)
    net.start(Transfer(2, 100, (lane("a", "c", "a", "c"),)), 0.0)
    gone = net.cancel(1, 4.0)
    assert (gone.done_s, gone.lane_bytes, gone.lane_done_s) == (4.0, (20.0,), (4.0,))
    assert net.active == (2,)
    assert net.next_completion() == 12.0
    assert done(net.advance(12.0)) == {2: 12.0}


def test_cancel_of_one_that_waits_or_has_one_lane_left() -> None:
    net = FluidNetwork(TWO_PORTS)
    net.start(Transfer(1, 100, two_port_pair(), "static"), 0.0)
    net.start(Transfer(2, 0, two_port_pair(), "static"), 0.0)
    assert net.cancel(2, 1.0).lane_bytes == (0.0, 0.0)
    other = Transfer(3, 1000, (lane("c", "d", "c2", "mid", "d2", port=2),))
    net.start(other, 1.0)
    assert net.advance(10.0) == []  # lane 1 has sent its 50 B, lane 2 has 22.5 B left
    assert net.cancel(1, 11.0).lane_bytes == (50.0, 5 + 25.0)
    with pytest.raises(KeyError):
        net.cancel(1, 11.0)


def test_rates_at_an_instant() -> None:
    net = FluidNetwork(TWO_PORTS)
    one, two = two_port_pair()
    net.start(Transfer(1, 100, (one, two)), 0.0)
    net.start(Transfer(2, 100, (lane("c", "d", "c2", "mid", "d2", port=2),)), 0.0)
    net.start(Transfer(3, 100, (one,)), 0.0)  # waits
    assert net.rates() == {one.qp: 5.0, two.qp: 2.5, lane("c", "d", port=2).qp: 2.5}


def test_time_only_goes_forward_and_skips_nothing() -> None:
    net = FluidNetwork({"a": 10.0, "b": 10.0})
    assert net.next_completion() is None
    assert net.advance(5.0) == []
    only = Transfer(1, 10, (lane("a", "b", "a", "b"),))
    with pytest.raises(ValueError, match="back"):
        net.start(only, 4.0)
    net.start(only, 5.0)
    with pytest.raises(ValueError, match="under way"):
        net.start(only, 5.0)
    with pytest.raises(ValueError, match=r"advance to 6\.0 s first"):
        net.start(Transfer(2, 10, (lane("a", "b", "a", "b"),)), 6.5)
    with pytest.raises(ValueError, match="back"):
        net.advance(4.0)
    net.start(Transfer(2, 10, (lane("a", "b", "a", "b"),)), 6.0)  # at the very instant of the other's end
    assert done(net.advance(7.0)) == {1: 6.0, 2: 7.0}


def test_what_cannot_be_sent_is_an_error() -> None:
    with pytest.raises(ValueError, match="no lane"):
        Transfer(1, 10, ())
    for size in (-1.0, math.nan):
        with pytest.raises(ValueError, match="negative"):
            Transfer(1, size, (lane("a", "b", "a"),))


# Random timelines

Starts = list[tuple[Transfer, float]]
CAPACITIES = {**dict.fromkeys(ENDS, 4.0), "mid": 3.0}


@st.composite
def timelines(draw: st.DrawFn, max_size: int = 10) -> Starts:
    """Transfers between four GPUs with two ports; start times that often coincide."""
    found: Starts = []
    for number in range(draw(st.integers(1, max_size))):
        src, dst = draw(st.permutations("abcd"))[:2]
        ways = two_port_pair(src, dst)
        ways = draw(st.sampled_from([ways, ways[:1], ways[1:]]))
        size = draw(st.integers(0, 40))
        striping = draw(st.sampled_from(["adaptive", "static"]))
        found.append((Transfer(number, size, ways, striping), float(draw(st.integers(0, 12)))))
    return found


def exact_replay(starts: Starts) -> dict[int, Fraction]:
    """The same rules, written a second time for plainness: exact fractions, everything recomputed at each step."""
    rates_of = {name: Fraction(rate) for name, rate in CAPACITIES.items()}
    coming = sorted(starts, key=lambda item: (item[1], item[0].transfer_id))
    pools: list[tuple[int, tuple[Lane, ...]]] = []
    left: dict[int, Fraction] = {}
    now, ends = Fraction(0), dict[int, Fraction]()
    while coming or left:
        while coming and coming[0][1] == now:
            transfer, _ = coming.pop(0)
            parts = [(way,) for way in transfer.lanes] if transfer.striping == "static" else [transfer.lanes]
            for part in parts:
                left[len(pools)] = Fraction(int(transfer.bytes)) / len(parts)
                pools.append((transfer.transfer_id, part))
        head: dict[QueuePair, int] = {}
        for number in sorted(left):
            for way in pools[number][1]:
                head.setdefault(way.qp, number)
        flows = {(n, way.qp): way.resources for n in left for way in pools[n][1] if head[way.qp] == n}
        rates = max_min_rates(flows, rates_of)
        speed = {n: sum((Fraction(r) for (m, _), r in rates.items() if m == n), Fraction(0)) for n in left}
        steps = [left[n] / speed[n] for n in left if speed[n]]
        if coming:
            steps.append(Fraction(coming[0][1]) - now)
        step = min(steps)
        now += step
        for n in list(left):
            left[n] -= speed[n] * step
            if left[n] == 0 and speed[n]:
                del left[n]
                if not any(pools[m][0] == pools[n][0] for m in left):
                    ends[pools[n][0]] = now
    return ends


@examples(150)
@given(timelines())
def test_times_agree_with_an_exact_second_implementation(starts: Starts) -> None:
    exact = exact_replay(starts)
    assert replay(CAPACITIES, starts) == pytest.approx({n: float(t) for n, t in exact.items()}, rel=1e-9, abs=1e-9)


@given(timelines())
def test_bytes_are_conserved_and_no_transfer_is_faster_than_alone(starts: Starts) -> None:
    begun = {transfer.transfer_id: start_s for transfer, start_s in starts}
    ends = replay_completions(CAPACITIES, starts)
    assert sorted(end.transfer.transfer_id for end in ends) == sorted(begun)
    assert [(e.done_s, e.transfer.transfer_id) for e in ends] == sorted(
        (e.done_s, e.transfer.transfer_id) for e in ends
    )
    for end in ends:
        assert sum(end.lane_bytes) == pytest.approx(end.transfer.bytes, rel=1e-12)
        assert all(carried >= 0 for carried in end.lane_bytes)
        assert max(end.lane_done_s) == end.done_s
        alone = isolated_s(CAPACITIES, end.transfer)
        assert end.done_s >= begun[end.transfer.transfer_id] + alone * (1 - 1e-9)


@given(timelines(), st.randoms())
def test_order_of_simultaneous_starts_is_irrelevant(starts: Starts, rng: random.Random) -> None:
    """To the last bit; but the transfers of one pair keep their order, which is that of its queue pairs."""
    shuffled = list(starts)
    rng.shuffle(shuffled)
    assert replay(CAPACITIES, shuffled) == replay(CAPACITIES, starts)

    by_pair: dict[tuple[str, str], Starts] = {}
    for item in sorted(starts, key=lambda item: (item[1], item[0].transfer_id)):
        qp = item[0].lanes[0].qp
        by_pair.setdefault((qp.src.node, qp.dst.node), []).append(item)
    net, found = FluidNetwork(CAPACITIES), dict[int, float]()
    for start_s in sorted({start for _, start in starts}):
        found |= done(net.advance(start_s))
        for pair in rng.sample(sorted(by_pair), len(by_pair)):
            for transfer, at_s in by_pair[pair]:
                if at_s == start_s:
                    net.start(transfer, start_s)
    found |= done(net.advance(1e9))
    assert found == replay(CAPACITIES, starts)


@given(timelines(), st.lists(st.floats(0, 60), max_size=20))
def test_looking_at_the_clock_changes_nothing(starts: Starts, looks: list[float]) -> None:
    net, found = FluidNetwork(CAPACITIES), dict[int, float]()
    steps: list[tuple[float, int, Transfer | None]] = [(t, -1, None) for t in looks]
    steps += [(start_s, transfer.transfer_id, transfer) for transfer, start_s in starts]
    for at_s, _, transfer in sorted(steps, key=lambda step: step[:2]):
        found |= done(net.advance(at_s))
        if transfer is not None:
            net.start(transfer, at_s)
        net.rates()
    found |= done(net.advance(1e9))
    assert found == replay(CAPACITIES, starts)


@given(timelines(), st.floats(0.25, 4.0))
def test_time_scales_with_the_rate(starts: Starts, factor: float) -> None:
    """The scale model's premise: all rates and times multiplied, nothing else changes."""
    faster = {name: rate * factor for name, rate in CAPACITIES.items()}
    sooner = [(transfer, start_s / factor) for transfer, start_s in starts]
    scaled = {n: t / factor for n, t in replay(CAPACITIES, starts).items()}
    assert replay(faster, sooner) == pytest.approx(scaled, rel=1e-9, abs=1e-9)
