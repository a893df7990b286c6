"""What a trace is like: sizes, arrivals, prefix reuse, who sends to whom. One pass, nothing kept but histograms."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from traffic.kv import KvModel
from traffic.moments import Gaps, Histogram, WindowCounts
from traffic.pair_matrix import PairMatrix
from traffic.prefix import InfiniteCache
from traffic.readers.rows import TraceRow
from traffic.readers.sessions import SESSIONS
from traffic.readers.trace import Trace

_BATCH_ROWS = 65_536
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass
class TraceStats:
    """Statistics of a trace. `uncached` and `hit_tokens` are those of the log, or of an infinite cache."""

    trace: Trace
    model: KvModel
    rows: int = 0
    sessions: int = 0
    input: Histogram = field(default_factory=Histogram)
    output: Histogram = field(default_factory=Histogram)
    uncached: Histogram = field(default_factory=Histogram)
    transfers: Histogram = field(default_factory=Histogram)
    gaps: Gaps = field(default_factory=Gaps)
    seconds: WindowCounts = field(default_factory=lambda: WindowCounts(10**9))
    minutes: WindowCounts = field(default_factory=lambda: WindowCounts(60 * 10**9))
    pairs: PairMatrix = field(default_factory=PairMatrix)
    reuse_known: bool = False

    @property
    def closed_loop(self) -> bool:
        """Whether the rows have no arrival times of their own."""
        return self.trace.form is SESSIONS

    @property
    def flow_bytes(self) -> Histogram:
        """Bytes of a handoff: logged ones, or those of whole prompts."""
        return self.transfers if self.transfers.count else self.input.scaled(self.model.bytes_per_token)

    @property
    def hit_share(self) -> float:
        """Cached share of all prompt tokens."""
        return 1 - self.uncached.total / self.input.total if self.input.total else math.nan

    def to_json(self) -> dict[str, Any]:
        """Plain data; a statistic that does not exist is None."""
        found: dict[str, Any] = {
            "file": str(self.trace.path),
            "format": self.trace.form.name,
            "rows": self.rows,
            "bad_rows_skipped": self.trace.bad_rows,
            "first_bad_row": self.trace.first_bad,
        }
        if self.closed_loop:
            found["sessions"] = self.sessions
        else:
            found["arrivals"] = {
                "span_s": self.gaps.span_s,
                "per_s": _number(self.gaps.count / self.gaps.span_s if self.gaps.span_s else math.nan),
                "gap_cv": _number(self.gaps.cv),
                "idc_1s": _number(self.seconds.dispersion),
                "idc_60s": _number(self.minutes.dispersion),
                "empty_seconds_share": _number(self.seconds.empty_share),
            }
        if self.input.count:
            found["input_tokens"] = _summary(self.input)
            found["output_tokens"] = _summary(self.output)
        if self.reuse_known:
            found["prefix"] = {"hit_share": _number(self.hit_share), "uncached_tokens": _summary(self.uncached)}
        model = None if self.transfers.count else self.model.name
        found["flow_bytes"] = {**_summary(self.flow_bytes), "model": model}
        if self.pairs.rows:
            found["pairs"] = [
                {"prefill": a, "decode": b, "rows": rows, "bytes": self.pairs.bytes[a, b]}
                for (a, b), rows in sorted(self.pairs.rows.items(), key=lambda item: _natural(item[0]))
            ]
            found["moves"] = [
                {"total_variation": distance, "by_chance": chance} for distance, chance in self.pairs.moves()
            ]
        return found


def measure(trace: Trace, model: KvModel) -> TraceStats:
    """Read the trace to its end. Raises `InputError` as its reader does."""
    stats = TraceStats(trace, model)
    cache = InfiniteCache()
    rows = iter(trace)
    while batch := list(islice(rows, _BATCH_ROWS)):
        _add(stats, cache, batch)
    return stats


def _add(stats: TraceStats, cache: InfiniteCache, batch: list[TraceRow]) -> None:
    stats.rows += len(batch)
    if stats.closed_loop:
        stats.sessions += sum(row.turn == 0 for row in batch)
    else:
        at_ns = np.array([row.at_ns for row in batch], dtype=np.int64)
        for arrivals in (stats.gaps, stats.seconds, stats.minutes):
            arrivals.add(at_ns)
    if stats.trace.form.name == "transfers":
        sizes = [row.kv_bytes for row in batch]
        stats.transfers.add(sizes)
    else:
        tokens = [row.input_tokens for row in batch]
        stats.input.add(tokens)
        stats.output.add([row.output_tokens for row in batch])
        sizes = [stats.model.kv_bytes(n) for n in tokens] if batch[0].prefill_gpu else []
    if stats.input.count:
        cached = [cache.hit_tokens(row) if row.cached_tokens is None else row.cached_tokens for row in batch]
        stats.uncached.add([row.input_tokens - hits for row, hits in zip(batch, cached, strict=True)])
        # A table may leave the cell of some rows empty.
        stats.reuse_known |= any(row.blocks is not None or row.cached_tokens is not None for row in batch)
    if batch[0].prefill_gpu:
        label = _gpu if stats.trace.form.name == "transfers" else str
        stats.pairs.add(
            ((label(row.prefill_gpu), label(row.decode_gpu)), size) for row, size in zip(batch, sizes, strict=True)
        )


def _gpu(label: str) -> str:
    """A transfer log may write gpu1 as 1."""
    return f"gpu{label}" if label.isdecimal() else label


def _summary(numbers: Histogram) -> dict[str, Any]:
    quantiles = dict(zip(QUANTILES, numbers.quantiles(QUANTILES.values()), strict=True))
    return {
        "mean": _number(numbers.mean),
        **{name: _number(value) for name, value in quantiles.items()},
        "max": numbers.largest if numbers.count else None,
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _natural(pair: tuple[str, str]) -> tuple[tuple[int, str], ...]:
    """Order of labels in which 10 comes after 9."""
    return tuple((len(label), label) for label in pair)
