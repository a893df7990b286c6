"""A decode target: slots, memory, and the steps of its running batch. Accounting only; the engine drives it."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from traffic.layout import Instance
from traffic.prefix_cache import PrefixCache
from traffic.records import Live

#: (requests in the batch, mean context in tokens) -> seconds of a step
StepTime = Callable[[int, float], float]


@dataclass(eq=False, slots=True)
class Decode:
    """Slots and memory are reserved in FIFO order before a handoff starts and freed at the last token.

    Continuous batching: every running request gets a token a step, and a step's length depends on who is running. So
    the target counts steps; a request that joins at step s ends at s + its tokens, whenever that is. Only the next end
    is known as a time, and only until somebody joins or leaves (`generation`).
    """

    target: Instance
    free_slots: int
    free_bytes: int
    step_s: StepTime
    cache: PrefixCache
    max_inbound: int | None = None
    queue: deque[Live] = field(default_factory=deque)
    receiving: int = 0
    decoding: int = 0
    generation: int = 0
    by_rounds: bool = False  # steps are counted by `step` and not by time
    _steps: float = 0.0
    _since_s: float = 0.0
    _rate: float = 0.0  # steps a second now
    _context: int = 0
    _ends: list[tuple[float, int, Live]] = field(default_factory=list)
    noted: str = ""  # the state last written down, and when (`traffic.gpu_states`)
    noted_s: float = -math.inf

    @property
    def gpus(self) -> tuple[str, ...]:
        """Whose states these are."""
        return self.target.gpus

    def ask(self, live: Live) -> None:
        """Queue for a slot and memory."""
        live.asks_decode = True
        self.queue.append(live)

    def take(self) -> Live | None:
        """The first of the queue, with its slot and memory now reserved; None where it does not fit, nobody waits, or
        as many handoffs as the target receives at once are on their way."""
        if not self.queue or not self.free_slots or self.queue[0].decode_bytes > self.free_bytes:
            return None
        if self.max_inbound is not None and self.receiving >= self.max_inbound:
            return None
        live = self.queue.popleft()
        live.asks_decode = False
        self.free_slots -= 1
        self.free_bytes -= live.decode_bytes
        self.receiving += 1
        live.holds_decode = True
        return live

    def give_back(self, live: Live) -> None:
        """Free the slot and memory of a request that is over, if it has them."""
        if live.holds_decode:
            live.holds_decode = False
            self.free_slots += 1
            self.free_bytes += live.decode_bytes

    def join(self, live: Live, t_s: float) -> None:
        """The request's first token is out: it takes part in every step from now on."""
        self._advance(t_s)
        steps = live.request.output_tokens - 1
        heapq.heappush(self._ends, (self._steps + steps, live.request.request_id, live))
        self._changed(live.request.total_tokens)

    def next_end(self) -> tuple[float, Live] | None:
        """(time, request) of the next last token, as things are."""
        if not self._ends:
            return None
        at, _, live = self._ends[0]
        return self._since_s + max(0.0, at - self._steps) / self._rate, live

    def leave_first(self, t_s: float) -> Live:
        """The request whose last token came at `t_s`."""
        self._advance(t_s)
        at, _, live = heapq.heappop(self._ends)
        self._steps = max(self._steps, at)  # rounding must not leave it a step short
        self._changed(-live.request.total_tokens)
        return live

    def step(self, count: int) -> list[Live]:
        """`count` steps are over at once; the requests whose last token came out."""
        self._steps += count
        ended = []
        while self._ends and self._ends[0][0] <= self._steps:
            _, _, live = heapq.heappop(self._ends)
            self._changed(-live.request.total_tokens)
            ended.append(live)
        return ended

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._ends)

    @property
    def mean_context(self) -> float:
        """Mean of their tokens, prompt and output; 0 for none."""
        return self._context / len(self._ends) if self._ends else 0.0

    def _advance(self, t_s: float) -> None:
        self._steps += max(0.0, t_s - self._since_s) * self._rate
        self._since_s = max(self._since_s, t_s)

    def _changed(self, context: int) -> None:
        self._context += context
        self.generation += 1
        running = len(self._ends)
        self._rate = 1 / self.step_s(running, self._context / running) if running and not self.by_rounds else 0.0

    @property
    def state(self) -> str:
        """busy (decodes), waiting_kv (reserved, and all of it still on the way), or waiting_work."""
        if self.decoding:
            return "busy"
        return "waiting_kv" if self.receiving else "waiting_work"
