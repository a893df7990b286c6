"""What customers got, and what the GPUs did: objectives met by tenant, failures and their cost, GPU time.

* A request meets its objectives when it completed, its TTFT is within `slo_ttft_ms` and its time per output token
  within `slo_tpot_ms`, as far as it has them. `slo_attainment`: the share of measured requests with an objective that
  met theirs (a failure misses). `request_goodput`: those whose last token came inside the window, a second (the
  definition of `vllm bench serve --goodput`).
* GPU time: the share of the window that GPUs of a role were `busy`, `waiting_work`, `waiting_kv` or `blocked` (prefill
  that waits for memory which handoffs hold). Tokens a second are over all GPUs of the role, and over their busy time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis import requests as rq
from results.reader import Window

STATES = ("busy", "waiting_work", "waiting_kv", "blocked")


def objectives(requests: pd.DataFrame, window: Window) -> dict[str, Any]:
    """slo_attainment and request_goodput over all tenants, and `tenants` where there are several."""
    measured = rq.measured(requests)
    limits = {name: _column(measured, name) for name in ("slo_ttft_ms", "slo_tpot_ms")}
    has = limits["slo_ttft_ms"].notna() | limits["slo_tpot_ms"].notna()
    steps = (measured["output_tokens"] - 1).clip(lower=1)
    tpot = (measured["t_finished_s"] - measured["t_first_token_s"]) * 1e3 / steps
    good = (
        (measured["status"] == "ok")
        & ~(rq.ttft_ms(measured) > limits["slo_ttft_ms"])
        & ~(tpot > limits["slo_tpot_ms"])
        & has
    )
    inside = (measured["t_finished_s"] >= window.t_start_s) & (measured["t_finished_s"] < window.t_end_s)

    def figures(chosen: pd.Series[bool]) -> dict[str, float]:
        if not (has & chosen).any():
            return {}
        return {
            "slo_attainment": float(good[has & chosen].mean()),
            "request_goodput": int((good & inside & chosen).sum()) / window.duration_s,
        }

    everyone = pd.Series(True, index=measured.index)
    found: dict[str, Any] = dict(figures(everyone))
    names = sorted(measured["tenant"].dropna().unique())
    if len(names) > 1:
        found["tenants"] = {}
        for name in names:
            mine = measured["tenant"] == name
            done = rq.ttft_ms(measured[mine & (measured["status"] == "ok")])
            found["tenants"][name] = {
                "requests": int(mine.sum()),
                "completed": len(done),
                "mean_ttft_ms": float(done.mean()),
                "p99_ttft_ms": float(np.percentile(done, 99)) if len(done) else float("nan"),
                **figures(mine),
            }
    return found


def costs_of_failure(requests: pd.DataFrame) -> dict[str, int]:
    """Sums over measured requests; empty for a run folder of an older form."""
    measured = rq.measured(requests)
    if "handoff_attempts" not in measured:
        return {}
    return {
        "cancelled": int((measured["status"] == "cancelled").sum()),
        "handoff_failed": int((measured["status"] == "failed").sum()),
        "handoffs_repeated": int((measured["handoff_attempts"] > 1).sum()),
        "recomputed_tokens": int(measured["recomputed_tokens"].sum()),
        "kv_bytes_wasted": int(measured["kv_bytes_wasted"].sum()),
        "handoffs_local": int(measured["local"].sum()),
    }


def gpu_time(states: pd.DataFrame, requests: pd.DataFrame, window: Window) -> dict[str, Any]:
    """`gpu_time`: role -> number of GPUs, share of each state, tokens a second and GPU, tokens a busy GPU second.

    Prefill's tokens are computed prompt tokens of requests whose prefill ended inside the window, decode's are output
    tokens of those whose last token came inside it. A GPU's role is the one its states show (only decode waits for KV).
    """
    if states.empty:
        return {}
    roles = {"prefill": set(requests["prefill_gpu"].dropna()), "decode": set(requests["decode_gpu"].dropna())}
    waits = set(states.loc[states["state"] == "waiting_kv", "gpu"])
    shares: dict[str, dict[str, float]] = {}
    for gpu, rows in states.groupby("gpu", sort=False):
        at = np.clip(rows["t_s"].to_numpy(dtype=np.float64), window.t_start_s, window.t_end_s)
        lasts = np.diff(np.append(at, window.t_end_s))
        spent = pd.Series(lasts).groupby(rows["state"].to_numpy()).sum()
        shares[str(gpu)] = {state: float(spent.get(state, 0.0)) / window.duration_s for state in STATES}
    # An instance's GPUs change state together, and a request names its first: the others do what that one does.
    ends = {
        "prefill": ("t_decode_alloc_s", requests["input_tokens"] - requests["cached_tokens"]),
        "decode": ("t_finished_s", requests["output_tokens"]),
    }
    decode = waits | roles["decode"]
    found: dict[str, Any] = {}
    for role, (column, tokens) in ends.items():
        gpus = [gpu for gpu in shares if (gpu in decode) == (role == "decode")]
        if not gpus:
            continue
        mean = {state: float(np.mean([shares[gpu][state] for gpu in gpus])) for state in STATES}
        inside = (requests[column] >= window.t_start_s) & (requests[column] < window.t_end_s)
        rate = float(tokens[inside].sum()) / window.duration_s / len(gpus)
        found[role] = {
            "gpus": len(gpus),
            "shares": mean,
            "tokens_per_s_per_gpu": rate,
            "tokens_per_busy_gpu_s": rate / mean["busy"] if mean["busy"] else float("nan"),
        }
    return {"gpu_time": found}


def _column(frame: pd.DataFrame, name: str) -> pd.Series[float]:
    """A column as floats; all NaN where a run folder of an older form lacks it."""
    if name not in frame:
        return pd.Series(np.nan, index=frame.index)
    return frame[name].astype("float64")
