"""A user's measurements of transfers and of prefill: CSV files whose columns may be named as tools name them.

Transfers need a size and a time in each row, prefill needs tokens and a time. Names are compared without regard to case
and runs of spaces; columns that are not known are left alone. Of several known ones the first in the lists counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scenario.errors import InputError
from traffic.csv_table import CsvRow, CsvTable, read_table

#: Column -> what one of it is in bytes. vLLM's "MB" is 2**20 bytes (NixlKVConnectorStats.reduce).
SIZES: Mapping[str, float] = {
    "bytes": 1,
    "size_bytes": 1,
    "total_bytes": 1,
    "transfer_bytes": 1,
    "bytes_transferred": 1,
    "avg mb per transfer": 2**20,
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
#: Column -> what one of it is in seconds.
TIMES: Mapping[str, float] = {
    "seconds": 1,
    "s": 1,
    "duration_s": 1,
    "transfer_duration": 1,
    "ms": 1e-3,
    "duration_ms": 1e-3,
    "latency_ms": 1e-3,
    "transfer_ms": 1e-3,
    "batch_ms": 1e-3,
    "avg xfer time (ms)": 1e-3,
    "us": 1e-6,
    "duration_us": 1e-6,
    "latency_us": 1e-6,
}
#: Tables of benchmarks: (block bytes, blocks in a batch, microseconds, whether that time is of the batch or a block).
#: nixlbench divides its latency by the batch (ai-dynamo/nixl, benchmark/nixlbench/src/utils/utils.cpp, printStats);
#: Mooncake's tebench does not (kvcache-ai/Mooncake, mooncake-transfer-engine/benchmark/utils.cpp).
BENCHMARKS: tuple[tuple[str, str, str, bool], ...] = (
    ("block size (b)", "batch size", "avg lat. (us)", False),
    ("blksize (b)", "batch", "avg lat (us)", True),
)
#: What a run of Mooncake's transfer_engine_bench was given and says: "duration ..., batch count ...". Each of its
#: threads sends one batch after the other, so a batch took duration * threads / batch count.
ENGINE_BENCH = ("block_size", "batch_size", "duration", "batch_count")
TOKENS = ("prefill_tokens", "prompt_tokens", "input_tokens", "tokens")

_HINT = (
    "A header and rows: bytes,ms (or bytes,seconds) for transfers; prefill_tokens,ms for prefill. docs/kv.md lists the"
    " other names that are known."
)
_US = 1e-6


@dataclass(frozen=True)
class Measurements:
    """Pairs of a size and seconds: (bytes of a transfer, s) and (uncached tokens of a prefill batch, s)."""

    transfers: tuple[tuple[float, float], ...] = ()
    prefills: tuple[tuple[float, float], ...] = ()

    def __add__(self, other: Measurements) -> Measurements:
        return Measurements(self.transfers + other.transfers, self.prefills + other.prefills)


def read_measurements(path: Path) -> Measurements:
    """The measurements in one file: its header says of what. Raises `InputError` with file, line, column and value."""
    table = read_table(path, "FILE", _HINT)
    for block, batch, microseconds, of_batch in BENCHMARKS:
        if {block, batch, microseconds} <= set(table.header):
            rows = []
            for row in table.rows():
                blocks = row.number(batch, at_least=1)
                each = row.number(microseconds, above=0) * _US
                rows.append((row.number(block, above=0) * blocks, each if of_batch else each * blocks))
            return Measurements(transfers=_some(table, rows))
    if set(ENGINE_BENCH) <= set(table.header):
        return Measurements(transfers=_some(table, [_engine_bench(row) for row in table.rows()]))
    time = next((name for name in TIMES if name in table.header), None)
    size = next((name for name in SIZES if name in table.header), None)
    tokens = next((name for name in TOKENS if name in table.header), None)
    if time is None or (size is None) == (tokens is None):
        what = "no time" if time is None else "neither a size nor tokens" if size is None else "both a size and tokens"
        raise InputError(f"FILE: {path}, line 1", ",".join(table.header.values()), f"has {what}", _HINT)
    x, factor = (size, SIZES[size]) if size else (str(tokens), 1.0)
    pairs = [(row.number(x, above=0) * factor, row.number(time, above=0) * TIMES[time]) for row in table.rows()]
    return Measurements(transfers=_some(table, pairs)) if size else Measurements(prefills=_some(table, pairs))


def _engine_bench(row: CsvRow) -> tuple[float, float]:
    block, batch, duration, count = (row.number(name, above=0) for name in ENGINE_BENCH)
    threads = row.number("threads", at_least=1) if row.has("threads") else 1.0
    return block * batch, duration * threads / count


def _some(table: CsvTable, rows: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    if not rows:
        raise InputError("FILE", str(table.path), "has a header and no rows", _HINT)
    return tuple(rows)
