"""Differences between two arms request by request: the same requests ran on both, so what they share cancels.

Interval: percentile bootstrap over sessions of the mean difference (`analysis.stats`). It says how far *this draw* of
workload and ECMP mapping resolves a difference; another seed is another draw.
"""

from __future__ import annotations

from dataclasses import dataclass

from analysis import requests as rq
from analysis.arms import ArmResult
from analysis.stats import Interval, bootstrap

#: Column name -> what it is called.
METRICS = {"ttft_ms": "TTFT", "kv_transfer_exposed_ms": "exposed KV transfer"}


@dataclass(frozen=True)
class PairedDifference:
    """Mean of (arm - base) in model ms over `count` requests that both completed."""

    metric: str
    count: int
    mean_ms: float
    interval: Interval | None

    @property
    def resolved(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.interval is not None and (self.interval.low > 0 or self.interval.high < 0)

    @property
    def text(self) -> str:
        """One clause for a headline."""
        if self.interval is None:
            return f"{METRICS[self.metric]} {self.mean_ms:+,.0f} ms"
        verdict = "resolved in this draw" if self.resolved else "not resolved"
        span = f"[{self.interval.low:+,.0f}, {self.interval.high:+,.0f}]"
        return f"{METRICS[self.metric]} {self.mean_ms:+,.0f} ms {span}: {verdict}"


def paired_differences(base: ArmResult, arm: ArmResult) -> tuple[PairedDifference, ...]:
    """Differences of the means of METRICS; empty when the arms have no completed request in common."""
    frames = []
    for result in (base, arm):
        done = rq.completed(result.data.requests)
        frame = done[["request_id", "session_id"]].copy()
        frame["ttft_ms"] = rq.ttft_ms(done)
        frame["kv_transfer_exposed_ms"] = rq.stage_seconds(done)["kv_transfer"] * 1e3
        frames.append(frame)
    both = frames[0].merge(frames[1], on="request_id", suffixes=("", "_arm"))
    if both.empty:
        return ()
    found = []
    for metric in METRICS:
        difference = both[f"{metric}_arm"] - both[metric]
        interval = bootstrap(difference, both["session_id"], int(base.summary["interval_seed"])).get("mean")
        found.append(PairedDifference(metric, len(both), float(difference.mean()), interval))
    return tuple(found)
