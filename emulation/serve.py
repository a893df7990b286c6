"""Real time for the serving engine: timers on the monotonic clock, handoffs on the agents' sockets."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from emulation.agents import AgentPool, Done
from scenario.errors import RunError
from scenario.scale import Scale
from traffic.actions import (
    Action,
    CancelTransfer,
    EmitToken,
    StartTimer,
    StartTransfer,
    TimerFired,
    TimerKey,
    TransferDone,
)
from traffic.player import Player

_POLL_S = 0.2


@dataclass
class SentTransfer:
    """One handoff as it happened. `t_submit_s` is model time when the order went out."""

    order: StartTransfer
    t_submit_s: float
    done: Done | None = None


@dataclass
class ServingLoop:
    """Carries out the engine's actions and feeds it events. `start_ns` is model time 0."""

    engine: Player
    pool: AgentPool
    scale: Scale
    start_ns: int
    poll_s: float = _POLL_S
    transfers: dict[int, SentTransfer] = field(default_factory=dict)
    first_tokens: int = 0
    timer_lags_s: list[float] = field(default_factory=list)
    report_lags_s: list[float] = field(default_factory=list)
    _timers: list[tuple[float, int, int]] = field(default_factory=list)
    _keys: dict[tuple[int, int], TimerKey] = field(default_factory=dict)
    _open: set[int] = field(default_factory=set)

    def model_s(self, monotonic_ns: int) -> float:
        """Model time of a monotonic stamp."""
        return (monotonic_ns - self.start_ns) / 1e9 / self.scale.dilation

    def run(self, stop: Callable[[], bool], progress: Callable[[ServingLoop], None]) -> None:
        """Serve until every measured request has its first token, or `stop()`.

        Raises RunError when an agent failed, and when the engine waits for nothing.
        """
        self._do(self.engine.start())
        while not self.engine.finished and not stop():
            self._fire_due()
            if not self._timers and not self._open and not self.engine.finished:
                raise RunError("the serving engine is not finished, but waits for no timer and no transfer")
            wait_s = self.poll_s
            if self._timers:
                wait_s = min(wait_s, self._timers[0][0] * self.scale.dilation - self._wall_s())
            for done in self.pool.poll(wait_s):
                self._finish(done)
            progress(self)

    def _wall_s(self) -> float:
        return (time.monotonic_ns() - self.start_ns) / 1e9

    def _fire_due(self) -> None:
        """Fire what is due, at the time it was due: only sockets are late in reality, a compute model is not."""
        while self._timers and self._timers[0][0] * self.scale.dilation <= self._wall_s():
            at_s, kind, number = heapq.heappop(self._timers)
            self.timer_lags_s.append(self._wall_s() - at_s * self.scale.dilation)
            self._do(self.engine.on(TimerFired(self._keys.pop((kind, number))), at_s))

    def _finish(self, done: Done) -> None:
        sent = self.transfers.get(done.transfer_id)
        if sent is None:
            raise RunError(f"a transfer arrived that was never sent: {done.transfer_id}")
        sent.done = done
        self._open.discard(done.transfer_id)
        self.report_lags_s.append((time.monotonic_ns() - done.t_ns) / 1e9)
        self._do(self.engine.on(TransferDone(done.transfer_id), self.model_s(done.t_ns)))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, StartTimer):
                heapq.heappush(self._timers, (action.at_s, int(action.key.kind), action.key.id))
                self._keys[int(action.key.kind), action.key.id] = action.key
            elif isinstance(action, StartTransfer):
                payload = self.scale.payload_bytes(action.bytes)
                self.transfers[action.transfer_id] = SentTransfer(action, self.model_s(time.monotonic_ns()))
                self._open.add(action.transfer_id)
                self.pool.send(action.transfer_id, action.src_gpu, action.dst_gpu, payload)
            elif isinstance(action, CancelTransfer):
                self._open.discard(action.transfer_id)
                self.pool.drop(action.transfer_id, self.transfers[action.transfer_id].order.src_gpu)
            elif isinstance(action, EmitToken):
                self.first_tokens += 1
