"""What is asked of the serving system: a request, and the protocol of its sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Phase = Literal["warmup", "measured", "cooldown"]


@dataclass(frozen=True)
class Request:
    """One turn. `cached_tokens` of the prompt are prefix hits: not computed again, but handed off all the
    same.

    `prefix_blocks`: ids of the prompt's blocks of `block_tokens` tokens, from its start; equal ids are equal
    prefixes. `prefill_gpu` and `decode_gpu`: where a log says that it was served (names of GPUs of the fabric).
    """

    request_id: int
    session_id: int
    turn: int
    tenant: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    phase: Phase
    prefix_blocks: tuple[int, ...] | None = None
    block_tokens: int = 0
    prefill_gpu: str | None = None
    decode_gpu: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.cached_tokens <= self.input_tokens or self.input_tokens < 1 or self.output_tokens < 1:
            raise ValueError(f"token counts of request {self.request_id} are out of range: {self}")

    @property
    def uncached_tokens(self) -> int:
        """Tokens that prefill must compute."""
        return self.input_tokens - self.cached_tokens

    @property
    def total_tokens(self) -> int:
        """Tokens whose KV decode holds in the end."""
        return self.input_tokens + self.output_tokens


class Source(Protocol):
    """A workload. Its set of (session, turn) is fixed in advance and is the same on every fabric."""

    @property
    def requests(self) -> Sequence[Request]:
        """The whole fixed set, in order of request_id."""
        ...

    @property
    def measured_ids(self) -> frozenset[int]:
        """The request_ids that count."""
        ...

    @property
    def count(self) -> int:
        """Size of the fixed set, warm-up and cooldown included."""
        ...

    def initial(self) -> list[tuple[float, Request]]:
        """Arrivals that depend on nothing: (arrival time in model s, request), in time order."""
        ...

    def following(self, request: Request, finished_s: float) -> tuple[float, Request] | None:
        """What the same session sends after `request` has finished (or timed out) at `finished_s`; None:
        nothing."""
        ...


class FixedSet:
    """What every source has once its requests are known: `_requests` in order of nominal arrival and request_id."""

    _requests: tuple[Request, ...]

    @property
    def requests(self) -> Sequence[Request]:
        """The fixed set, in order of nominal arrival, which is also that of request_id."""
        return self._requests

    @property
    def measured_ids(self) -> frozenset[int]:
        """The request_ids that count."""
        return frozenset(r.request_id for r in self._requests if r.phase == "measured")

    @property
    def count(self) -> int:
        """Size of the fixed set."""
        return len(self._requests)


def cooldown_count(measured: int) -> int:
    """How many requests follow the measured ones to keep the load up until the last of those is served: 10
    %."""
    return max(1, -(-measured // 10))
