"""kv-cache-tester: one JSON file a session of a real coding agent, with prefix blocks of 64 tokens.

Data: https://github.com/callanjfox/kv-cache-tester (`traces/`, Apache-2.0). Per request: `t` (s since the session's
start), `in` and `out` (tokens), `hash_ids`, `think_time` (s from the end of the request before to this one). `t` has
another provider's speed in it, so a replay uses the think times (closed loop); a request without one follows at
once. Entries of type "subagent" hold requests of their own: they are taken as further turns, in order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scenario.errors import InputError
from traffic.readers.cells import is_blank, parse_cell
from traffic.readers.lines import Reading, open_file
from traffic.readers.rows import BadCell, Column, Format, TraceRow

SESSIONS = Format(
    "sessions",
    (),
    (
        Column("t", "at_ns", "seconds"),
        Column("in", "input_tokens"),
        Column("out", "output_tokens", low=0),
        Column("hash_ids", "blocks", "ids", required=False),
        Column("think_time", "think_s", "number", required=False),
    ),
    'a session file {"id": ..., "block_size": 64, "requests": [{"t", "in", "out", "hash_ids", "think_time"}, ...]},'
    " or a folder of them",
    block_tokens=64,
)
#: One session is read whole.
MAX_FILE_BYTES = 256 << 20
#: Block ids of a session mean nothing in another: its number goes above them.
_LOCAL_ID_BITS = 40


def session_files(path: Path) -> list[Path]:
    """The session files that `path` is or holds, in order of name. Raises InputError."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.glob("*.json") if file.is_file())
    if not found:
        raise InputError("workload.path", str(path), "the folder has no *.json", f"Allowed: {SESSIONS.example}.")
    return found


def read_session(reading: Reading, number: int) -> list[TraceRow]:
    """The turns of the session file `reading.path`; `line` is the request's number in it, from 1.

    `number` makes its block ids unique. Raises InputError that names the file, request, key and value.
    """
    with open_file(reading.path) as handle:
        raw = handle.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise reading.error(1, f"the file is larger than {MAX_FILE_BYTES >> 20} MiB", raw)
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise reading.error(getattr(error, "lineno", 1), f"the file is not JSON ({error})", raw) from None
    if not isinstance(data, dict) or not isinstance(data.get("requests"), list):
        raise reading.error(1, "the file is not a session: it has no list `requests`", raw)
    size = data.get("block_size", SESSIONS.block_tokens)
    if type(size) is not int or not 1 <= size <= 1_000_000:
        raise reading.error(1, "block_size must be a whole number of tokens from 1 to 1,000,000", size, "block_size")
    offset = number << _LOCAL_ID_BITS if data.get("hash_id_scope", "local") == "local" else 0
    rows: list[TraceRow] = []
    for at, request in enumerate(_flat(data["requests"]), 1):
        try:
            rows.append(_turn(request, at, reading.path.stem, len(rows), size, offset))
        except BadCell as bad:
            shown = request.get(bad.column) if isinstance(request, dict) and bad.column else request
            reading.bad(at, f"request {at}: {bad.what}", shown, bad.column)
    return rows


def _flat(requests: list[Any]) -> Iterator[Any]:
    for request in requests:
        nested = request.get("requests") if isinstance(request, dict) and request.get("type") == "subagent" else None
        if isinstance(nested, list):
            yield from nested
        else:
            yield request


def _turn(request: Any, line: int, session: str, turn: int, size: int, offset: int) -> TraceRow:
    if not isinstance(request, dict):
        raise BadCell("", "is not a JSON object")
    values: dict[str, Any] = {}
    for column in SESSIONS.columns:
        cell = request.get(column.name)
        if not is_blank(cell):
            values[column.field] = parse_cell(column, cell, from_text=False)
        elif column.required:
            raise BadCell(column.name, f"{column.name} is missing")
    think_s = values.setdefault("think_s", 0.0)
    if not 0 <= think_s <= 1e7:
        raise BadCell("think_time", f"think_time {think_s} is outside 0 to 10,000,000 s")
    # An answer that was broken off still has a first token.
    values["output_tokens"] = max(1, values["output_tokens"])
    if offset and "blocks" in values:
        if max(values["blocks"], default=0) >= 1 << _LOCAL_ID_BITS:
            raise BadCell("hash_ids", f"hash_ids holds an id above 2^{_LOCAL_ID_BITS}")
        values["blocks"] = tuple(offset + block for block in values["blocks"])
    return TraceRow(line, session=session, turn=turn, block_tokens=size, **values)
