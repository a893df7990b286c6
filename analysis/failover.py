"""What a failure did to a run: its timeline, and the handoffs that were on their way. From the run folder alone.

Repair times are in wall milliseconds only: neither TCP's timers nor rule messages scale with the model. A handoff's
stall is what it took beyond `isolated_s`, the time it would have taken alone, in wall milliseconds too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from results.reader import RunFolder
from scenario.errors import InputError


@dataclass(frozen=True)
class Moment:
    """One line of the timeline. `wall_ms` counts from the first fault, `model_s` from the start of serving."""

    wall_ms: float
    model_s: float
    text: str


@dataclass(frozen=True)
class Failover:
    """`timeline` in order; repairs as ms from the report of the failure to the last barrier.

    `in_flight` handoffs were on their way when a fault began, `lost` of them never ended; `unfinished` counts those
    that the end of the run cut off too.
    """

    timeline: tuple[Moment, ...]
    repair_ms: tuple[float, ...]
    handoffs: int
    in_flight: int
    lost: int
    unfinished: int
    longest_stall_wall_ms: float
    median_stall_wall_ms: float
    lost_packets: str


def failover(folder: Path) -> Failover:
    """Read a run that had faults. Raises InputError for a folder that is not a run or had no faults."""
    run = RunFolder(folder)
    start, dilation = float(run.meta()["t0_monotonic_s"]), run.scale().dilation
    events = run.events()
    faults = [event for event in events if str(event["event"]).startswith("fault ")]
    if not faults:
        raise InputError("run folder", str(folder), "its scenario has no faults.events", "try `zcube failover`")
    first = float(faults[0]["t_monotonic_s"])
    timeline = []
    for event in events:
        text = _text(event)
        if text:
            at = float(event["t_monotonic_s"])
            timeline.append(Moment(1e3 * (at - first), (at - start) / dilation, text))
    transfers = run.transfers()
    fault_s = [(float(event["t_monotonic_s"]) - start) / dilation for event in faults if event["event"] == "fault down"]
    done = transfers["t_done_s"].to_numpy(dtype=np.float64)
    submit = transfers["t_submit_s"].to_numpy(dtype=np.float64)
    stall = (done - submit - transfers["isolated_s"].to_numpy(dtype=np.float64)) * dilation * 1e3
    hit = np.zeros(len(transfers), dtype=bool)
    for at_s in fault_s:
        hit |= (submit <= at_s) & ~(done < at_s)
    numbers = transfers["transfer_id"]
    lost = next(check["text"] for check in run.fidelity()["checks"] if check["name"] == "packets_lost")
    finished = hit & np.isfinite(done)
    return Failover(
        timeline=tuple(timeline),
        repair_ms=tuple(float(event["last_barrier_ms"]) for event in events if event["event"] == "repaired"),
        handoffs=int(numbers.nunique()),
        in_flight=int(numbers[hit].nunique()),
        lost=int(numbers[hit & ~np.isfinite(done)].nunique()),
        unfinished=int(numbers[~np.isfinite(done)].nunique()),
        longest_stall_wall_ms=float(stall[finished].max()) if finished.any() else 0.0,
        median_stall_wall_ms=float(np.median(stall[finished])) if finished.any() else 0.0,
        lost_packets=str(lost),
    )


def _text(event: dict[str, object]) -> str:
    what = event["event"]
    if what in ("fault down", "fault up"):
        names: list[str] = event["what"]  # type: ignore[assignment]
        return f"{', '.join(names)} {'fails' if what == 'fault down' else 'comes back'}"
    if what == "repaired":
        return (
            f"repair confirmed: {event['changes']} rule changes in {event['phases']} phases; computed after"
            f" {event['computed_ms']} ms, last barrier after {event['last_barrier_ms']} ms"
        )
    if what == "flows moved":
        return f"agents told; {event['queue_pairs_cut']} queue pairs cut, their bytes go on elsewhere"
    return ""
