"""What happened to each request: its stages, its TTFT, and the tokens that came out inside the window.

Stages are instants; a stage lasts until the next one. From `arrival` to `decode_first_step` they sum to TTFT
= first_token - arrival. Only measured requests with status `ok` have a TTFT; any other measured request is a
failure. An instant that a request did not have takes the time of the next one: that stage lasted no time.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pandas as pd

from results.schema import STAGES

#: Stages whose durations sum to TTFT, in order. `arrival` is the way to the prefill queue.
TTFT_STAGES = STAGES[: STAGES.index("first_token")]

#: What each stage means, for people who have not seen the names.
STAGE_TEXT = {
    "arrival": "gateway: from arrival to the prefill queue",
    "prefill_waiting": "waits for a prefill slot",
    "prefill_forward": "prefill computes (a timer)",
    "decode_alloc": "waits for KV space on the decode side",
    "kv_transfer": "KV transfer, the exposed part: prefill is done, KV is still on the fabric",
    "decode_waiting": "waits for a decode slot",
    "decode_first_step": "first decode step (a timer)",
}

#: The same in two or three words, for legends.
STAGE_SHORT = {
    "arrival": "gateway",
    "prefill_waiting": "waits for prefill",
    "prefill_forward": "prefill",
    "decode_alloc": "waits for decode KV space",
    "kv_transfer": "KV transfer (exposed)",
    "decode_waiting": "waits for decode slot",
    "decode_first_step": "first decode step",
}

_IDENTITY = ["session_id", "turn", "input_tokens", "cached_tokens", "output_tokens"]


def measured(requests: pd.DataFrame) -> pd.DataFrame:
    """The requests that count: no warm-up, no cool-down."""
    return requests[~requests["warmup"].astype(bool)]


def completed(requests: pd.DataFrame) -> pd.DataFrame:
    """Measured requests with status ok."""
    chosen = measured(requests)
    return chosen[chosen["status"] == "ok"]


def outcomes(requests: pd.DataFrame) -> dict[str, int]:
    """How many measured requests there are, and what became of them."""
    chosen = measured(requests)
    count = chosen["status"].value_counts()
    return {
        "requests": len(chosen),
        "completed": int(count.get("ok", 0)),
        "failed": len(chosen) - int(count.get("ok", 0)),
        "timed_out": int(count.get("timeout", 0)),
        "unfinished": int(count.get("unfinished", 0)),
        "sessions": int(chosen["session_id"].nunique()),
    }


def decode_candidates(text: object) -> list[str]:
    """Names of the decode targets in a `candidates` cell; empty where none were kept."""
    try:
        found = json.loads(text).get("decode", {}) if isinstance(text, str) else {}
    except (ValueError, AttributeError):
        return []
    return [str(name) for name in found] if isinstance(found, dict) else []


def stage_seconds(requests: pd.DataFrame) -> pd.DataFrame:
    """Seconds that each request spent in each stage, one column a stage; the columns of TTFT_STAGES sum to
    TTFT."""
    instants = requests[[f"t_{stage}_s" for stage in STAGES]].to_numpy(dtype=np.float64, copy=True)
    for column in range(len(STAGES) - 2, 0, -1):
        absent = np.isnan(instants[:, column])
        instants[absent, column] = instants[absent, column + 1]
    return pd.DataFrame(np.diff(instants, axis=1), columns=list(STAGES[:-1]), index=requests.index)


def ttft_ms(requests: pd.DataFrame) -> pd.Series[float]:
    """Time to first token, ms of model time: first_token - arrival."""
    return (requests["t_first_token_s"] - requests["t_arrival_s"]) * 1e3


def e2el_ms(requests: pd.DataFrame) -> pd.Series[float]:
    """End-to-end latency, ms of model time: finished - arrival."""
    return (requests["t_finished_s"] - requests["t_arrival_s"]) * 1e3


def tpot_ms(requests: pd.DataFrame) -> pd.Series[float]:
    """Time per output token after the first, ms: (E2EL - TTFT) / (output tokens - 1); NaN for one token."""
    after_first = (requests["output_tokens"] - 1).astype(float)
    return (e2el_ms(requests) - ttft_ms(requests)) / after_first.where(after_first > 0)


def output_tokens_in(requests: pd.DataFrame, start_s: float, end_s: float) -> float:
    """Output tokens that came out inside [start, end): the first at first_token, the rest evenly to
    finished."""
    done = requests[requests["status"] == "ok"]
    first = done["t_first_token_s"].to_numpy(dtype=np.float64)
    last = done["t_finished_s"].to_numpy(dtype=np.float64)
    tokens = done["output_tokens"].to_numpy(dtype=np.float64)
    started = (first >= start_s) & (first < end_s)
    length = last - first
    overlap = np.clip(np.minimum(last, end_s) - np.maximum(first, start_s), 0, None)
    share = np.divide(overlap, length, out=started.astype(np.float64), where=length > 0)
    return float((started & (tokens > 0)).sum() + (np.maximum(tokens - 1, 0) * share).sum())


def input_tokens_in(requests: pd.DataFrame, start_s: float, end_s: float) -> int:
    """Prompt tokens (cached ones included) of requests whose first token came inside [start, end)."""
    done = requests[requests["status"] == "ok"]
    first = done["t_first_token_s"]
    return int(done.loc[(first >= start_s) & (first < end_s), "input_tokens"].sum())


def finished_in(requests: pd.DataFrame, start_s: float, end_s: float) -> int:
    """Requests, warm-up and cool-down included, whose last token came inside [start, end)."""
    done = requests[requests["status"] == "ok"]
    return int(((done["t_finished_s"] >= start_s) & (done["t_finished_s"] < end_s)).sum())


def workload_hash(requests: pd.DataFrame) -> str:
    """Twelve hex digits over the measured (session, turn, tokens in, cached, out), whatever the order: the
    proof that two runs were asked the same questions."""
    rows = measured(requests)[_IDENTITY].sort_values(_IDENTITY).astype("int64")
    return hashlib.sha256(rows.to_csv(index=False).encode()).hexdigest()[:12]
