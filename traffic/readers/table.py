"""This testbed's own format, as CSV (columns by name) or JSON lines (the same names as keys)."""

from __future__ import annotations

from traffic.readers.rows import Column, Format

TABLE = Format(
    "table",
    ("csv", "jsonl"),
    (
        Column("arrival_s", "at_ns", "seconds"),
        Column("input_tokens", "input_tokens"),
        Column("output_tokens", "output_tokens"),
        Column("cached_tokens", "cached_tokens", low=0, required=False),
        Column("session_id", "session", "text", required=False),
        Column("tenant", "tenant", "text", required=False),
        Column("turn", "turn", low=0, required=False),
    ),
    "arrival_s,input_tokens,output_tokens and perhaps cached_tokens,session_id,tenant,turn, for example 0.25,4808,10",
)
