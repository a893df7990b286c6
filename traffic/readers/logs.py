"""Logs that say which GPU served what: recorded transfers, and the routing of requests.

Routing log: the per-request CSV of AMD Infera (https://github.com/AMD-AGI/Infera, MIT): start_ns, p_rank, d_rank,
input_tokens, output_tokens, device_tokens, host_tokens, miss_tokens, ttft_ms, p_queue_ms. `miss_tokens` are those
that prefill computed; the rest of the prompt was cached. Columns that are not used are ignored.
"""

from __future__ import annotations

from traffic.readers.rows import MAX_BYTES, Column, Format

TRANSFERS = Format(
    "transfers",
    ("csv", "jsonl"),
    (
        Column("time_s", "at_ns", "seconds"),
        Column("src_gpu", "prefill_gpu", "text"),
        Column("dst_gpu", "decode_gpu", "text"),
        Column("bytes", "kv_bytes", high=MAX_BYTES),
        Column("request", "session", "text", required=False),
    ),
    "time_s,src_gpu,dst_gpu,bytes and perhaps request, for example 0.25,gpu1,gpu20,6146400000,r17",
    reorder=True,
)

ROUTING = Format(
    "routing",
    ("csv",),
    (
        Column("start_ns", "at_ns", "nanoseconds"),
        Column("p_rank", "prefill_gpu", "text"),
        Column("d_rank", "decode_gpu", "text"),
        Column("input_tokens", "input_tokens"),
        Column("output_tokens", "output_tokens", required=False),
        Column("miss_tokens", "miss_tokens", low=0),
        Column("p_queue_ms", "queue_ms", "number", required=False),
    ),
    "start_ns,p_rank,d_rank,input_tokens,miss_tokens and perhaps output_tokens,p_queue_ms, for example"
    " 1758000000000000000,3,5,122000,4100",
    reorder=True,
)
