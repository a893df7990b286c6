"""How many events a second the serving engine handles: with the bench's driver, and alone.

20,000 Poisson requests on 32 GPUs, handoffs of 10 ms. An event is one call of `Engine.on`. The driver keeps timers on a
heap; to see what that costs, the events are kept and fed to a fresh engine without it. As in an emulated run, what the
set-up left is frozen out of the garbage collector's sight.
"""

from __future__ import annotations

import gc
import heapq
import statistics
import time
from collections.abc import Callable, Iterable

from scenario.load import with_changes
from scenario.models import Scenario
from traffic.actions import Event, StartTimer, StartTransfer, TimerFired, TransferDone, queued
from traffic.engine import Engine
from traffic.sources import make_source

GOAL_EVENTS_PER_S = 100_000
REQUESTS, HANDOFF_S, REPEATS = 20_000, 0.01, 5


def _engine() -> Engine:
    workload = {"kind": "synthetic", "requests": REQUESTS, "arrivals": {"kind": "poisson", "rate_per_s": 5.0}}
    scenario = with_changes(Scenario(), {"workload": workload})
    return Engine(scenario, make_source(scenario))


def serve(engine: Engine, seen: Callable[[tuple[Event, float]], object] | None = None) -> int:
    """Serve to the end; the number of events. `seen` is told each of them."""
    due: list[tuple[float, int, int, Event]] = []
    events, now_s, actions, known = 0, 0.0, engine.start(), None
    while True:
        for action in actions:
            if isinstance(action, StartTimer):
                at_s = action.at_s
                heapq.heappush(due, queued(at_s if at_s > now_s else now_s, TimerFired(action.key)))
            elif isinstance(action, StartTransfer):
                heapq.heappush(due, queued(now_s + HANDOFF_S, TransferDone(action.transfer_id)))
        if known is None:  # arrivals that are known from the start wait in order, and not on the heap
            known, due = sorted(due, reverse=True), []
        if engine.finished:
            return events
        now_s, _, _, event = known.pop() if known and not (due and due[0] < known[-1]) else heapq.heappop(due)
        if seen is not None:
            seen((event, now_s))
        actions = engine.on(event, now_s)
        events += 1


def _replay(engine: Engine, events: Iterable[tuple[Event, float]]) -> None:
    engine.start()
    for event, at_s in events:
        engine.on(event, at_s)


def _cpu_s(work: Callable[[Engine], object]) -> float:
    engine = _engine()
    gc.collect()
    gc.freeze()
    began = time.process_time()
    work(engine)
    seconds = time.process_time() - began
    gc.unfreeze()
    return seconds


def measure(repeats: int = REPEATS) -> tuple[int, list[float], list[float]]:
    """(events, CPU seconds of each run with the driver, CPU seconds of each run of the engine alone)."""
    seen: list[tuple[Event, float]] = []
    serve(_engine(), seen.append)
    whole = [_cpu_s(serve) for _ in range(repeats)]
    alone = [_cpu_s(lambda engine: _replay(engine, seen)) for _ in range(repeats)]
    return len(seen), whole, alone


def text() -> str:
    """What was measured, in a line."""
    events, whole, alone = measure()
    rates = [sorted(events / seconds for seconds in found) for found in (whole, alone)]
    told = [f"{statistics.median(found):,.0f} ({found[0]:,.0f} to {found[-1]:,.0f})" for found in rates]
    return (
        f"serving engine: {events:,} events, n = {REPEATS}: {told[0]} events/s of CPU time with the driver"
        f", {told[1]} alone (goal {GOAL_EVENTS_PER_S:,})"
    )
