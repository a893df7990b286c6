"""What became of requests that did not complete, in words, and what to look at where none did."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import requests as rq
from analysis.arms import ArmResult
from results.schema import STAGES

#: Key in `summary.json` -> what ended such requests. Together they are `failed`.
CAUSES = {
    "timed_out": "timed out",
    "cancelled": "cancelled by their clients",
    "handoff_failed": "with a failed handoff",
    "unfinished": "cut off by the end of the run",
}
_STATUS = {"timed_out": "timeout", "cancelled": "cancelled", "handoff_failed": "failed", "unfinished": "unfinished"}

#: Stage in which requests were when they ended -> what to look at.
_LOOK_AT = {
    "arrival": "serving.gateway_delay_ms",
    "prefill_waiting": "prefill cannot keep up: a lower rate of arrivals, more GPUs, or serving.prefill_*",
    "prefill_forward": "prompts take longer to compute than requests may wait: serving.prefill_*, shorter prompts",
    "decode_alloc": "decode has no room: serving.decode_slots_per_gpu, serving.decode_kv_gb_per_gpu",
    "kv_transfer": "handoffs do not end in time: the backlog of the fabric's ports, faults, serving.handoff_timeout_s",
    "decode_waiting": "serving.decode_first_step_ms",
    "decode_first_step": "serving.decode_first_step_ms",
}


def causes(summary: Mapping[str, Any]) -> str:
    """How many failed of what: "7 timed out, 1 cancelled by their clients"; empty where all completed."""
    return ", ".join(f"{summary[key]:,} {text}" for key, text in CAUSES.items() if summary.get(key))


def nothing_completed(arm: ArmResult) -> str:
    """A sentence for a run in which no measured request got a first token: why, and where to look."""
    failed = rq.measured(arm.data.requests)
    most = max(CAUSES, key=lambda key: int((failed["status"] == _STATUS[key]).sum()))
    ended = failed[failed["status"] == _STATUS[most]]
    stage = _stage(ended)
    limit = {
        "timed_out": f"serving.timeout_s is {arm.scenario.serving.timeout_s:g}",
        "cancelled": f"serving.client_cancel_mean_s is {arm.scenario.serving.client_cancel_mean_s:g}",
        "handoff_failed": f"serving.handoff_timeout_s is {arm.scenario.serving.handoff_timeout_s}",
        "unfinished": "the run was interrupted",
    }[most]
    look = f"; {_LOOK_AT[stage]}" if most != "unfinished" and stage in _LOOK_AT else ""
    return (
        f"{arm.label}: no request got a first token: {causes(arm.summary) or f'{len(failed)} failed'}. Most of those"
        f" {CAUSES[most]} were then in the stage {stage} ({rq.STAGE_TEXT.get(stage, 'before they arrived')})."
        f" Look at: {limit}{look}; {Path(arm.arm.path) / 'requests.parquet'} has every request's instants"
    )


def _stage(ended: pd.DataFrame) -> str:
    """The stage that most of these requests had reached last."""
    reached = ended[[f"t_{stage}_s" for stage in STAGES]].notna().to_numpy()
    if not len(reached):
        return ""
    last = [max((at for at, was in enumerate(row) if was), default=-1) for row in reached]
    common = max(set(last), key=lambda at: (last.count(at), at))
    return STAGES[common] if common >= 0 else ""
