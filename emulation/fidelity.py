"""Was the emulator itself the bottleneck? Measured with every run; a run outside its envelope is INVALID.

Each check has a limit, a value of the scenario (`fidelity`) whose default was fixed before any comparison was looked
at; docs/fidelity.md gives their reasons.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from emulation.advice import advise
from emulation.checks import (
    ONE_STEP,
    Check,
    cpu_check,
    lag_checks,
    many,
    sampler_checks,
    telemetry_checks,
    upcall_checks,
    wait_checks,
)
from emulation.counter_check import CounterDifference
from emulation.losses import Losses
from emulation.machine import SAFE_SHARE
from emulation.ovs_counters import DatapathCounts
from emulation.pressure import Waits
from emulation.takeover import Restart
from scenario.fidelity_section import FidelitySection
from scenario.scale import Scale

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Measured:
    """What a run knows about itself; see `judge` for the meaning of each."""

    link_deviations: Sequence[float]
    links_total: int
    rounds_again: int
    lone_deviations: Sequence[float]
    lone_ideal_s: float
    losses: Losses
    resolution_frames: float
    budget_used: float
    maxmin_ratios: Sequence[float]
    transfers_done: int
    sampler: Mapping[str, float]
    sampler_period_ms: float
    frame_time_ms: float
    timer_lags_s: Sequence[float]
    report_lags_s: Sequence[float]
    cpu_share: float
    transfers_verified: int = 0
    complaints: Sequence[str] = ()
    fault_events: int = 0
    iperf_streams: int = 0
    controller_restarts: Sequence[Restart] = ()
    links_sampled: bool = False
    own_cpu_share: float = 0.0
    favoured: bool = False
    waits: Waits = field(default_factory=Waits)
    datapath: DatapathCounts | None = None
    counters: CounterDifference | None = None


def judge(m: Measured, limits: FidelitySection, scale: Scale) -> dict[str, object]:
    """The content of fidelity.json."""
    checks = [
        _link_rates(m, limits),
        _lone_transfer(m, limits),
        _losses(m),
        *upcall_checks(m.datapath, limits),
        _resolution(m, limits),
        _budget(m, limits),
        *_maxmin(m, limits),
        *lag_checks(m.timer_lags_s, m.report_lags_s, m.lone_ideal_s, limits),
        *sampler_checks(m.sampler, m.sampler_period_ms, m.frame_time_ms, limits),
        cpu_check(m.cpu_share, m.own_cpu_share, m.favoured, limits),
        *wait_checks(m.waits, m.frame_time_ms, limits),
        _verified(m),
        *_restarts(m.controller_restarts),
        *telemetry_checks(m.sampler, m.counters),
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        "valid": all(check.ok is not False for check in checks),
        "checks": [asdict(check) for check in checks],
        "limits_loosened": list(limits.loosened()),
        "advice": advise(checks, scale, m.resolution_frames, m.budget_used),
    }


def _resolution(m: Measured, limits: FidelitySection) -> Check:
    least = limits.resolution_frames_min
    return Check(
        "resolution_frames", m.resolution_frames, "frames", f">= {least} (good: 50)", m.resolution_frames >= least,
        "frames per queue pair of the median handoff",
    )  # fmt: skip


def _budget(m: Measured, limits: FidelitySection) -> Check:
    used = 100 * SAFE_SHARE * m.budget_used
    return Check(
        "packet_budget_used_pct", used, "%", f"<= {limits.budget_pct:g}", used <= limits.budget_pct,
        "all senders at line rate, of the switch-hops/s this machine forwards at saturation; a chosen scale aims at"
        f" {SAFE_SHARE:.0%}", m.budget_used,
    )  # fmt: skip


def _verified(m: Measured) -> Check:
    if m.complaints:
        more = f" ({len(m.complaints) - 1} more complaints)" if len(m.complaints) > 1 else ""
        text = f"{m.complaints[0]}{more}"
    else:
        text = "transfers of which every byte arrived once, with the content that was sent"
    return Check(
        "transfers_verified", m.transfers_verified, "transfers", f"all {m.transfers_done}",
        not m.complaints and m.transfers_verified == m.transfers_done, text,
    )  # fmt: skip


def _restarts(restarts: Sequence[Restart]) -> list[Check]:
    """Told only: forwarding does not need a controller, as long as nothing fails."""
    if not restarts:
        return []
    quiet = ", ".join(f"{restart.quiet_s:.1f}" for restart in restarts)
    sent = sum(restart.rules_sent for restart in restarts)
    return [
        Check(
            "controller_restarts", len(restarts), "restart" if len(restarts) == 1 else "restarts", "told", None,
            f"the controller ended while serving and another took over after {quiet} s, in which the switches forwarded"
            f" as before and no failure would have been repaired; {many(sent, 'rule')} had to be sent again",
        )
    ]  # fmt: skip


def _link_rates(m: Measured, limits: FidelitySection) -> Check:
    worst = 100 * max((abs(d) for d in m.link_deviations), default=math.nan)
    sampled = ", a sample that touches every switch (--thorough: all)" if m.links_sampled else ""
    return Check(
        "link_rate_worst_deviation_pct", worst, "%", f"<= {limits.link_rate_pct:g}", worst <= limits.link_rate_pct,
        f"measured against configured, iperf3, worst of {len(m.link_deviations)} of {m.links_total} directed"
        f" links{sampled}; {m.rounds_again} rounds measured again", worst / limits.link_rate_pct,
    )  # fmt: skip


def _lone_transfer(m: Measured, limits: FidelitySection) -> Check:
    middle = 100 * float(np.median(m.lone_deviations)) if len(m.lone_deviations) else math.nan
    return Check(
        "lone_transfer_deviation_pct", middle, "%", f"within {limits.lone_transfer_pct:g}",
        abs(middle) <= limits.lone_transfer_pct,
        f"a median handoff alone against its bytes with headers at line rate, median of {len(m.lone_deviations)}",
        middle / limits.lone_transfer_pct if middle > 0 else None,
    )  # fmt: skip


def _losses(m: Measured) -> Check:
    lost = m.losses
    explained = lost.queue_drops + lost.socket_drops
    unexplained = max(0, lost.retransmits - lost.duplicates - explained)
    twice = f"; {many(lost.duplicates, 'packet')} came twice, sent again in haste" if lost.duplicates else ""
    if m.fault_events:  # a cable that fails takes packets with it
        return Check(
            "packets_lost", float(explained + unexplained), "packets", f"0 by {lost.place}", lost.socket_drops == 0,
            f"{lost.queue_drops} dropped by full queues, {lost.socket_drops} by {lost.place}; senders sent"
            f" {many(unexplained, 'more packet')} again, as expected: {many(m.fault_events, 'fault event')}{twice}",
            ONE_STEP,
        )  # fmt: skip
    return Check(
        "packets_lost", float(explained + unexplained), "packets", f"0 unexplained, 0 by {lost.place}",
        unexplained == 0 and lost.socket_drops == 0,
        f"{lost.queue_drops} dropped by full queues, {lost.socket_drops} by {lost.place},"
        f" {unexplained} sent again without a drop{twice}",
        ONE_STEP,
    )  # fmt: skip


def _maxmin(m: Measured, limits: FidelitySection) -> list[Check]:
    ratios = m.maxmin_ratios
    low, high, tail = limits.maxmin_median_min, limits.maxmin_median_max, limits.maxmin_p95_max
    between = f"{low:g} to {high:g}"
    if m.fault_events:
        text = "not judged: the replay knows no failures, and this run had some"
        return [Check("maxmin_ratio_median", math.nan, "x", between, None, text)]
    if not len(ratios):
        return [Check("maxmin_ratio_median", math.nan, "x", between, None, "no transfer to compare")]
    middle, p95 = (float(np.percentile(ratios, q)) for q in (50, 95))
    judged = not m.iperf_streams
    beside = f"; not judged: {m.iperf_streams} iperf3 streams are not in the replay" if m.iperf_streams else ""
    return [
        Check(
            "maxmin_ratio_median", middle, "x", between, low <= middle <= high if judged else None,
            f"duration over that in the max-min replay, {len(ratios)} of {m.transfers_done} transfers: those of 10"
            f" frames a queue pair or more{beside}",
            middle if middle > 1 else None,  # so many times too slow: so many times less would have been carried
        ),
        Check(
            "maxmin_ratio_p95", p95, "x", f"<= {tail:g}", p95 <= tail if judged else None, "the same, 95th percentile",
            p95 / tail,
        ),
    ]  # fmt: skip
