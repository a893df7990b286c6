"""Virtual time for the serving engine: timers on a heap, handoffs on the fluid network.

One clock: every time is model seconds from the run's start. Simultaneous events are fed in the engine's order,
(time, kind, id), and nothing is drawn at random: equal scenarios give equal runs to the last bit.

A handoff has arrived `latency_s` after its last byte has left the network: a constant of its path, which takes no rate
from anybody.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scenario.errors import RunError
from simulation.rerouting import Network
from topologies.fluid import Completion, Transfer
from traffic.actions import (
    Action,
    CancelTransfer,
    EmitToken,
    Event,
    StartTimer,
    StartTransfer,
    TimerFired,
    TransferDone,
    queued,
)
from traffic.player import Player


@dataclass(frozen=True)
class Sent:
    """A handoff as it went: `end` is None when the run ended before it; `cancelled` when its request timed out.
    `latency_s` is that of its path: it has arrived so long after `end`."""

    order: StartTransfer
    transfer: Transfer
    t_submit_s: float
    end: Completion | None = None
    cancelled: bool = False
    latency_s: float = 0.0


def no_latency(_: Transfer) -> float:
    """Fluid arrives when it leaves."""
    return 0.0


def never() -> bool:
    """Nobody stops the run."""
    return False


class VirtualTime:
    """Carries out the engine's actions and feeds it events until every measured request has its first token."""

    def __init__(
        self,
        engine: Player,
        network: Network,
        plan: Callable[[StartTransfer], Transfer],
        latency_s: Callable[[Transfer], float] = no_latency,
        finished: Callable[[Sent], None] | None = None,
    ) -> None:
        """`plan` says over which lanes an order goes; it is called once an order, in the order of submission.
        `finished` takes each handoff when it has arrived or was cancelled; then it is not kept in `sent`."""
        self._engine, self._network, self._plan, self._latency_s = engine, network, plan, latency_s
        self._finished = finished
        self._timers: list[tuple[float, int, int, Event]] = []
        self._ending: set[int] = set()  # off the network at this instant, and not yet reported
        self.sent: dict[int, Sent] = {}
        self.events = 0
        self.first_tokens = 0  # without serving: messages that have ended

    def run(self, stop: Callable[[], bool] = never) -> float:
        """Serve to the end, or until `stop()`; the last event's time. Raises RunError when the engine waits for
        nothing."""
        now_s = 0.0
        self._carry_out(self._engine.start(), now_s)
        while not self._engine.finished and not stop():
            timer_s = self._timers[0][0] if self._timers else None
            end_s = self._network.next_completion()
            if end_s is not None and (timer_s is None or end_s <= timer_s):
                now_s = end_s
                ends = self._network.advance(now_s)
                self._ending = {end.transfer.transfer_id for end in ends}
                for end in ends:
                    self._finish(end, now_s)
            elif timer_s is not None:
                # All ends until now have been collected, so the network's clock follows by itself.
                now_s, (_, _, _, event) = timer_s, heapq.heappop(self._timers)
                self._feed(event, now_s)
            else:
                raise RunError("the serving engine is not finished, but waits for no timer and no transfer")
        return now_s

    def _feed(self, event: Event, now_s: float) -> None:
        if isinstance(event, TransferDone):
            if event.transfer_id not in self.sent or self.sent[event.transfer_id].cancelled:
                return  # it was cancelled in its last microseconds
            self._hand_over(event.transfer_id)
        self.events += 1
        self._carry_out(self._engine.on(event, now_s), now_s)

    def _finish(self, end: Completion, now_s: float) -> None:
        number = end.transfer.transfer_id
        self._ending.discard(number)
        before = self.sent.get(number)
        if before is None or before.cancelled:
            return
        self.sent[number] = replace(before, end=end, transfer=end.transfer, latency_s=self._latency_s(end.transfer))
        if self.sent[number].latency_s:
            at_s = now_s + self.sent[number].latency_s
            heapq.heappush(self._timers, queued(at_s, TransferDone(number)))
        else:
            self._feed(TransferDone(number), now_s)

    def _carry_out(self, actions: Sequence[Action], now_s: float) -> None:
        for action in actions:
            if isinstance(action, StartTimer):
                heapq.heappush(self._timers, queued(max(action.at_s, now_s), TimerFired(action.key)))
            elif isinstance(action, StartTransfer):
                transfer = self._plan(action)
                self.sent[action.transfer_id] = Sent(action, transfer, now_s)
                self._network.start(transfer, now_s)
            elif isinstance(action, CancelTransfer):
                self._cancel(action.transfer_id, now_s)
            elif isinstance(action, EmitToken):
                self.first_tokens += 1

    def _cancel(self, number: int, now_s: float) -> None:
        """Stop a handoff. One that ended at this very instant is off the network already, and stays reported."""
        before = self.sent.get(number)
        if before is None:
            return
        self.sent[number] = replace(before, cancelled=True)
        if before.end is None and number not in self._ending:
            self._network.cancel(number, now_s)
        self._hand_over(number)

    def _hand_over(self, number: int) -> None:
        if self._finished is not None:
            self._finished(self.sent.pop(number))
