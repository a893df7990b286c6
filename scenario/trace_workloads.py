"""Workloads that replay a file: a window of a trace, of real sessions, or of a log (docs/workload.md, formats)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from scenario.section import Section


class TraceWorkload(Section):
    """What every replay has: a file and the window of it that is served."""

    path: Path = Field(description="the file")
    skip: int = Field(0, ge=0, description="rows to leave out at the start")
    requests: int = Field(300, ge=1, le=1_000_000, description="measured requests")
    warmup_requests: int = Field(0, ge=0, le=1_000_000, description="replayed before them, not measured")
    speedup: float = Field(1.0, ge=1e-6, le=1e6, description="divides every gap between arrivals")
    skip_bad_rows: bool = Field(False, description="count rows that do not parse, in place of stopping at the first")


class AzureWorkload(TraceWorkload):
    """Open-loop replay of an Azure LLM inference trace (TIMESTAMP,ContextTokens,GeneratedTokens)."""

    kind: Literal["azure"] = "azure"


class MooncakeWorkload(TraceWorkload):
    """Open-loop replay of a Mooncake trace: JSON lines with prefix blocks of 512 tokens."""

    kind: Literal["mooncake"] = "mooncake"
    raw_timestamps: bool = Field(False, description="keep stamps that lie on a grid of 3 s; default: spread over it")


class BurstGptWorkload(TraceWorkload):
    """Open-loop replay of a BurstGPT CSV (Timestamp, Request tokens, Response tokens; perhaps Session ID)."""

    kind: Literal["burstgpt"] = "burstgpt"


class QwenWorkload(TraceWorkload):
    """Open-loop replay of a qwen-bailian trace: JSON lines with prefix blocks of 16 tokens."""

    kind: Literal["qwen"] = "qwen"


class TableWorkload(TraceWorkload):
    """Open-loop replay of this testbed's own format (arrival_s, input_tokens, output_tokens, ...)."""

    kind: Literal["table"] = "table"


class TransfersWorkload(TraceWorkload):
    """A recorded transfer log (time_s, src_gpu, dst_gpu, bytes, request): each row is one handoff."""

    kind: Literal["transfers"] = "transfers"
    direct: bool = Field(
        False, description="play the rows as flows at their times, without serving (docs/collectives.md)"
    )


class RoutingWorkload(TraceWorkload):
    """A routing log (start_ns, p_rank, d_rank, input_tokens, miss_tokens, ...): each row has its GPUs."""

    kind: Literal["routing"] = "routing"


class SessionsWorkload(Section):
    """Closed-loop replay of recorded sessions (kv-cache-tester): next start = previous finish + think time."""

    kind: Literal["sessions"] = "sessions"
    path: Path = Field(description="a session file, or a folder of them (*.json, in order of name)")
    skip: int = Field(0, ge=0, description="sessions to leave out at the start")
    requests: int = Field(300, ge=1, le=1_000_000, description="measured requests")
    warmup_requests: int = Field(0, ge=0, le=1_000_000, description="served before them, not measured")
    speedup: float = Field(1.0, ge=1e-6, le=1e6, description="divides every think time")
    users: int = Field(8, ge=1, le=100_000, description="sessions at once; a user's next one follows its last")
    ramp_s: float = Field(10.0, ge=0, le=1e6, description="users start at times drawn from 0 to this")
    skip_bad_rows: bool = Field(False, description="count turns that do not parse, in place of stopping at the first")
