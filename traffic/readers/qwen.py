"""qwen-bailian traces: JSON lines with prefix blocks of 16 tokens.

Data: https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon (Apache-2.0; https://arxiv.org/abs/2506.02634).
Each line has a chat_id of its own; a chat's later turns name the one before in `parent_chat_id`. Lines of a replayed
window that go on from each other are turns of one session (`traffic.trace_source`). The replay is an open loop all the
same: the trace says when a turn was sent and not when the answer before it ended, so nobody knows how long its user
thought.
"""

from __future__ import annotations

from traffic.readers.rows import Column, Format

QWEN = Format(
    "qwen",
    ("jsonl",),
    (
        Column("timestamp", "at_ns", "seconds"),
        Column("input_length", "input_tokens"),
        Column("output_length", "output_tokens"),
        Column("hash_ids", "blocks", "ids"),
        Column("chat_id", "session", "text", required=False),
        Column("parent_chat_id", "parent", "text", required=False),
        Column("turn", "turn", low=0, required=False),
        Column("type", "tenant", "text", required=False),
    ),
    "JSON lines with chat_id, timestamp (s), input_length, output_length, hash_ids (a block of 16 tokens each)",
    block_tokens=16,
)
