"""Rows of a file of any row format: CSV by blocks (fast) or by lines (exact), JSON by lines; order of time."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from itertools import islice
from operator import attrgetter
from typing import Any

from traffic.readers.cells import is_blank, parse_cell
from traffic.readers.csv_blocks import FastCsv
from traffic.readers.lines import BLANK, MAX_LINE_BYTES, Reading, blocks, open_file, text_of
from traffic.readers.rows import TIME_KINDS, BadCell, Format, TraceRow

#: Rows of a log that wait for an earlier one: a log is written as requests end, not as they start.
REORDER_ROWS = 16_384

_AT_NS = attrgetter("at_ns")


def read(reading: Reading, form: Format) -> Iterator[TraceRow]:
    """The rows of a file in order of time, in constant memory.

    Raises `InputError` that names file, line, column and value for what does not parse, unless the reading skips
    bad rows; always for a file that is missing, empty or of another format. A time earlier than the row before
    is a bad row too: sorting would change what `skip` means. Logs (`reorder`) are put in order within
    `REORDER_ROWS` rows.
    """
    with open_file(reading.path) as handle:
        line, at, first = 1, 0, handle.readline(MAX_LINE_BYTES + 1)
        while first and not first.strip(BLANK):  # blank lines before the first that says something
            line += first.endswith(b"\n")
            at, first = handle.tell(), handle.readline(MAX_LINE_BYTES + 1)
        if not first:
            raise reading.error(1, "the file is empty", first)
        if first.lstrip(BLANK).startswith(b"{") and "jsonl" in form.encodings:
            handle.seek(at)
            rows = _json_rows(reading, form, blocks(handle, reading, line))
        elif "csv" in form.encodings:
            header = _header(reading, form, line, first)
            rows = _csv_rows(reading, form, header, blocks(handle, reading, line + 1))
        else:
            raise reading.error(line, "the line is not a JSON object", first)
        yield from _in_order(reading, rows) if form.reorder else rows


def _header(reading: Reading, form: Format, line: int, raw: bytes) -> tuple[str, ...]:
    text = text_of(raw)
    if text is None:
        raise reading.error(line, "the line is not text (UTF-8)", raw)
    names = tuple(name.strip() for name in _fields(text.removeprefix("\ufeff")))
    missing = [name for name in form.required if name not in names]
    if missing:
        raise reading.error(line, f"the header must name {','.join(form.required)}; it lacks {', '.join(missing)}", raw)
    twice = sorted({name for name in names if names.count(name) > 1 and any(c.name == name for c in form.columns)})
    if twice:
        raise reading.error(line, f"the header names {', '.join(twice)} twice", raw)
    return names


def _fields(text: str) -> list[str]:
    return next(csv.reader([text]), []) if '"' in text else text.split(",")


class _Lines:
    """Rows from single lines, with what must be known of the lines before."""

    def __init__(self, reading: Reading, form: Format) -> None:
        self._reading, self._form = reading, form
        self.last_ns = 0
        self.blank_at = 0
        self._time = next(c.name for c in form.columns if c.kind in TIME_KINDS and c.field == "at_ns")

    def row(self, line: int, raw: bytes, values: Any) -> TraceRow | None:
        """The row of (column -> cell) that `values` makes of the line's text; None where it is bad and skipped."""
        if not raw.strip():
            self.blank_at = self.blank_at or line
            return None
        if self.blank_at:
            self._reading.bad(self.blank_at, "an empty line between rows")
            self.blank_at = 0
        text = text_of(raw)
        try:
            if len(raw) > MAX_LINE_BYTES:
                raise BadCell("", f"the line is longer than {MAX_LINE_BYTES} bytes")
            if text is None:
                raise BadCell("", "the line is not text (UTF-8)")
            found = self._form.row(line, values(text))
            if not self._form.reorder and found.at_ns < self.last_ns:
                raise BadCell(self._time, f"{self._time}: the time is earlier than that of the row before")
        except BadCell as bad:
            self._reading.bad(line, bad.what, raw, bad.column)
            return None
        self.last_ns = found.at_ns
        return found


def _csv_rows(
    reading: Reading, form: Format, header: tuple[str, ...], parts: Iterator[tuple[int, bytes]]
) -> Iterator[TraceRow]:
    fast = FastCsv(form, header) if form.check is None else None
    lines = _Lines(reading, form)
    known = [(header.index(column.name), column) for column in form.columns if column.name in header]

    def values(text: str) -> dict[str, Any]:
        cells = _fields(text)
        if len(cells) != len(header):
            raise BadCell("", f"{len(cells)} fields where {len(header)} are expected")
        return {
            column.field: parse_cell(column, cells[at], from_text=True)
            for at, column in known
            if column.required or not is_blank(cells[at])
        }

    for first_line, block in parts:
        rows = fast.rows(first_line, block, lines.last_ns) if fast and not lines.blank_at else None
        if rows:
            lines.last_ns = rows[-1].at_ns
            yield from rows
            continue
        for at, raw in enumerate(block.removesuffix(b"\n").split(b"\n"), first_line):
            row = lines.row(at, raw, values)
            if row is not None:
                yield row


def _json_rows(reading: Reading, form: Format, parts: Iterator[tuple[int, bytes]]) -> Iterator[TraceRow]:
    lines = _Lines(reading, form)

    def values(text: str) -> dict[str, Any]:
        try:
            data = json.loads(text.removeprefix("\ufeff"))
        except (ValueError, RecursionError) as error:
            raise BadCell("", f"the line is not JSON ({error})") from None
        if not isinstance(data, dict):
            raise BadCell("", "the line is not a JSON object")
        found = {}
        for column in form.columns:
            cell = data.get(column.name)
            if not is_blank(cell):
                found[column.field] = parse_cell(column, cell, from_text=False)
            elif column.required:
                raise BadCell(column.name, f"{column.name} is missing")
        return found

    for first_line, block in parts:
        for at, raw in enumerate(block.removesuffix(b"\n").split(b"\n"), first_line):
            row = lines.row(at, raw, values)
            if row is not None:
                yield row


def _in_order(reading: Reading, rows: Iterator[TraceRow]) -> Iterator[TraceRow]:
    """Rows by time, each at most `REORDER_ROWS` away from its place; a row further away is a bad one."""
    waiting: list[TraceRow] = []
    last_ns = 0
    while True:
        more = list(islice(rows, REORDER_ROWS))
        waiting += more
        waiting.sort(key=_AT_NS)  # stable, and fast where little is out of order
        ready = waiting[:-REORDER_ROWS] if more else waiting
        for row in ready:
            if row.at_ns < last_ns:
                reading.bad(row.line, f"the row starts before one that stands {REORDER_ROWS:,} rows earlier")
                continue
            last_ns = row.at_ns
            yield row
        if not more:
            return
        waiting = waiting[-REORDER_ROWS:]
