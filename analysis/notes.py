"""What a run left besides its figures: captures, and how many paths its connections took."""

from __future__ import annotations

from analysis.arms import ArmResult
from results.reader import RunFolder


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
