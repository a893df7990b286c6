"""The result rows of a comparison: which figure, in which unit, and how a cell is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from analysis.arms import ArmResult
from analysis.failures import CAUSES
from analysis.formats import NONE, change, data_size, number, percent
from analysis.ports import ROLES, tier_rank
from analysis.stats import P99_MIN_COUNT, Interval

Style = Literal["number", "percent", "count", "bytes"]


@dataclass(frozen=True)
class ResultRow:
    """One figure. `values` and `intervals` follow the arms; None where an arm has no such figure."""

    key: str
    label: str
    unit: str
    group: str
    values: tuple[float | None, ...]
    intervals: tuple[Interval | None, ...]
    style: Style = "number"
    compared: bool = False
    indicative: bool = False

    def text(self, index: int) -> str:
        """The value of one arm."""
        value = self.values[index]
        if value is None:
            return NONE
        if self.style == "percent":
            return percent(value)
        if self.style == "bytes":
            return data_size(value)
        return f"{value:,.0f}" if self.style == "count" else number(value)

    def interval_text(self, index: int) -> str:
        """The interval of one arm, or nothing."""
        found = self.intervals[index]
        return "" if found is None else f"{number(found.low)} – {number(found.high)}"

    def change_text(self, index: int) -> str:
        """Difference to the first arm in percent, for figures where that makes sense."""
        return change(self.values[index], self.values[0]) if self.compared and index else ""


def _value(summary: Any, key: str) -> float | None:
    found: Any = summary
    for part in key.split("/"):
        found = found.get(part) if hasattr(found, "get") else None
    if found is None:
        return None
    value = float(found)
    return None if value != value else value


def result_rows(arms: Sequence[ArmResult]) -> tuple[ResultRow, ...]:
    """All rows; the bound has none of the fabric."""
    rows: list[ResultRow] = []

    def row(group: str, key: str, label: str, unit: str, style: Style = "number", compared: bool = False) -> None:
        values, intervals = [], []
        for arm in arms:
            hidden = arm.is_bound and group == "Fabric"
            values.append(None if hidden else _value(arm.summary, key))
            bounds = arm.summary["intervals"].get(key)
            intervals.append(Interval(*bounds) if bounds and not hidden else None)
        if all(value is None for value in values):
            return
        few = min(int(arm.summary["completed"]) for arm in arms) < P99_MIN_COUNT
        indicative = few and key.startswith("p99_")
        rows.append(ResultRow(key, label, unit, group, tuple(values), tuple(intervals), style, compared, indicative))

    row("Requests", "completed", "Completed (n)", "", "count")
    row("Requests", "failed", "Failed, for whatever reason", "", "count")
    for key, text in CAUSES.items():
        if any(arm.summary.get(key) for arm in arms):
            row("Requests", key, f"of them {text}", "", "count")
    for name, label in (("mean", "mean"), ("p50", "P50"), ("p90", "P90"), ("p99", "P99")):
        row("TTFT", f"{name}_ttft_ms", f"TTFT {label}", "ms", compared=True)
    row("Messages", "makespan_s", "Makespan", "s", compared=True)
    for name, label in (("mean", "mean"), ("p50", "P50"), ("p99", "P99")):
        row("Messages", f"{name}_message_ms", f"Duration of a message {label}", "ms", compared=True)
    row("Messages", "mean_algbw_gbyte_per_s", "Algorithm bandwidth mean", "GB/s", compared=True)
    row("Messages", "mean_busbw_gbyte_per_s", "Bus bandwidth mean", "GB/s", compared=True)
    row("Messages", "mean_busbw_gbps", "Bus bandwidth mean", "Gb/s")
    row("Flows", "flows", "Flows on the fabric (n)", "", "count")
    for name, label in (("mean", "mean"), ("p50", "P50"), ("p90", "P90"), ("p99", "P99")):
        row("Flows", f"{name}_fct_ms", f"Flow completion time {label}", "ms", compared=True)
    row("Flows", "p50_fct_slowdown", "Slowdown against alone on the fabric P50", "×")
    row("Flows", "p99_fct_slowdown", "Slowdown against alone on the fabric P99", "×")
    row("TTFT", "slo_attainment", "Inside the TTFT target", "", "percent")
    row("Throughput", "request_throughput", "Requests", "1/s", compared=True)
    row("Throughput", "output_throughput", "Output tokens", "1/s", compared=True)
    row("Throughput", "input_throughput", "Prompt tokens", "1/s", compared=True)
    row("Throughput", "mean_tpot_ms", "TPOT mean", "ms")
    for kind, label in (("exposed", "exposed in TTFT"), ("total", "total")):
        row("KV transfer", f"mean_kv_transfer_{kind}_ms", f"KV transfer {label} mean", "ms", compared=True)
        row("KV transfer", f"p50_kv_transfer_{kind}_ms", f"KV transfer {label} P50", "ms", compared=True)
        row("KV transfer", f"p99_kv_transfer_{kind}_ms", f"KV transfer {label} P99", "ms", compared=True)
    for name, label in (("mean", "mean"), ("p50", "P50"), ("p95", "P95"), ("p99", "P99")):
        row("KV transfer", f"{name}_kv_transfer_share_of_ttft", f"KV transfer's share of TTFT {label}", "", "percent")
    row("KV transfer", "p50_kv_transfer_slowdown", "Slowdown against alone on the fabric P50", "×")
    row("KV transfer", "p99_kv_transfer_slowdown", "Slowdown against alone on the fabric P99", "×")
    for state, label in (("waiting", "waiting for KV space"), ("receiving", "receiving KV"), ("decoding", "decoding")):
        row("Decode", f"decode_queue/{state}/mean", f"Requests {label}, an instance, mean", "")
    row("Decode", "decode_queue/waiting/p95", "Requests waiting for KV space, an instance, P95", "")
    row("Decode", "decode_queue/waiting/max", "Requests waiting for KV space, an instance, most", "", "count")
    row("Fabric", "fabric_backlog_p95_frames", "Excess backlog, P95 over port-seconds", "frames")
    row("Fabric", "fabric_backlog_p99_frames", "Excess backlog, P99 over port-seconds", "frames")
    row("Fabric", "fabric_backlog_peak_frames", "Excess backlog, peak at one port", "frames")
    row("Fabric", "fabric_backlog_peak_bytes", "Excess backlog, peak at one port", "model bytes", "bytes")
    row("Fabric", "fabric_backlog_total_mean_frames", "Excess backlog, time mean, all switch ports", "frames")
    row("Fabric", "fabric_backlog_mean_frames", "Excess backlog, time mean, a switch port", "frames")
    row("Fabric", "fabric_time_over_threshold_port_s", "Time over the threshold, summed over ports", "port-s")
    row("Fabric", "fabric_would_pause_port_s", "Would-pause time (a model), summed over ports", "port-s")
    row("Fabric", "fabric_would_pauses", "Would-be pauses (a model)", "", "count")
    row("Fabric", "hot_leaf_hit_rate", "Handoffs that met a hot leaf", "", "percent")
    row("Fabric", "hot_leaf_hit_rate_even", "The same, target drawn evenly", "", "percent")
    row("Fabric", "hot_leaf_amplification", "Hot leaves met, against the even draw", "×")
    row("Fabric", "hot_port_hit_rate", "Handoffs that met a hot port", "", "percent")
    row("Fabric", "hot_port_hit_rate_even", "The same, target drawn evenly", "", "percent")
    row("Fabric", "hot_port_amplification", "Hot ports met, against the even draw", "×")
    for role in ROLES:
        row("Fabric", f"fabric_roles/{role}/load_busiest", f"Load {role}, busiest", "", "percent")
        row("Fabric", f"fabric_roles/{role}/load_mean", f"Load {role}, mean", "", "percent")
    row("Fabric", "fabric_drops", "Packets dropped at egress", "", "count")
    row("Fabric", "ecn_marked_packets", "Packets marked by switches (ECN)", "", "count")
    row("Fabric", "ecn_marked_share", "Packets marked, of those sent", "", "percent")
    for tier in sorted({str(t) for arm in arms for t in arm.summary.get("ecn_tiers", ())}, key=tier_rank):
        row("Fabric", f"ecn_tiers/{tier}/share", f"Packets marked {tier}, of those sent", "", "percent")
    row("Fabric", "ecn_delivered_ce", "Segments acknowledged as marked (TCP's analogue of CNPs)", "", "count")
    return tuple(rows)
