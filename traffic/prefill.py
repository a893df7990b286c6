"""A prefill instance: its queue, its batches, and the memory that handoffs hold. Accounting only."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from traffic.layout import Instance
from traffic.prefix_cache import PrefixCache
from traffic.records import Live


class Part(NamedTuple):
    """What a batch computes of one prompt; `last`: the prompt is then complete."""

    live: Live
    tokens: int
    last: bool


class Batch(NamedTuple):
    """A batch and the instant at which it starts."""

    number: int
    start_s: float
    parts: tuple[Part, ...]

    @property
    def tokens(self) -> int:
        """Tokens that it computes."""
        return sum([part.tokens for part in self.parts])


@dataclass(eq=False, slots=True)
class Prefill:
    """A FIFO queue, one batch at a time, and memory that is held until handoffs are confirmed.

    With `chunked`, a batch has at most `batch_tokens` tokens, and a prompt may be spread over several; else a batch is
    whole prompts, the first whatever its size.
    """

    instance: Instance
    targets: Mapping[str, Instance]
    target_names: tuple[str, ...]
    free_bytes: int
    batch_tokens: int
    cache: PrefixCache
    chunked: bool = False
    queue: deque[Live] = field(default_factory=deque)
    running: Batch | None = None
    idle_since_s: float = 0.0
    noted: str = ""  # the state last written down, and when (`traffic.gpu_states`)
    noted_s: float = -math.inf

    @property
    def gpus(self) -> tuple[str, ...]:
        """Whose states these are."""
        return self.instance.gpus

    def take_batch(self, t_s: float, number: int) -> Batch | None:
        """The next batch, whose memory is now reserved; None where nothing can start.

        It is a prefix of the queue; each prompt only if its KV fits. Requests that joined the queue after the start are
        not taken (the event that leads here may carry an early stamp).
        """
        if self.running is not None or not self.queue:
            return None
        start_s = max(t_s, self.idle_since_s, self.queue[0].instants["prefill_waiting"])
        parts: list[Part] = []
        room = self.batch_tokens
        while self.queue:
            live = self.queue[0]
            left = live.left_tokens
            full = room <= 0 if self.chunked else left > room
            if parts and (full or live.instants["prefill_waiting"] > start_s):
                break
            if not live.holds_prefill:
                if live.kv_bytes > self.free_bytes:
                    break
                self.free_bytes -= live.kv_bytes
                live.holds_prefill = True
            tokens = min(left, room) if self.chunked else left
            room -= tokens
            parts.append(Part(live, tokens, tokens == left))
            if tokens < left:
                break
            self.queue.popleft()
        if not parts:
            return None
        self.running = Batch(number, start_s, tuple(parts))
        return self.running

    def end_batch(self, t_s: float) -> Batch:
        """The batch that ends at `t_s`; the memory of its prompts stays held."""
        batch, self.running, self.idle_since_s = self.running, None, t_s
        if batch is None:
            raise ValueError(f"{self.instance.name} runs no batch")
        return batch

    def computes(self, live: Live) -> bool:
        """Whether the running batch has a part of this request."""
        return self.running is not None and any(part.live is live for part in self.running.parts)

    def release(self, live: Live) -> None:
        """Free the memory that a request's prompt holds, if it holds any."""
        if live.holds_prefill:
            live.holds_prefill = False
            self.free_bytes += live.kv_bytes

    @property
    def state(self) -> str:
        """busy, blocked (work waits for memory held by handoffs), or waiting_work."""
        if self.running is not None:
            return "busy"
        return "blocked" if self.queue else "waiting_work"
