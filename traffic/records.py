"""What the engine keeps of each request, and the rows it leaves for the run folder's tables."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum

from results.schema import STAGES
from traffic.layout import DecodeTarget
from traffic.placement import Choice
from traffic.requests import Request


class Step(Enum):
    """Where a request is; it decides what a timeout has to give back."""

    FUTURE = "not arrived"
    GATEWAY = "on its way to the prefill queue"
    QUEUED = "in the prefill queue"
    FORWARD = "in a running prefill batch"
    ALLOC = "waiting for a decode slot and memory"
    TRANSFER = "handoff submitted"
    FIRST_STEP = "all KV at decode, first token not out"
    DECODING = "first token out"
    FINISHED = "last token out"
    TIMED_OUT = "no first token before the deadline"


@dataclass(eq=False)
class Live:
    """A request and its state. Instants are model seconds; they never decrease (`mark`)."""

    request: Request
    kv_bytes: int
    decode_bytes: int
    step: Step = Step.FUTURE
    instants: dict[str, float] = field(default_factory=dict)
    batch: int | None = None
    prefill: Choice | None = None
    decode: Choice | None = None
    target: DecodeTarget | None = None
    prefill_gpu: str | None = None
    open_transfers: set[int] = field(default_factory=set)
    last_byte_s: float = 0.0

    @property
    def prefill_name(self) -> str:
        """The prefill server; empty before the gateway has chosen."""
        return self.prefill.name if self.prefill else ""

    @property
    def decode_name(self) -> str:
        """The decode target; empty before the gateway has chosen."""
        return self.decode.name if self.decode else ""

    def mark(self, stage: str, t_s: float) -> float:
        """Set a stage's instant, not before the previous one (receivers' stamps may be early); returns it."""
        latest = max(self.instants.values(), default=t_s)
        self.instants[stage] = max(t_s, latest)
        return self.instants[stage]

    @property
    def status(self) -> str:
        """ok (has its first token), timeout, or unfinished."""
        if self.step in (Step.DECODING, Step.FINISHED):
            return "ok"
        return "timeout" if self.step is Step.TIMED_OUT else "unfinished"

    def row(self) -> dict[str, object]:
        """The row of the `requests` table. Stages that were not reached are None.

        With shape A, `prefill_gpu` and `decode_gpu` are the first rank's. `slo_ttft_ms` is None: the scenario
        has none.
        """
        r = self.request
        candidates = {
            "prefill": self.prefill.scores if self.prefill else {},
            "decode": self.decode.scores if self.decode else {},
        }
        return {
            "request_id": r.request_id,
            "session_id": r.session_id,
            "tenant": r.tenant,
            "turn": r.turn,
            "phase": r.phase,
            "warmup": r.phase != "measured",
            "status": self.status,
            "input_tokens": r.input_tokens,
            "cached_tokens": r.cached_tokens,
            "output_tokens": r.output_tokens,
            "batch": self.batch,
            "prefill_instance": self.prefill.name if self.prefill else None,
            "decode_instance": self.target.server if self.target else None,
            "prefill_gpu": self.prefill_gpu,
            "decode_gpu": self.target.gpus[0] if self.target else None,
            "candidates": json.dumps(candidates),
            "slo_ttft_ms": None,
            **{f"t_{stage}_s": self.instants.get(stage) for stage in STAGES},
        }
