"""The metrics of a run without serving (collectives, traffic matrices, recorded transfers): its `summary.json`.

* `makespan_s`: first start to last end of the measured messages. A message is one collective, one matrix or one row.
* `*_message_ms`: start to end of a message. `*_fct_ms`: flow completion time, submission to last byte of each flow on
  the fabric (NVLink has none); `*_fct_slowdown`: that over the same flow alone on the fabric.
* `*_algbw_gbyte_per_s`: size / time, and `*_busbw_gbyte_per_s`: that times the operation's factor, GB/s of 10^9 bytes,
  of each message. Size and factor as NVIDIA/nccl-tests define them (doc/PERFORMANCE.md; docs/collectives.md here).
  `mean_busbw_gbps` is the same in Gb/s, to hold against the NIC.
* `flow_bytes`: model bytes that measured messages sent over the fabric; `flow_gbps`: over the makespan.

Intervals: bootstrap over messages, whose flows are not independent.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pandas as pd

from analysis import requests as rq
from analysis.stats import bootstrap, describe
from results.reader import Window


def is_flows(requests: pd.DataFrame) -> bool:
    """Whether the rows of a requests table are messages."""
    return bool(len(requests)) and bool(requests["operation"].notna().any())


def completion_ms(requests: pd.DataFrame, transfers: pd.DataFrame) -> pd.DataFrame:
    """One row a flow of a completed measured message: request_id, fct_ms, slowdown."""
    done = rq.completed(requests)["request_id"]
    flows = transfers[(transfers["kind"] == "flow") & transfers["request_id"].isin(done)]
    table = flows.groupby(["request_id", "transfer_id"], sort=True, as_index=False).agg(
        submit_s=("t_submit_s", "min"), done_s=("t_done_s", "max"), alone_s=("isolated_s", "max")
    )
    table["fct_ms"] = (table["done_s"] - table["submit_s"]) * 1e3
    table["slowdown"] = table["fct_ms"] / (table["alone_s"] * 1e3).where(table["alone_s"] > 0)
    return table


def workload_hash(requests: pd.DataFrame, transfers: pd.DataFrame) -> str:
    """Twelve hex digits over the measured messages, their bytes, and who sent to whom."""
    messages = rq.measured(requests)[["request_id", "operation", "message_bytes", "kv_bytes_sent"]]
    flows = transfers[transfers["request_id"].isin(messages["request_id"])]
    pairs = flows[["request_id", "transfer_id", "src_gpu", "dst_gpu"]].drop_duplicates()
    text = messages.sort_values("request_id").to_csv(index=False)
    text += pairs.sort_values(["request_id", "transfer_id"]).to_csv(index=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def flow_metrics(
    requests: pd.DataFrame, transfers: pd.DataFrame, window: Window, seed: int, resamples: int
) -> dict[str, Any]:
    """All of it, with `intervals`."""
    measured, done = rq.measured(requests), rq.completed(requests)
    seconds = done["t_finished_s"] - done["t_arrival_s"]
    flows = completion_ms(requests, transfers)
    finite = flows[flows["fct_ms"].notna()]
    algbw = done["message_bytes"] / 1e9 / seconds.where(seconds > 0)
    busbw = algbw * done["bus_factor"]
    makespan_s = float(done["t_finished_s"].max() - measured["t_arrival_s"].min()) if len(done) else float("nan")
    sent = int(done["kv_bytes_sent"].sum())
    drawn = bootstrap(finite["fct_ms"], finite["request_id"], seed, resamples)
    return {
        **rq.outcomes(requests),
        "workload_hash": workload_hash(requests, transfers),
        "operations": sorted({str(name) for name in measured["operation"]}),
        "duration": window.duration_s,
        "window_start_s": window.t_start_s,
        "window_end_s": window.t_end_s,
        "makespan_s": makespan_s,
        "flows": len(flows),
        "flow_bytes": sent,
        "flow_gbps": sent * 8 / 1e9 / makespan_s if makespan_s > 0 else float("nan"),
        **_named(describe(seconds * 1e3), "message_ms"),
        **_named(describe(finite["fct_ms"]), "fct_ms"),
        **_named(describe(finite["slowdown"].dropna()), "fct_slowdown"),
        **_named(describe(algbw.dropna()), "algbw_gbyte_per_s"),
        **_named(describe(busbw.dropna()), "busbw_gbyte_per_s"),
        "mean_busbw_gbps": float(np.nanmean(busbw)) * 8 if busbw.notna().any() else float("nan"),
        "intervals": {f"{name}_fct_ms": [found.low, found.high] for name, found in drawn.items()},
        "interval_unit": "message",
        "interval_units": int(finite["request_id"].nunique()),
    }


def _named(figures: dict[str, float], suffix: str) -> dict[str, float]:
    return {f"{name}_{suffix}": value for name, value in figures.items()}
