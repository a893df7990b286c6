"""Prefill and decode instances: queues, KV memory, slots. Resource accounting only; the engine drives them.

Memory of a prefill server: with GQA its ranks split each prompt's KV, so the server holds TP times a GPU's
memory; with MLA each rank holds a copy of all of it, so the server holds no more prompts than one GPU
(https://github.com/sgl-project/sglang/pull/5922). A decode target holds what it receives: the memory of its
one GPU (shape D), or of all GPUs of its server, 1/TP of each prompt per rank (shape A).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from scenario.models import Scenario
from traffic.kv import KvModel
from traffic.layout import DecodeTarget, Server
from traffic.records import Live

BYTES_PER_GB = 1e9


def prefill_memory_bytes(scenario: Scenario, model: KvModel) -> int:
    """KV memory of one prefill server, counted in whole-model prompts' bytes."""
    ranks = 1 if model.mla else scenario.fabric.gpus_per_server
    return round(scenario.serving.prefill_kv_gb_per_gpu * BYTES_PER_GB * ranks)


def decode_gpus_per_target(scenario: Scenario) -> int:
    """GPUs of one decode target: 1 (shape D) or a server's (shape A)."""
    return scenario.fabric.gpus_per_server if scenario.serving.shape == "A" else 1


def decode_memory_bytes(scenario: Scenario) -> int:
    """KV memory of one decode target."""
    return round(scenario.serving.decode_kv_gb_per_gpu * BYTES_PER_GB * decode_gpus_per_target(scenario))


@dataclass(eq=False)
class Prefill:
    """A prefill server: a FIFO queue, one batch at a time, and memory that is held until handoffs are
    confirmed."""

    server: Server
    targets: dict[str, DecodeTarget]
    target_names: tuple[str, ...]
    free_bytes: int
    batch_tokens: int
    queue: deque[Live] = field(default_factory=deque)
    running: list[Live] | None = None
    idle_since_s: float = 0.0

    def take_batch(self, t_s: float) -> tuple[float, list[Live]] | None:
        """(start, requests) of the next batch, whose memory is now reserved; None where nothing can start.

        The batch is a prefix of the queue: its first request whatever its size, then more while the sum of
        uncached tokens stays within `batch_tokens`; each only if its prompt's KV fits. Requests that joined
        the queue after the start are not taken (the event that leads here may carry an early stamp).
        """
        if self.running is not None or not self.queue:
            return None
        start_s = max(t_s, self.idle_since_s, self.queue[0].instants["prefill_waiting"])
        batch: list[Live] = []
        tokens = 0
        while self.queue:
            live = self.queue[0]
            tokens += live.request.uncached_tokens
            too_many = bool(batch) and (tokens > self.batch_tokens or live.instants["prefill_waiting"] > start_s)
            if too_many or live.kv_bytes > self.free_bytes:
                break
            self.free_bytes -= live.kv_bytes
            batch.append(self.queue.popleft())
        if not batch:
            return None
        self.running = batch
        return start_s, batch

    def end_batch(self, t_s: float) -> list[Live]:
        """The requests of the batch that ends at `t_s`; their memory stays held."""
        batch, self.running, self.idle_since_s = self.running or [], None, t_s
        return batch

    @property
    def state(self) -> str:
        """busy, blocked (work waits for memory held by handoffs), or waiting_work."""
        if self.running is not None:
            return "busy"
        return "blocked" if self.queue else "waiting_work"


@dataclass(eq=False)
class Decode:
    """A decode target: slots and memory, reserved in FIFO order before a handoff starts and freed at the last
    token."""

    target: DecodeTarget
    free_slots: int
    free_bytes: int
    queue: deque[Live] = field(default_factory=deque)
    receiving: int = 0
    decoding: int = 0

    def take(self) -> Live | None:
        """The first of the queue, with its slot and memory now reserved; None where it does not fit or nobody
        waits."""
        if not self.queue or not self.free_slots or self.queue[0].decode_bytes > self.free_bytes:
            return None
        live = self.queue.popleft()
        self.free_slots -= 1
        self.free_bytes -= live.decode_bytes
        self.receiving += 1
        return live

    def give_back(self, live: Live) -> None:
        """Free the slot and memory of a request that is finished or has timed out."""
        self.free_slots += 1
        self.free_bytes += live.decode_bytes

    @property
    def state(self) -> str:
        """busy (decodes), waiting_kv (reserved, and all of it still on the way), or waiting_work."""
        if self.decoding:
            return "busy"
        return "waiting_kv" if self.receiving else "waiting_work"
