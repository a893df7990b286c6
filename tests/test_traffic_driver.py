"""A small virtual-time driver with constant-bandwidth transfers, and a source with given arrivals."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scenario.models import FabricSection, Scenario, ServingSection
from traffic.actions import (
    Action,
    CancelTransfer,
    EmitToken,
    Event,
    StartTimer,
    StartTransfer,
    TimerFired,
    TransferDone,
    event_order,
)
from traffic.engine import Engine
from traffic.requests import Phase, Request, Source

#: llama-3.1-8b: 131,072 B a token, so that 1,000 tokens take one second at this rate.
BANDWIDTH = 131_072_000.0


def req(
    request_id: int,
    tokens: int,
    *,
    cached: int = 0,
    output: int = 11,
    phase: Phase = "measured",
    session: int | None = None,
) -> Request:
    """A request with session = id unless given."""
    return Request(request_id, request_id if session is None else session, 0, "t", tokens, cached, output, phase)


@dataclass
class FixedSource:
    """Given arrivals; optionally a request that follows another after a delay."""

    arrivals: list[tuple[float, Request]]
    after: dict[int, tuple[float, Request]] = field(default_factory=dict)

    @property
    def requests(self) -> Sequence[Request]:
        everyone = [r for _, r in self.arrivals] + [r for _, r in self.after.values()]
        return sorted(everyone, key=lambda r: r.request_id)

    @property
    def measured_ids(self) -> frozenset[int]:
        return frozenset(r.request_id for r in self.requests if r.phase == "measured")

    @property
    def count(self) -> int:
        return len(self.requests)

    def initial(self) -> list[tuple[float, Request]]:
        return list(self.arrivals)

    def following(self, request: Request, finished_s: float) -> tuple[float, Request] | None:
        found = self.after.get(request.request_id)
        return None if found is None else (finished_s + found[0], found[1])


def small(gpus: int = 2, tp: int = 1, **serving: object) -> Scenario:
    """One prefill and one decode server by default; round numbers: 1,000 tokens/s, base 100 ms, step 10 ms."""
    settings: dict[str, object] = {
        "model": "llama-3.1-8b",
        "prefill_base_ms": 100.0,
        "prefill_tokens_per_s_per_gpu": 1000.0,
        "prefill_batch_tokens": 1000,
        "decode_step_ms": 10.0,
        **serving,
    }
    return Scenario(
        fabric=FabricSection.model_validate({"gpus": gpus, "gpus_per_server": tp}),
        serving=ServingSection.model_validate(settings),
    )


@dataclass
class Driver:
    """Runs an engine in virtual time. `duration_s` gives a transfer's time; `stamp` the receiver's time stamp."""

    engine: Engine
    duration_s: Callable[[StartTransfer], float] = lambda t: t.bytes / BANDWIDTH
    stamp: Callable[[float], float] = lambda t: t
    started: list[tuple[float, StartTransfer]] = field(default_factory=list)
    cancelled: list[tuple[float, int]] = field(default_factory=list)
    tokens: list[tuple[int, float]] = field(default_factory=list)
    heap: list[tuple[tuple[float, int, int], Event]] = field(default_factory=list)

    def push(self, at_s: float, event: Event) -> None:
        heapq.heappush(self.heap, (event_order(at_s, event), event))

    def carry_out(self, actions: Sequence[Action], now_s: float) -> None:
        for action in actions:
            if isinstance(action, StartTimer):
                self.push(max(action.at_s, now_s), TimerFired(action.key))
            elif isinstance(action, StartTransfer):
                self.started.append((now_s, action))
                self.push(now_s + self.duration_s(action), TransferDone(action.transfer_id))
            elif isinstance(action, CancelTransfer):
                # The done event stays in the heap: it crosses the cancellation, and the engine must ignore it.
                self.cancelled.append((now_s, action.transfer_id))
            elif isinstance(action, EmitToken):
                self.tokens.append((action.request_id, action.t_s))

    def run(self, to_the_last_event: bool = False) -> Driver:
        self.carry_out(self.engine.start(), 0.0)
        while self.heap and (to_the_last_event or not self.engine.finished):
            (at_s, _, _), event = heapq.heappop(self.heap)
            seen_s = self.stamp(at_s) if isinstance(event, TransferDone) else at_s
            self.carry_out(self.engine.on(event, seen_s), at_s)
        return self

    def instants(self, stage: str) -> list[float | None]:
        """One stage's instants of all requests, in order of request_id."""
        rows = self.engine.requests
        values = [row[f"t_{stage}_s"] for row in rows]
        return [None if v is None else round(float(str(v)), 9) for v in values]

    def states(self, gpu: str) -> list[tuple[float, str]]:
        return [(round(float(str(r["t_s"])), 9), str(r["state"])) for r in self.engine.gpu_states if r["gpu"] == gpu]


def drive(scenario: Scenario, source: Source, **options: object) -> Driver:
    """A finished run."""
    last = bool(options.pop("to_the_last_event", False))
    return Driver(Engine(scenario, source), **options).run(last)  # type: ignore[arg-type]


def test_driver_ends_when_the_measured_requests_have_tokens() -> None:
    done = drive(small(), FixedSource([(0.0, req(0, 1000)), (100.0, req(1, 10, phase="cooldown"))]))
    assert done.engine.finished
    assert [row["status"] for row in done.engine.requests] == ["ok", "unfinished"]
