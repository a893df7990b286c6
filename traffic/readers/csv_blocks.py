"""A block of CSV lines as rows, fast, where nothing is wrong with any of them.

Arrow parses the block by column and numpy checks it. Whatever is unusual (a cell that does not parse, a blank
line, a quotation mark, a number in hexadecimal) makes the answer None: the caller then reads the block line by
line, which is the definition of the format and says what is wrong.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from traffic.readers.cells import MAX_SECONDS
from traffic.readers.rows import Column, Format, TraceRow

_ARROW = {
    "count": pa.int64(),
    "nanoseconds": pa.int64(),
    "seconds": pa.float64(),
    "milliseconds": pa.float64(),
    "number": pa.float64(),
    "text": pa.string(),
}
_STAMPS = (pa.timestamp("ns"), pa.timestamp("ns", "UTC"))
#: What Arrow and the reader of single lines do not take alike: quotation, hexadecimal, a lone carriage return, NUL.
_UNUSUAL = (b'"', b"0x", b"0X", b"\x00")


@dataclass(frozen=True)
class FastCsv:
    """The fast way through a file with this header."""

    format: Format
    header: tuple[str, ...]

    def rows(self, first_line: int, block: bytes, not_before_ns: int) -> list[TraceRow] | None:
        """The rows of a block of whole lines; None where one of them needs a closer look."""
        if any(mark in block for mark in _UNUSUAL) or block.count(b"\r") not in (0, block.count(b"\n")):
            return None
        columns = [column for column in self.format.columns if column.name in self.header]
        for stamp in _STAMPS if any(c.kind == "stamp" for c in columns) else (None,):
            table = self._table(columns, block, stamp)
            if table is not None:
                break
        else:
            return None
        lines = block.count(b"\n") + (not block.endswith(b"\n"))
        if table.num_rows != lines:
            return None  # blank lines
        fields: dict[str, Iterable[Any]] = {}
        checked: dict[str, np.ndarray] = {}
        for column in columns:
            cells = table.column(column.name)
            if cells.null_count:
                return None
            if column.kind == "text":
                trimmed = pc.utf8_trim_whitespace(cells)
                if column.required and pc.min(pc.utf8_length(trimmed)).as_py() == 0:
                    return None
                fields[column.field] = trimmed.to_pylist()
                continue
            numbers = _numbers(column, cells)
            if numbers is None:
                return None
            checked[column.field] = numbers
        at = checked["at_ns"]
        if not self.format.reorder and (int(at[0]) < not_before_ns or bool(np.any(at[1:] < at[:-1]))):
            return None
        if "miss_tokens" in checked:
            checked["cached_tokens"] = checked["input_tokens"] - checked.pop("miss_tokens")
        cached = checked.get("cached_tokens")
        if cached is not None and (cached.min() < 0 or bool(np.any(cached > checked["input_tokens"]))):
            return None
        for name, numbers in checked.items():
            fields[name] = numbers.tolist()
        fields["line"] = range(first_line, first_line + lines)
        defaults = {**TraceRow._field_defaults, "block_tokens": self.format.block_tokens}
        ordered = [fields[name] if name in fields else repeat(defaults[name]) for name in TraceRow._fields]
        return list(map(TraceRow._make, zip(*ordered, strict=False)))

    def _table(self, columns: list[Column], block: bytes, stamp: Any) -> Any:
        types = {c.name: stamp if c.kind == "stamp" else _ARROW[c.kind] for c in columns}
        try:
            return csv.read_csv(
                io.BytesIO(block),
                csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=self.header),
                csv.ParseOptions(quote_char=False, ignore_empty_lines=True),
                csv.ConvertOptions(
                    column_types=types, include_columns=list(types), null_values=[""], strings_can_be_null=False
                ),
            )
        except (pa.ArrowInvalid, pa.ArrowKeyError):
            return None


def _numbers(column: Column, cells: Any) -> np.ndarray | None:
    """Cells of a numeric column as the row holds them; None where one is outside what fits."""
    if column.kind == "stamp":
        cells = cells.cast(pa.int64())
    found: np.ndarray = cells.to_numpy()
    low, high = column.low, column.high
    if column.kind in ("seconds", "milliseconds"):
        if not np.all(np.isfinite(found)):
            return None
        found = found * (1e9 if column.kind == "seconds" else 1e6)
    elif column.kind == "number":
        return found if np.all(np.isfinite(found)) else None
    if column.kind != "count":
        low, high = 0, int(MAX_SECONDS * 1e9)
    if found.min() < low or found.max() > high:
        return None
    return np.rint(found).astype(np.int64) if found.dtype.kind == "f" else found
