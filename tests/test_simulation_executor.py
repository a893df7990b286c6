"""The virtual-time executor: order of events, cancellation, and rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenario.errors import RunError
from simulation.executor import Sent, VirtualTime
from simulation.rows import transfer_rows, whole_bytes
from topologies.fluid import FluidNetwork, Transfer, core_lanes
from traffic.actions import (
    Action,
    CancelTransfer,
    EmitToken,
    Event,
    StartTimer,
    StartTransfer,
    TimerFired,
    TimerKey,
    TimerKind,
    TransferDone,
)
from traffic.engine import Engine

CAPACITIES = {f"gpu{n}-{way}": 10.0 for n in range(1, 5) for way in ("out", "in")}


class Script:
    """Stands for the engine: gives the next actions by event, and is finished after `length` events."""

    def __init__(self, first: list[Action], then: dict[Event, list[Action]], length: int) -> None:
        self.first, self.then, self.length = first, then, length
        self.seen: list[tuple[float, Event]] = []

    def start(self) -> list[Action]:
        return self.first

    def on(self, event: Event, t_s: float) -> list[Action]:
        self.seen.append((t_s, event))
        return self.then.get(event, [])

    @property
    def finished(self) -> bool:
        return len(self.seen) >= self.length


def over_core(order: StartTransfer) -> Transfer:
    return Transfer(order.transfer_id, order.bytes, core_lanes(order.src_gpu, order.dst_gpu))


def play(script: Script, plan: Callable[[StartTransfer], Transfer] = over_core) -> VirtualTime:
    run = VirtualTime(cast(Engine, script), FluidNetwork(CAPACITIES), plan)
    run.run()
    return run


def key(kind: TimerKind, number: int) -> TimerKey:
    return TimerKey(kind, number)


def send(number: int, src: int, dst: int, size: int) -> StartTransfer:
    return StartTransfer(number, number, f"gpu{src}", f"gpu{dst}", size)


def test_simultaneous_events_come_by_time_kind_and_id() -> None:
    """At 5 s: both transfers by id, then timers by kind and id, whatever the order in which they were asked for."""
    timers = [
        (TimerKind.TIMEOUT, 0), (TimerKind.ARRIVAL, 3), (TimerKind.ARRIVAL, 2), (TimerKind.FINISHED, 9),
    ]  # fmt: skip
    first: list[Action] = [StartTimer(5.0, key(*t)) for t in timers]
    script = Script([*first, send(8, 3, 4, 50), send(7, 1, 2, 50)], {}, 6)
    play(script)
    assert script.seen == [
        (5.0, TransferDone(7)),
        (5.0, TransferDone(8)),
        (5.0, TimerFired(key(TimerKind.FINISHED, 9))),
        (5.0, TimerFired(key(TimerKind.ARRIVAL, 2))),
        (5.0, TimerFired(key(TimerKind.ARRIVAL, 3))),
        (5.0, TimerFired(key(TimerKind.TIMEOUT, 0))),
    ]


def test_a_transfer_started_in_the_middle_slows_the_other() -> None:
    """100 B at 10 B/s; at 4 s 30 B to the same GPU: ends at 10 s and 13 s."""
    arrival = key(TimerKind.ARRIVAL, 1)
    script = Script([send(1, 1, 4, 100), StartTimer(4.0, arrival)], {TimerFired(arrival): [send(2, 2, 4, 30)]}, 3)
    run = play(script)
    assert script.seen == [(4.0, TimerFired(arrival)), (10.0, TransferDone(2)), (13.0, TransferDone(1))]
    assert {n: sent.t_submit_s for n, sent in run.sent.items()} == {1: 0.0, 2: 4.0}


def test_a_timer_in_the_past_fires_now() -> None:
    late, early = key(TimerKind.ARRIVAL, 1), key(TimerKind.FINISHED, 1)
    script = Script([StartTimer(3.0, late)], {TimerFired(late): [StartTimer(1.0, early)]}, 2)
    play(script)
    assert script.seen == [(3.0, TimerFired(late)), (3.0, TimerFired(early))]


def test_a_cancelled_transfer_is_not_reported_and_frees_its_nic() -> None:
    out = key(TimerKind.TIMEOUT, 1)
    script = Script(
        [send(1, 1, 4, 100), send(2, 2, 4, 100), StartTimer(4.0, out)],
        {TimerFired(out): [CancelTransfer(1)]},
        2,
    )
    run = play(script)
    assert script.seen == [(4.0, TimerFired(out)), (12.0, TransferDone(2))]
    assert run.sent[1].end is None
    rows = {row["transfer_id"]: row for row in transfer_rows(run.sent.values(), CAPACITIES)}
    assert (rows[1]["status"], rows[1]["bytes"], rows[1]["path"]) == ("unfinished", 100, [])
    assert math.isnan(cast(float, rows[1]["t_done_s"]))
    assert (rows[2]["status"], rows[2]["t_done_s"], rows[2]["isolated_s"]) == ("ok", 12.0, 10.0)


def test_cancel_at_the_instant_of_the_end() -> None:
    """Transfer 1's end cancels 2, which ended at the same instant: it is not reported to the engine again."""
    tick = key(TimerKind.ARRIVAL, 0)
    script = Script(
        [send(1, 1, 2, 50), send(2, 3, 4, 50), StartTimer(6.0, tick)],
        {TransferDone(1): [CancelTransfer(2)]},
        2,
    )
    play(script)
    assert script.seen == [(5.0, TransferDone(1)), (6.0, TimerFired(tick))]


def test_tokens_need_nothing() -> None:
    tick = key(TimerKind.ARRIVAL, 0)
    play(Script([EmitToken(1, 0.0), StartTimer(1.0, tick)], {}, 1))


def test_an_engine_that_waits_for_nothing_is_an_error() -> None:
    with pytest.raises(RunError, match="waits for no timer"):
        play(Script([], {}, 1))


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=8))
def test_whole_bytes_sum_to_the_total(carried: list[float]) -> None:
    total = round(sum(carried))
    found = whole_bytes(tuple(carried), total)
    assert sum(found) == total
    assert all(abs(whole - part) <= 1 + 1e-3 for whole, part in zip(found, carried, strict=True))


def test_isolated_time_is_found_once_a_pair_and_scales_with_bytes() -> None:
    ended = [Sent(send(n, 1, 2, size), over_core(send(n, 1, 2, size)), 0.0) for n, size in ((1, 10), (2, 35))]
    assert [row["isolated_s"] for row in transfer_rows(ended, CAPACITIES)] == pytest.approx([1.0, 3.5])
