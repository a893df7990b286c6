"""Columns of the run folder's tables. Times are model seconds from the run's start unless named `_wall_s`.

`SCHEMA_VERSION` rises when a column changes its meaning or goes away; new columns do not raise it.
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 1

#: The instants of a request, in order. A stage's duration is the next instant minus this one.
STAGES = (
    "arrival",
    "prefill_waiting",
    "prefill_forward",
    "decode_alloc",
    "kv_transfer",
    "decode_waiting",
    "decode_first_step",
    "first_token",
    "finished",
)

REQUESTS = pa.schema(
    [
        ("request_id", pa.int64()),
        ("session_id", pa.int64()),
        ("tenant", pa.string()),
        ("turn", pa.int32()),
        ("phase", pa.string()),  # warmup | measured | cooldown
        ("warmup", pa.bool_()),  # True for every row that is not measured
        ("status", pa.string()),  # ok | timeout | unfinished
        ("input_tokens", pa.int32()),
        ("cached_tokens", pa.int32()),
        ("output_tokens", pa.int32()),
        ("batch", pa.int64()),
        ("prefill_instance", pa.string()),
        ("decode_instance", pa.string()),
        ("prefill_gpu", pa.string()),
        ("decode_gpu", pa.string()),
        ("candidates", pa.string()),  # JSON: {"prefill": {name: score}, "decode": {name: score}}
        ("slo_ttft_ms", pa.float64()),
        *[(f"t_{stage}_s", pa.float64()) for stage in STAGES],
    ]
)

TRANSFERS = pa.schema(
    [
        ("transfer_id", pa.int64()),
        ("request_id", pa.int64()),
        ("src_gpu", pa.string()),
        ("src_port", pa.int32()),
        ("dst_gpu", pa.string()),
        ("dst_port", pa.int32()),
        ("qp", pa.int32()),
        ("path", pa.list_(pa.string())),  # link ids, source to destination
        ("bytes", pa.int64()),  # model bytes this queue pair carried
        ("wire_bytes_raw", pa.int64()),  # emulated bytes with headers
        ("t_submit_s", pa.float64()),
        ("t_done_s", pa.float64()),  # last byte at the receiver; NaN when it did not finish
        ("ideal_s", pa.float64()),  # duration in the max-min replay of the actual transfers
        ("isolated_s", pa.float64()),  # duration of the whole handoff alone on the fabric
        ("attempt", pa.int32()),
        ("status", pa.string()),  # ok | unfinished
    ]
)

PORTS = pa.schema(
    [
        ("t_s", pa.float64()),
        ("t_wall_s", pa.float64()),
        ("node", pa.string()),
        ("port", pa.int32()),
        ("tx_bytes_raw", pa.int64()),
        ("tx_packets", pa.int64()),
        ("drops", pa.int64()),
        ("backlog_bytes", pa.float64()),  # model bytes
        ("backlog_bytes_raw", pa.int64()),
        ("backlog_packets", pa.int32()),
    ]
)

GPUS = pa.schema([("gpu", pa.string()), ("t_s", pa.float64()), ("state", pa.string())])

#: File name in the run folder -> schema.
TABLES: dict[str, pa.Schema] = {
    "requests": REQUESTS,
    "transfers": TRANSFERS,
    "ports": PORTS,
    "gpus": GPUS,
}
