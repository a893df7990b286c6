"""Was the emulator itself the bottleneck? Measured with every run; a run outside its envelope is INVALID.

Each check has a limit that was fixed before any comparison was looked at; docs/fidelity.md gives their reasons.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from emulation.counter_check import CounterDifference
from emulation.linkcheck import TOLERANCE
from emulation.losses import Losses
from emulation.takeover import Restart

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Check:
    """One measured value against its limit. `ok` None: told, not judged."""

    name: str
    value: float
    unit: str
    limit: str
    ok: bool | None
    text: str


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
    counters: CounterDifference | None = None


def judge(m: Measured) -> dict[str, object]:
    """The content of fidelity.json."""
    checks = [
        _link_rates(m),
        _lone_transfer(m),
        _losses(m),
        Check(
            "resolution_frames", m.resolution_frames, "frames", ">= 20 (good: 50)", m.resolution_frames >= 20,
            "frames per queue pair of the median handoff",
        ),
        Check(
            "packet_budget_used_pct", 100 * m.budget_used, "%", "<= 100", m.budget_used <= 1,
            "all senders at line rate, of the switch-hops/s this machine may forward",
        ),
        *_maxmin(m),
        *_lags(m),
        Check(
            "cpu_pct", 100 * m.cpu_share, "%", "<= 95", m.cpu_share <= 0.95,
            "of all cores while serving",
        ),
        _verified(m),
        *_restarts(m.controller_restarts),
        *_telemetry(m),
    ]  # fmt: skip
    return {
        "schema_version": SCHEMA_VERSION,
        "valid": all(check.ok is not False for check in checks),
        "checks": [asdict(check) for check in checks],
    }


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
            f" as before and no failure would have been repaired; {_many(sent, 'rule')} had to be sent again",
        )
    ]  # fmt: skip


def _telemetry(m: Measured) -> list[Check]:
    """Told only: where the sampler was blind, and whether two counts of the same bytes agree."""
    checks = []
    if "gaps" in m.sampler:
        checks.append(Check(
            "sampler_gap_max_ms", m.sampler["gap_max_ms"], "wall ms", "told", None,
            f"longest of {_many(int(m.sampler['gaps']), 'gap')} of more than 3 periods without a sample of a node,"
            f" {m.sampler['gaps_node_s']:.3g} s summed over {int(m.sampler['nodes'])} nodes (gaps.parquet)",
        ))  # fmt: skip
    if (found := m.counters) is not None:
        share = "" if math.isnan(found.end_share) else f"; worst share of all sent {100 * found.end_share:.2g} %"
        checks.append(Check(
            "openflow_bytes_worst_difference_frames", found.frames, "frames", "told", None,
            f"OpenFlow's count of sent bytes against the queues', worst of {found.times} common times of {found.ports}"
            f" switch ports, at {found.node}:{found.port}{share}",
        ))  # fmt: skip
    return checks


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _link_rates(m: Measured) -> Check:
    worst = max((abs(d) for d in m.link_deviations), default=math.nan)
    return Check(
        "link_rate_worst_deviation_pct", 100 * worst, "%", "<= 3", worst <= TOLERANCE,
        f"measured against configured, iperf3, worst of {len(m.link_deviations)} of {m.links_total} directed links;"
        f" {m.rounds_again} rounds measured again",
    )  # fmt: skip


def _lone_transfer(m: Measured) -> Check:
    middle = float(np.median(m.lone_deviations)) if len(m.lone_deviations) else math.nan
    return Check(
        "lone_transfer_deviation_pct", 100 * middle, "%", "within 5", abs(middle) <= 0.05,
        f"a median handoff alone against its bytes with headers at line rate, median of {len(m.lone_deviations)}",
    )  # fmt: skip


def _losses(m: Measured) -> Check:
    lost = m.losses
    explained = lost.queue_drops + lost.socket_drops
    unexplained = max(0, lost.retransmits - lost.duplicates - explained)
    twice = f"; {_many(lost.duplicates, 'packet')} came twice, sent again in haste" if lost.duplicates else ""
    if m.fault_events:  # a cable that fails takes packets with it
        return Check(
            "packets_lost", float(explained + unexplained), "packets", f"0 by {lost.place}", lost.socket_drops == 0,
            f"{lost.queue_drops} dropped by full queues, {lost.socket_drops} by {lost.place}; senders sent"
            f" {_many(unexplained, 'more packet')} again, as expected: {_many(m.fault_events, 'fault event')}{twice}",
        )  # fmt: skip
    return Check(
        "packets_lost", float(explained + unexplained), "packets", f"0 unexplained, 0 by {lost.place}",
        unexplained == 0 and lost.socket_drops == 0,
        f"{lost.queue_drops} dropped by full queues, {lost.socket_drops} by {lost.place},"
        f" {unexplained} sent again without a drop{twice}",
    )  # fmt: skip


def _maxmin(m: Measured) -> list[Check]:
    ratios = m.maxmin_ratios
    if m.fault_events:
        text = "not judged: the replay knows no failures, and this run had some"
        return [Check("maxmin_ratio_median", math.nan, "x", "0.95 to 1.25", None, text)]
    if not len(ratios):
        return [Check("maxmin_ratio_median", math.nan, "x", "0.95 to 1.25", None, "no transfer to compare")]
    middle, high = (float(np.percentile(ratios, q)) for q in (50, 95))
    judged = not m.iperf_streams
    beside = f"; not judged: {m.iperf_streams} iperf3 streams are not in the replay" if m.iperf_streams else ""
    return [
        Check(
            "maxmin_ratio_median", middle, "x", "0.95 to 1.25", 0.95 <= middle <= 1.25 if judged else None,
            f"duration over that in the max-min replay, {len(ratios)} of {m.transfers_done} transfers: those of 10"
            f" frames a queue pair or more{beside}",
        ),
        Check("maxmin_ratio_p95", high, "x", "<= 2", high <= 2.0 if judged else None, "the same, 95th percentile"),
    ]  # fmt: skip


def _lags(m: Measured) -> list[Check]:
    def p99_ms(values: Sequence[float]) -> float:
        return float(np.percentile(values, 99)) * 1e3 if len(values) else 0.0

    timers, reports = p99_ms(m.timer_lags_s), p99_ms(m.report_lags_s)
    worst_ms = max(timers, reports)
    limit_ms = max(10.0, 50 * m.lone_ideal_s)
    cpu = 100 * m.sampler.get("cpu_s", 0.0) / max(1e-9, m.sampler.get("wall_s", 1.0))
    return [
        Check(
            "engine_lag_p99_ms", worst_ms, "wall ms", f"<= {limit_ms:.1f}", worst_ms <= limit_ms,
            f"timers late by {timers:.1f}, reports of ended transfers by {reports:.1f};"
            " the limit is 5 % of a lone median handoff, or 10 ms",
        ),
        Check(
            "sampler_lag_p99_ms", m.sampler.get("lag_p99_ms", math.nan), "wall ms", "told", None,
            f"period {m.sampler_period_ms:.2f} ms, frame time {m.frame_time_ms:.2f} ms,"
            f" {int(m.sampler.get('skipped_ticks', 0))} of"
            f" {int(m.sampler.get('ticks', 0) + m.sampler.get('skipped_ticks', 0))} samples left out",
        ),
        Check("sampler_cpu_pct", cpu, "% of a core", "<= 15 wanted", None, "cost of the queue sampler"),
    ]  # fmt: skip
