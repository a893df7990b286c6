"""What the engine keeps of each request, and the rows it leaves for the run folder's tables."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from results.schema import STAGES
from traffic.layout import Instance
from traffic.placement import Choice
from traffic.requests import Request
from traffic.shapes import Flow

if TYPE_CHECKING:
    from traffic.decode import Decode
    from traffic.prefill import Prefill


class Step(Enum):
    """Where a request is; it decides what giving it up has to give back."""

    FUTURE = "not arrived"
    GATEWAY = "on its way to the prefill queue"
    FETCH = "its prefix is read from another instance"
    QUEUED = "in the prefill queue, or between two of its batches"
    FORWARD = "in a running prefill batch"
    ALLOC = "prefill is done; waiting for a decode slot and memory"
    TRANSFER = "prefill is done; KV on its way"
    FIRST_STEP = "all KV at decode, first token not out"
    DECODING = "first token out"
    FINISHED = "last token out"
    TIMED_OUT = "no first token before the deadline"
    CANCELLED = "given up by its client before the first token"
    FAILED = "its handoff failed too often"


#: Steps that a request never leaves.
OVER = (Step.FINISHED, Step.TIMED_OUT, Step.CANCELLED, Step.FAILED)
#: Steps without a first token from which a request can be given up.
BEFORE_FIRST_TOKEN = (
    Step.GATEWAY, Step.FETCH, Step.QUEUED, Step.FORWARD, Step.ALLOC, Step.TRANSFER, Step.FIRST_STEP,
)  # fmt: skip
_STATUS = {
    Step.DECODING: "ok",
    Step.FINISHED: "ok",
    Step.TIMED_OUT: "timeout",
    Step.CANCELLED: "cancelled",
    Step.FAILED: "failed",
}


@dataclass(frozen=True)
class Objective:
    """A tenant and what it was promised, model ms."""

    tenant: str
    ttft_ms: float | None = None
    tpot_ms: float | None = None


@dataclass(eq=False, slots=True)
class Live:
    """A request and its state. Instants are model seconds; they never decrease (`mark`).

    `at_prefill` and `at_decode` are set when the gateway has chosen, and not there before.
    """

    request: Request
    kv_bytes: int
    decode_bytes: int
    objective: Objective
    step: Step = Step.FUTURE
    instants: dict[str, float] = field(default_factory=dict)
    latest_s: float = -math.inf  # of the instants
    batch: int | None = None
    prefill: Choice | None = None
    decode: Choice | None = None
    source: Instance | None = None
    target: Instance | None = None
    at_prefill: Prefill = field(init=False, repr=False)
    at_decode: Decode = field(init=False, repr=False)
    # Prefill
    cached_tokens: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    computation: int = 0  # of the prompt: pieces of an earlier one are void
    holds_prefill: bool = False
    # Handoff
    held_tokens: int = 0  # of the prompt that the decode target has already
    sent_tokens: int = 0  # of the prompt whose KV was handed to the network (or is held there)
    sent_layers: int = 0  # layerwise: groups of the running batch that were
    asks_decode: bool = False  # waits in the decode target's queue
    holds_decode: bool = False
    waiting: list[int] = field(default_factory=list)  # bytes that are computed and wait for space at decode
    unsubmitted: int = 0  # pieces inside their software overhead
    transfers: int = 0  # numbered so far
    pieces: int = 0  # sent so far: flows that leave together
    open_transfers: dict[int, Flow] = field(default_factory=dict)
    last_byte_s: float = 0.0
    attempt: int = 1
    local: bool = False
    bytes_sent: int = 0
    bytes_wasted: int = 0
    kept_bytes: int = 0  # of the handoff, that have arrived and are of use as long as it goes on
    read_bytes: int = 0  # of a remote prefix, until the prompt is complete and the prefill cache has it
    given_up_s: float | None = None

    @property
    def prefill_name(self) -> str:
        """The prefill instance; empty before the gateway has chosen."""
        return self.prefill.name if self.prefill else ""

    @property
    def decode_name(self) -> str:
        """The decode target; empty before the gateway has chosen."""
        return self.decode.name if self.decode else ""

    @property
    def uncached_tokens(self) -> int:
        """Tokens of the prompt that this instance must compute."""
        return self.request.input_tokens - self.cached_tokens

    @property
    def left_tokens(self) -> int:
        """Of these, not computed yet."""
        return self.uncached_tokens - self.computed_tokens

    @property
    def prefilled(self) -> bool:
        """Whether the prompt is complete."""
        return self.step in (Step.ALLOC, Step.TRANSFER)

    def mark(self, stage: str, t_s: float) -> float:
        """Set a stage's instant, not before the previous one (receivers' stamps may be early); returns it.

        What is done again after a failed handoff leaves the first instants: its cost shows in `kv_transfer`.
        """
        at_s = t_s if t_s > self.latest_s else self.latest_s
        if self.attempt == 1 or stage not in self.instants:
            self.instants[stage] = self.latest_s = at_s
        return at_s

    def forget_computed(self) -> None:
        """The prompt must be computed again from its cached part on; pieces that are not sent yet are void."""
        self.computation += 1
        self.recomputed_tokens += self.computed_tokens
        self.computed_tokens = self.sent_tokens = self.sent_layers = 0
        self.waiting, self.unsubmitted = [], 0

    def waste_kept(self) -> None:
        """What had arrived of the handoff is thrown away."""
        self.bytes_wasted += self.kept_bytes
        self.kept_bytes = 0

    @property
    def ended_s(self) -> float | None:
        """When it was over: its last token, or when it timed out, was cancelled or failed. None: not yet."""
        return self.instants.get("finished", self.given_up_s)

    @property
    def status(self) -> str:
        """ok (has its first token), timeout, cancelled, failed, or unfinished."""
        return _STATUS.get(self.step, "unfinished")

    def row(self) -> dict[str, object]:
        """The row of the `requests` table. Stages that were not reached are None.

        Where instances have several GPUs, `prefill_gpu` and `decode_gpu` are the first rank's.
        """
        r = self.request
        candidates = {
            "prefill": self.prefill.scores if self.prefill else {},
            "decode": self.decode.scores if self.decode else {},
        }
        return {
            "request_id": r.request_id,
            "session_id": r.session_id,
            "tenant": self.objective.tenant,
            "turn": r.turn,
            "phase": r.phase,
            "warmup": r.phase != "measured",
            "status": self.status,
            "input_tokens": r.input_tokens,
            "cached_tokens": self.cached_tokens if self.source else r.cached_tokens,
            "output_tokens": r.output_tokens,
            "batch": self.batch,
            "prefill_instance": self.prefill.name if self.prefill else None,
            "decode_instance": self.target.server if self.target else None,
            "prefill_gpu": self.source.gpus[0] if self.source else None,
            "decode_gpu": self.target.gpus[0] if self.target else None,
            "candidates": json.dumps(candidates),
            "slo_ttft_ms": self.objective.ttft_ms,
            "slo_tpot_ms": self.objective.tpot_ms,
            "local": self.local,
            "handoff_attempts": self.attempt,
            "held_tokens": self.held_tokens,
            "recomputed_tokens": self.recomputed_tokens,
            "kv_bytes_sent": self.bytes_sent,
            "kv_bytes_wasted": self.bytes_wasted,
            **dict.fromkeys(("operation", "ranks", "message_bytes", "bus_factor")),  # of messages, without serving
            **{f"t_{stage}_s": self.instants.get(stage) for stage in STAGES},
            "t_ended_s": self.ended_s,
        }
