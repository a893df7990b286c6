"""BurstGPT CSVs, with and without sessions.

Data: https://github.com/HPMLL/BurstGPT (CC-BY-4.0; Wang et al., https://arxiv.org/abs/2401.17644). Columns are
found by name: the later parts have `Session ID` and `Elapsed time` after `Timestamp`. A row with 0 response tokens
is a request that failed: it does not parse; upstream has files without them, and `skip_bad_rows` leaves them out.
"""

from __future__ import annotations

from traffic.readers.rows import Column, Format

BURSTGPT = Format(
    "burstgpt",
    ("csv",),
    (
        Column("Timestamp", "at_ns", "seconds"),
        Column("Request tokens", "input_tokens"),
        Column("Response tokens", "output_tokens"),
        Column("Session ID", "session", "text", required=False),
        Column("Model", "tenant", "text", required=False),
    ),
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type, for example 5,ChatGPT,472,18,490,"
    "Conversation log (0 response tokens is a failed request: skip_bad_rows leaves it out)",
)
