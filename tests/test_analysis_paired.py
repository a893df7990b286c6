"""Differences request by request, worked by hand on two made-up runs."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from analysis.paired import PairedDifference, paired_differences
from analysis.stats import Interval
from results.schema import STAGES


def arm(transfer_s: dict[int, float], status: str = "ok") -> Any:
    """Requests whose prefill ends at 1 s and whose handoff takes what is given; two sessions take turns."""
    rows = []
    for request_id, seconds in transfer_s.items():
        at = dict.fromkeys(STAGES[:5], 1.0) | {"arrival": 0.0}
        at |= dict.fromkeys(STAGES[5:], 1.0 + seconds)
        stages = {f"t_{stage}_s": at[stage] for stage in STAGES}
        base = {"request_id": request_id, "session_id": request_id % 7, "phase": "measured", "warmup": False}
        rows.append({**base, "status": status, "output_tokens": 1, **stages})
    return SimpleNamespace(data=SimpleNamespace(requests=pd.DataFrame(rows)), summary={"interval_seed": 1})


def test_only_requests_that_both_completed_count() -> None:
    base = arm({1: 0.1, 2: 0.2, 3: 0.3, 9: 5.0})
    other = arm({1: 0.2, 2: 0.3, 3: 0.4, 8: 9.0})
    ttft, transfer = paired_differences(base, other)
    assert (ttft.count, transfer.count) == (3, 3)
    assert ttft.mean_ms == pytest.approx(100) and transfer.mean_ms == pytest.approx(100)


def test_what_both_share_cancels_and_a_steady_difference_is_resolved() -> None:
    spread = {i: float(i) for i in range(50)}
    _, transfer = paired_differences(arm(spread), arm({i: s + 0.05 for i, s in spread.items()}))
    assert transfer.resolved and transfer.interval is not None
    assert transfer.interval.low == pytest.approx(50) and transfer.interval.high == pytest.approx(50)
    mixed = {i: s + (0.05 if i % 2 else -0.05) for i, s in spread.items()}
    assert not paired_differences(arm(spread), arm(mixed))[1].resolved


def test_nothing_in_common_is_no_difference() -> None:
    assert paired_differences(arm({1: 0.1}), arm({2: 0.1})) == ()


def test_text_says_whether_it_is_resolved() -> None:
    found = PairedDifference("ttft_ms", 300, -95.2, Interval(-304, 112))
    assert found.text == "TTFT -95 ms [-304, +112]: not resolved"
    resolved = dataclasses.replace(found, interval=Interval(-139, -50))
    assert resolved.text.endswith("[-139, -50]: resolved in this draw")
