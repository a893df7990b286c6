"""What a run left besides its figures: captures, and how many paths its connections took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.arms import ArmResult
from results.reader import RunFolder

#: Less than this part of the requests within the throughput window is said.
FEW_IN_WINDOW = 0.5


def _of_the_window(arm: ArmResult) -> list[str]:
    """Where arrivals are over before much is done, rates of the window say little."""
    summary = arm.summary
    done, inside = summary.get("completed", 0), summary.get("window_finished")
    if inside is None or not done or inside >= FEW_IN_WINDOW * done:
        return []
    return [
        f"{arm.label}: {inside} of {done} requests finished within the throughput window of {summary['duration']:.3g}"
        " model s (first to last measured arrival). Throughput, link load and backlog are counted in it and say little"
        " here; take more requests, or arrivals that last longer."
    ]


def source_notes(source: Mapping[str, Any]) -> list[str]:
    """What a replay could not take as it was: of `source` in meta.json, or of a source's `summary` before a run."""
    found = []
    if source.get("cut_prompts"):
        found.append(f"{source['cut_prompts']} prompts were longer than the model's context, and were cut")
    if source.get("bad_rows_skipped"):
        found.append(
            f"{source['bad_rows_skipped']} rows of the trace did not parse and were left out; the first:"
            f" {source.get('first_bad_row')}"
        )
    return found


def run_notes(arm: ArmResult) -> tuple[str, ...]:
    """Lines on the run; none where there is nothing to say."""
    run = RunFolder(arm.arm.path)
    found = []
    for event in run.events() if run.has("events.jsonl") else ():
        if event["event"] == "capture":
            full = ", FULL: it stopped before the end" if event["full"] else ""
            found.append(
                f"{arm.label}: capture {run.path / 'pcap' / event['port']}.pcap, {event['packets']:,} packets{full}"
            )
    found += _of_the_window(arm)
    if arm.simulated:  # of an emulated run the timeline of faults says it
        found += [
            f"{arm.label}: NOT REACHED, serving had ended at {missed['served_s']:.4g} s: the fault event at"
            f" {missed['at_s']:g} s"
            for missed in run.meta().get("faults_not_reached") or ()
        ]
    found += [f"{arm.label}: {note}" for note in source_notes(run.meta().get("source") or {})]
    if arm.scenario.policy in ("ecmp_ovs", "spray"):
        sent = run.transfers()
        columns = ("src_gpu", "src_port", "dst_gpu", "dst_port")
        ends_of = zip(*(sent[name] for name in columns), strict=True)
        ways = {(*ends, tuple(path)) for ends, path in zip(ends_of, sent["path"], strict=True) if len(path)}
        ends = {way[:4] for way in ways}
        if ends:
            found.append(
                f"{arm.label}: {arm.scenario.policy}: {len(ways)} distinct paths used between {len(ends)} pairs of GPU"
                f" ports ({len(ways) / len(ends):.1f} a pair)"
            )
    return tuple(found)
