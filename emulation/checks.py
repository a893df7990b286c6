"""A fidelity check, and those of the machine: did programs get the processor when they needed it?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from emulation.counter_check import CounterDifference
from emulation.ovs_counters import DatapathCounts
from emulation.pressure import Waits
from emulation.sampling_gaps import PERIODS, UNSEEN_PERIODS
from scenario.fidelity_section import FidelitySection

#: By how much less load is advised where a check failed of which nobody knows how far it is from its limit.
ONE_STEP = 1.4


@dataclass(frozen=True)
class Check:
    """One measured value against its limit. `ok` None: told, not judged.

    `strain`: how many times less load would pass, by what was measured; None where less load is no help.
    """

    name: str
    value: float
    unit: str
    limit: str
    ok: bool | None
    text: str
    strain: float | None = None


def many(count: int, noun: str) -> str:
    """1 packet, 2 packets."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def cpu_check(busy_share: float, own_share: float, favoured: bool, limits: FidelitySection) -> Check:
    """CPU of all cores while serving. Judged where other programs can hold the run up: everybody's. Where the run has
    priority its own is told: switches then take more frames a turn, and how long they wait is judged instead."""
    if favoured:
        text = f"of all cores while serving, by the run and by interrupts; everybody together {busy_share:.0%}"
        return Check("cpu_pct", 100 * own_share, "%", "told", None, text)
    value = 100 * busy_share
    return Check(
        "cpu_pct", value, "%", f"<= {limits.cpu_pct:g}", value <= limits.cpu_pct,
        "of all cores while serving, by everybody: the machine refused this run its priority", ONE_STEP,
    )  # fmt: skip


def lag_checks(
    timers_s: Sequence[float], reports_s: Sequence[float], lone_ideal_s: float, limits: FidelitySection
) -> list[Check]:
    """The engine's lag."""

    def p99_ms(values: Sequence[float]) -> float:
        return float(np.percentile(values, 99)) * 1e3 if len(values) else 0.0

    timers, reports = p99_ms(timers_s), p99_ms(reports_s)
    worst_ms = max(timers, reports)
    limit_ms = max(limits.engine_lag_wall_ms, 10 * limits.engine_lag_lone_pct * lone_ideal_s)
    return [
        Check(
            "engine_lag_p99_ms", worst_ms, "wall ms", f"<= {limit_ms:.1f}", worst_ms <= limit_ms,
            f"timers late by {timers:.1f}, reports of ended transfers by {reports:.1f}; the limit is"
            f" {limits.engine_lag_lone_pct:g} % of a lone median handoff, or {limits.engine_lag_wall_ms:g} ms",
            ONE_STEP,
        )
    ]  # fmt: skip


def sampler_checks(
    sampler: Mapping[str, float], period_ms: float, frame_time_ms: float, limits: FidelitySection
) -> list[Check]:
    """The queue sampler: its lag, its cost, and for how long it did not look."""
    wall_s = max(1e-9, sampler.get("wall_s", 1.0))
    unseen = 100 * sampler.get("unseen_s", 0.0) / max(1e-9, sampler.get("serving_s", 1.0))
    left_out, taken = int(sampler.get("skipped_ticks", 0)), int(sampler.get("ticks", 0))
    return [
        Check(
            "sampler_lag_p99_ms", sampler.get("lag_p99_ms", math.nan), "wall ms", "told", None,
            f"period {period_ms:.2f} ms, frame time {frame_time_ms:.2f} ms, {left_out} of {taken + left_out} samples"
            " left out",
        ),
        Check(
            "sampler_gap_pct", unseen, "% of serving", f"<= {limits.sampler_gap_pct:g}",
            unseen <= limits.sampler_gap_pct,
            f"time of gaps beyond {UNSEEN_PERIODS} sample periods ({UNSEEN_PERIODS * period_ms:.0f} ms) without a look"
            " at a switch's queues, of the switch with most of it: peaks in it were not seen", ONE_STEP,
        ),
        Check(
            "sampler_cpu_pct", 100 * sampler.get("cpu_s", 0.0) / wall_s, "% of a core", "<= 15 wanted", None,
            "cost of the queue sampler",
        ),
    ]  # fmt: skip


def wait_checks(waits: Waits, frame_time_ms: float, limits: FidelitySection) -> list[Check]:
    """How long switches, and anybody, waited for a core. What the kernel keeps no account of is left out."""
    found = []
    if not math.isnan(waits.mean_wait_s):
        frames = 1e3 * waits.mean_wait_s / frame_time_ms
        found.append(
            Check(
                "switch_wait_frames", frames, "frame times", f"<= {limits.switch_wait_frames_max:g}",
                frames <= limits.switch_wait_frames_max,
                f"mean wait of a switch for a core, {1e3 * waits.mean_wait_s:.2f} ms a turn and"
                f" {waits.waited_share:.0%} of serving in all, of the switch with the longest",
                frames / limits.switch_wait_frames_max,
            )
        )  # fmt: skip
    if not math.isnan(waits.some_share):
        found.append(
            Check(
                "cpu_pressure_pct", 100 * waits.some_share, "% of serving", "told", None,
                "time in which anything on this machine waited for a core",
            )
        )  # fmt: skip
    return found


def upcall_checks(counts: DatapathCounts | None, limits: FidelitySection) -> list[Check]:
    """What Open vSwitch dropped for reasons of its own; none where it is not the switch."""
    if counts is None:
        return []
    gone = counts.lost + counts.dropped
    return [
        Check(
            "upcalls_lost", float(gone), "packets", f"<= {limits.upcalls_lost_max}", gone <= limits.upcalls_lost_max,
            f"{many(counts.lost, 'packet')} lost in upcalls, {counts.dropped} dropped by the datapath;"
            f" {counts.missed} needed an upcall", ONE_STEP,
        )
    ]  # fmt: skip


def telemetry_checks(sampler: Mapping[str, float], counters: CounterDifference | None) -> list[Check]:
    """Told only: where the sampler was blind, and whether two counts of the same bytes agree."""
    checks = []
    if "gaps" in sampler:
        checks.append(Check(
            "sampler_gap_max_ms", sampler["gap_max_ms"], "wall ms", "told", None,
            f"longest of {many(int(sampler['gaps']), 'gap')} of more than {PERIODS} periods without a sample of a node,"
            f" {sampler['gaps_node_s']:.3g} s summed over {int(sampler['nodes'])} nodes (gaps.parquet)",
        ))  # fmt: skip
    if (found := counters) is not None:
        share = "" if math.isnan(found.end_share) else f"; worst share of all sent {100 * found.end_share:.2g} %"
        checks.append(Check(
            "openflow_bytes_worst_difference_frames", found.frames, "frames", "told", None,
            f"OpenFlow's count of sent bytes against the queues', worst of {found.times} common times of {found.ports}"
            f" switch ports, at {found.node}:{found.port}{share}",
        ))  # fmt: skip
    return checks
