"""The diagnosis of each arm of a comparison in a few lines: causes, where handoffs lost time, congestion classes."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.arms import ArmResult
from analysis.congestion import KINDS
from analysis.diagnosis import Diagnosis, diagnose
from analysis.formats import number
from results.reader import RunFolder
from scenario.errors import InputError


def diagnoses(arms: Sequence[ArmResult]) -> tuple[tuple[str, Diagnosis], ...]:
    """Label and diagnosis of every run on a fabric that served something."""
    found = []
    for arm in arms:
        if arm.is_bound or arm.fabric is None or "makespan_s" in arm.summary:
            continue
        try:
            found.append((arm.label, diagnose(RunFolder(arm.arm.path))))
        except InputError:  # nothing was served to the end, or the folder is of an older form: there is no more to say
            continue
    return tuple(found)


def diagnosis_lines(label: str, found: Diagnosis) -> tuple[str, str, str]:
    """What was named; the mean exposed handoff in parts that sum to it; congested intervals by class."""
    parts = found.congestion.totals()["mean_kv_transfer_parts_ms"]
    words = {"isolated": "alone on the fabric", "sender": "sender's own NIC", "incast": "incast",
             "avoidable": "avoidable", "transport": "transport"}  # fmt: skip
    split = ", ".join(f"{words[name]} {number(parts[name])}" for name in words)
    intervals = found.congestion.intervals
    count = ", ".join(
        f"{sum(item.kind == kind for item in intervals)} {kind}"
        f" ({number(sum(item.end_s - item.start_s for item in intervals if item.kind == kind))} port-seconds)"
        for kind in KINDS
    )
    named = ", ".join(cause.name for cause in found.causes) or "nothing"
    how = "measured" if found.congestion.measured else "from the replay"
    return (
        f"{label}: named {named}",
        f"mean exposed handoff {number(sum(parts.values()))} ms: {split}",
        f"congested intervals, {how}: {count}",
    )
