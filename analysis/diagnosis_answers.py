"""The five questions of a diagnosis and their answers in words and numbers, for the terminal and the page."""

from __future__ import annotations

import math
from dataclasses import dataclass

from analysis.congestion import KINDS, Interval
from analysis.diagnosis import Diagnosis
from analysis.formats import number, percent
from analysis.what_if import GAIN, WhatIf

#: Parts of TTFT in words.
PART_TEXT = {
    "gateway": "gateway",
    "prefill_wait": "waits for prefill",
    "prefill": "prefill",
    "decode_wait": "waits for decode",
    "isolated": "handoff, alone on the fabric",
    "sender": "lost at the sender's own NIC",
    "incast": "lost to incast",
    "avoidable": "lost to avoidable congestion",
    "transport": "lost in transport",
    "first_step": "first decode step",
}
_SHOWN = 3


@dataclass(frozen=True)
class Answer:
    """A question, its short answer, and lines of evidence."""

    question: str
    answer: str
    lines: tuple[str, ...]


def headline(found: Diagnosis) -> str:
    """One line."""
    if not found.causes:
        return "Nothing stands out: compute and the handoff alone set the time to first token."
    return "Named: " + ", ".join(cause.name for cause in found.causes) + "."


def answers(found: Diagnosis, what_if: WhatIf | None) -> list[Answer]:
    """In the order in which a network engineer asks."""
    return [_tail(found), _spots(found), _kinds(found), _scheduler(found), _nic(what_if)]


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if math.isfinite(value) else "unknown"


def _tail(found: Diagnosis) -> Answer:
    largest = max(found.slowest_ms, key=lambda name: found.slowest_ms[name])
    fabric = found.fabric_part
    share = sum(found.slowest_ms[name] for name in ("isolated", "sender", "incast", "avoidable", "transport"))
    yes = fabric >= 0.15
    text = "Yes, in part" if yes else "No"
    return Answer(
        "Does the tail of TTFT come from the KV handoff?",
        f"{text}: of the slowest {found.slowest} requests' {_ms(found.slowest_ttft_ms)} the handoff takes {_ms(share)},"
        f" {percent(fabric)} of TTFT more than it would alone; the largest part is"
        f" {PART_TEXT[largest]} ({_ms(found.slowest_ms[largest])})",
        tuple(
            f"{PART_TEXT[name]}: {_ms(value)} ({_ms(found.all_ms[name])} in the mean of all)"
            for name, value in found.slowest_ms.items()
            if abs(value) >= 0.005 * found.slowest_ttft_ms
        ),
    )


def _spots(found: Diagnosis) -> Answer:
    groups = (
        ("senders' NIC ports", found.loads.senders),
        ("links between switches", found.loads.core),
        ("receivers' NIC ports", found.loads.receivers),
    )
    short = next((cause for cause in found.causes if cause.name == "bandwidth short"), None)
    hot = [item for item in found.congestion.intervals if item.peak_frames == item.peak_frames or item.ttft_lost_ms > 0]
    if short:
        answer = f"Short overall: {short.evidence}"
    elif hot:
        ports = {item.port for item in hot}
        answer = f"Enough on average; local hot spots at {len(ports)} of the switches' ports, for a while each"
    else:
        answer = "Enough, and no port of a switch was congested"
    return Answer(
        "Is bandwidth short overall, or are there local hot spots?",
        answer,
        tuple(
            f"{name}: {percent(group.mean)} loaded on average, the busiest ({group.busiest_port}) "
            f"{percent(group.busiest)}, {number(group.imbalance, 2)} times the mean"
            for name, group in groups
            if group.ports
        ),
    )


def _kinds(found: Diagnosis) -> Answer:
    lost = {name: found.all_ms[name] for name in ("sender", "incast", "avoidable")}
    total = sum(lost.values())
    intervals = found.congestion.intervals
    count = {kind: sum(item.kind == kind for item in intervals) for kind in KINDS}
    if total < 0.01 * sum(found.all_ms.values()):
        answer = "Neither: handoffs lose nothing worth naming to each other"
    else:
        words = {"sender": "senders' own NICs", "incast": "destinations (incast)", "avoidable": "mapping (avoidable)"}
        order = sorted(lost, key=lambda name: -lost[name])
        answer = "; ".join(f"{words[name]} {_ms(lost[name])}" for name in order) + " of each request's TTFT"
    worst = sorted(intervals, key=lambda item: -item.ttft_lost_ms)[:_SHOWN]
    how = "" if found.congestion.measured else f" (from the replay: {found.congestion.unmeasured})"
    lines = [f"congested intervals{how}: {', '.join(f'{count[kind]} {kind}' for kind in KINDS)}"]
    return Answer(
        "Is it the destination, or the mapping of flows to links?",
        answer,
        tuple(lines + [interval_text(item) for item in worst if item.ttft_lost_ms > 0]),
    )


def interval_text(item: Interval) -> str:
    """One congested interval in a line."""
    peak = f", up to {item.peak_frames:,.0f} frames" if item.peak_frames == item.peak_frames else ""
    return (
        f"{item.port} ({item.tier}), {item.start_s:,.2f} to {item.end_s:,.2f} s{peak}: {item.kind};"
        f" {len(item.transfers)} transfers to {len(item.final_ports)} NIC port{'s' * (len(item.final_ports) != 1)},"
        f" {_ms(item.ttft_lost_ms)} of TTFT in all"
    )


def _scheduler(found: Diagnosis) -> Answer:
    skew = found.skew
    if not skew.handoffs:
        return Answer("Does the scheduler amplify it?", "No handoff crossed the fabric", ())
    if skew.hot:
        answer = "Yes: it piles handoffs up while other targets are free"
    elif skew.piled_share < 0.75 * skew.piled_even:
        answer = "No: it avoids targets that are receiving"
    else:
        answer = "No: it spreads handoffs as evenly as a fair draw would"
    lines = [skew.sentence()]
    for what, crossed in (("leaf", "cross a leaf"), ("port", "leave a switch by a port")):
        rate, even = (found.hot_leaf.get(f"hot_{what}_hit_rate{name}") for name in ("", "_even"))
        if rate is not None and even is not None:
            lines.append(
                f"{percent(rate)} of handoffs {crossed} that is over the threshold as they start; drawn evenly among"
                f" the targets it could choose, {percent(even)} would"
            )
    return Answer("Does the scheduler amplify it?", answer, tuple(lines))


def _nic(what_if: WhatIf | None) -> Answer:
    question = "Is a faster NIC enough?"
    if what_if is None:
        return Answer(question, "Not asked (--no-what-if), or the scenario cannot be simulated", ())
    rows = (("half the rate", what_if.half), ("as it is", what_if.same), ("double the rate", what_if.double),
            ("infinite core, the same NICs", what_if.core))  # fmt: skip
    lines = tuple(
        f"simulated, {name}: "
        + (f"mean {_ms(mean)}, P95 {_ms(p95)}" if math.isfinite(mean) else "no request got its first token")
        for name, (mean, p95) in rows
    )
    if not (math.isfinite(what_if.bandwidth_gain) and math.isfinite(what_if.mapping_gain)):
        return Answer(question, "Unknown: in a simulated repeat no request got its first token", lines)
    words = {
        "bandwidth": "Yes: bandwidth is what is short, and the mapping is not",
        "mapping": "No: the mapping is what costs, and double the rate would hardly help",
        "both": "It would help, and so would a fabric without links in the way",
        "neither": "No: neither a faster NIC nor another fabric would change TTFT much",
    }
    return Answer(
        question,
        f"{words[what_if.answer]} (mean TTFT {percent(what_if.bandwidth_gain)} less at double the rate of all ports,"
        f" {percent(what_if.mapping_gain)} less on an infinite core; below {percent(GAIN)} counts as none)",
        lines,
    )
