"""What held transfers back: cases solved by hand, and that no second is lost or found."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.fluid import Lane, Transfer, replay
from topologies.held_back import Account, account
from topologies.paths import End, QueuePair


def lane(src: str, dst: str, *inner: str, port: int = 1, index: int = 0) -> Lane:
    """From NIC `src` over inner ports to the port that leads into `dst`."""
    ports = (f"{src}{port}", *inner, f"to-{dst}{port}")
    return Lane(QueuePair(End(src, port), End(dst, port), index), ports, tuple(f"cable {port}" for port in ports))


def whole(number: int, size: float, *lanes: Lane) -> Transfer:
    return Transfer(number, size, lanes)


def by_id(capacity: float, *starts: tuple[Transfer, float], **others: float) -> dict[int, Account]:
    names = {name for transfer, _ in starts for each in transfer.lanes for name in each.resources}
    capacities = dict.fromkeys(names, capacity) | {name.replace("_", "-"): rate for name, rate in others.items()}
    return {item.transfer.transfer_id: item for item in account(capacities, starts)}


def losses(item: Account) -> dict[str, float]:
    return {cause: item.lost_s(cause) for cause in ("sender", "incast", "avoidable")}  # type: ignore[arg-type]


def test_alone_nothing_is_lost() -> None:
    found = by_id(10, (whole(1, 100, lane("a", "b", "up", "down")), 0.0))
    assert (found[1].alone_s, found[1].done_s, found[1].held) == (10.0, 10.0, ())


def test_two_sources_to_one_destination_are_incast_wherever_they_meet() -> None:
    """100 B each at 10 B/s: 5 B/s each for 20 s, so each loses 10 s; their final port is shared, and full."""
    found = by_id(10, (whole(1, 100, lane("a", "d", "u1", "v")), 0.0), (whole(2, 100, lane("b", "d", "u2", "v")), 0.0))
    for item in found.values():
        assert losses(item) == {"sender": 0, "incast": pytest.approx(10), "avoidable": 0}
        assert {row.port for row in item.held} == {"to-d1"}


def test_flows_that_part_later_are_avoidable() -> None:
    found = by_id(10, (whole(1, 100, lane("a", "c", "up")), 0.0), (whole(2, 100, lane("b", "d", "up")), 0.0))
    for item in found.values():
        assert losses(item) == {"sender": 0, "incast": 0, "avoidable": pytest.approx(10)}
        assert {row.port for row in item.held} == {"up"}


def test_one_nic_with_two_transfers_is_the_sender() -> None:
    found = by_id(10, (whole(1, 100, lane("a", "c", "u1")), 0.0), (whole(2, 100, lane("a", "d", "u2")), 0.0))
    for item in found.values():
        assert losses(item) == {"sender": pytest.approx(10), "incast": 0, "avoidable": 0}


def test_a_queue_pair_that_is_busy_is_the_sender() -> None:
    """Messages of one queue pair are in order: the second waits 10 s, then takes 10 s."""
    both = lane("a", "c", "u1")
    found = by_id(10, (whole(1, 100, both), 0.0), (whole(2, 100, both), 0.0))
    assert found[1].held == ()
    assert losses(found[2]) == {"sender": pytest.approx(10), "incast": 0, "avoidable": 0}


def test_mixed_port_splits_by_what_the_own_group_would_take() -> None:
    """a and b to x, c to y, all over `up` (12 B/s, NICs too): 4 B/s each. Alone 12. a's group of two would leave it 6:
    of each second a loses 6/12 by incast and 2/12 avoidably, c loses 8/12 avoidably, while all three send."""
    starts = [
        (whole(1, 120, lane("a", "x", "up")), 0.0),
        (whole(2, 120, lane("b", "x", "up")), 0.0),
        (whole(3, 120, lane("c", "y", "up")), 0.0),
    ]
    found = by_id(12, *starts)
    assert {item.done_s for item in found.values()} == {30.0}
    assert losses(found[1]) == {"sender": 0, "incast": pytest.approx(15), "avoidable": pytest.approx(5)}
    assert losses(found[3]) == {"sender": 0, "incast": 0, "avoidable": pytest.approx(20)}


def test_incast_before_a_narrow_uplink_is_not_blamed_on_the_uplink() -> None:
    """The final port is as full as the uplink before it: another topology would change nothing."""
    found = by_id(10, (whole(1, 100, lane("a", "d", "up")), 0.0), (whole(2, 100, lane("b", "d", "up")), 0.0))
    assert losses(found[1]) == {"sender": 0, "incast": pytest.approx(10), "avoidable": 0}


def test_adaptive_lanes_share_a_loss_by_where_they_are_short() -> None:
    """Two ports of 10 B/s; port 2's path is shared from 0 s with a long flow elsewhere: 10 + 5 B/s.
    150 B take 10 s instead of 7.5: 2.5 s are lost, all on `mid`."""
    pair = (lane("a", "b", "left"), lane("a", "b", "mid", port=2))
    found = by_id(10, (whole(1, 150, *pair), 0.0), (whole(2, 1000, lane("c", "e", "mid", port=2)), 0.0))
    assert found[1].done_s == pytest.approx(10)
    assert [(row.port, row.cause) for row in found[1].held] == [("mid", "avoidable")]
    assert found[1].lost_s() == pytest.approx(2.5)


def test_static_counts_the_lane_that_ends_last() -> None:
    """The same with halves of 75 B: the left one ends at 7.5 s, the other at 15 s: 7.5 s are lost on `mid`."""
    pair = (lane("a", "b", "left"), lane("a", "b", "mid", port=2))
    both = Transfer(1, 150, pair, "static")
    found = by_id(10, (both, 0.0), (whole(2, 1000, lane("c", "e", "mid", port=2)), 0.0))
    assert found[1].done_s == pytest.approx(15)
    assert losses(found[1]) == {"sender": 0, "incast": 0, "avoidable": pytest.approx(7.5)}


def test_a_loss_says_when() -> None:
    """The second comes at 4 s with 30 B: both have 5 B/s until 10 s, and the first is alone again."""
    found = by_id(10, (whole(1, 100, lane("a", "d", "u")), 0.0), (whole(2, 30, lane("b", "d", "v")), 4.0))
    assert [(row.start_s, row.end_s, row.cause) for row in found[1].held] == [(4.0, 10.0, "incast")]
    assert found[1].lost_s() == pytest.approx(3)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_time_is_conserved_and_the_replay_is_that_of_the_reference(seed: int) -> None:
    draw = random.Random(seed)
    gpus, uplinks = [f"g{n}" for n in range(6)], ["u1", "u2", "u3"]
    names = [f"{g}{p}" for g in gpus for p in (1, 2)] + [f"to-{g}{p}" for g in gpus for p in (1, 2)] + uplinks
    capacities = {name: draw.choice([5.0, 10.0, 20.0]) for name in names}
    paths = {(s, d, p): draw.choice(uplinks) for s in gpus for d in gpus for p in (1, 2)}
    starts = []
    for number in range(draw.randint(1, 12)):
        src, dst = draw.sample(gpus, 2)
        ports = draw.choice([(1,), (1, 2)])
        lanes = tuple(lane(src, dst, paths[src, dst, p], port=p) for p in ports)
        size, start_s = draw.choice([10.0, 50.0, 100.0]), draw.choice([0.0, 1.0, draw.random() * 9])
        starts.append((Transfer(number, size, lanes), start_s))
    found = account(capacities, starts)
    expected = replay(capacities, starts)
    assert {item.transfer.transfer_id: pytest.approx(item.done_s) for item in found} == expected
    for item in found:
        assert item.done_s - item.start_s == pytest.approx(item.alone_s + item.lost_s(), rel=1e-6, abs=1e-6)
        assert all(row.lost_s >= 0 and row.end_s > row.start_s for row in item.held)


def test_what_holds_the_first_of_a_queue_pair_back_holds_back_the_next() -> None:
    """a sends 1 and then 2 on one queue pair to d, b sends 3 to d as well. 10 B/s: 1 and 3 share for 20 s; then 2, of
    100 B, is alone. Of the 20 s that 2 waits, half would be the wait behind 1 alone: `sender`; half is the incast."""
    first = lane("a", "d", "u")
    other = whole(3, 100, lane("b", "d", "v"))
    found = by_id(10, (whole(1, 100, first), 0.0), (whole(2, 100, first), 0.0), (other, 0.0))
    assert found[2].done_s == pytest.approx(30)
    assert losses(found[2]) == {"sender": pytest.approx(10), "incast": pytest.approx(10), "avoidable": 0}
