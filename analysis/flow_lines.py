"""What a comparison without serving says in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.arms import ArmResult
from analysis.failures import causes
from analysis.formats import NONE, change, number


def flow_headline(runs: Sequence[ArmResult]) -> tuple[str, ...]:
    """The result, one sentence an arm."""
    lines = []
    for arm in runs:
        summary = arm.summary
        if not summary["completed"]:
            timeout_s = getattr(arm.scenario.workload, "timeout_s", arm.scenario.serving.timeout_s)
            lines.append(
                f"{arm.label}: no message ended: {causes(summary)}. Look at: the time-out of {timeout_s:g} s, faults,"
                f" and {arm.arm.path / 'transfers.parquet'}{' — INVALID RUN' if arm.valid is False else ''}."
            )
            continue
        text = f"{arm.label}: {', '.join(summary['operations'])}: makespan {number(summary['makespan_s'] * 1e3)} ms"
        text += f" over {summary['completed']:,} messages, bus bandwidth"
        text += f" {number(summary['mean_busbw_gbyte_per_s'])} GB/s"
        text += f" ({number(summary['mean_busbw_gbps'])} Gb/s), flow completion P50 {number(summary['p50_fct_ms'])} ms,"
        text += f" P99 {number(summary['p99_fct_ms'])} ms (n = {summary['flows']:,})"
        lines.append(f"{text}{' — INVALID RUN' if arm.valid is False else ''}.")
    lines.append("Brackets: 95 % over the messages of this one run. One seed is one draw.")
    return tuple(lines)


def flow_bound_lines(bound: ArmResult, runs: Sequence[ArmResult]) -> tuple[str, ...]:
    """The same messages on an infinite core with fair NICs, and how far above it each arm is."""
    best_s = bound.summary["makespan_s"]
    lines = [
        f"{bound.label}: makespan {number(best_s * 1e3)} ms, bus bandwidth"
        f" {number(bound.summary['mean_busbw_gbyte_per_s'])} GB/s. The core is infinite and NICs share fairly."
    ]
    for arm in runs:
        above = change(arm.summary["makespan_s"], best_s) or NONE
        lines.append(f"{arm.label} against the bound: makespan {above}.")
    return tuple(lines)
