"""What failures did to a run: its timeline, and the handoffs that were on their way. From the run folder alone.

Repair times are in wall milliseconds only: neither TCP's timers nor rule messages scale with the model. A handoff's
stall is what it took beyond `isolated_s`, the time it would have taken alone, in wall milliseconds too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from results.reader import RunFolder
from scenario.errors import InputError
from topologies.build import build
from topologies.fabric import Fabric
from topologies.routes import Failures

Flags = NDArray[np.bool_]

#: Said with every timeline.
BUSY_MACHINE = (
    "These times are this machine's, which also forwards every packet: on a busy one they grow. They are no property of"
    " the fabric."
)


@dataclass(frozen=True)
class Moment:
    """One line of the timeline. `wall_ms` counts from the first fault, `model_s` from the start of serving."""

    wall_ms: float
    model_s: float
    text: str


@dataclass(frozen=True)
class Stalls:
    """Handoffs that were on their way at a failure: wall ms longer than alone, of those that ended."""

    handoffs: int
    median_wall_ms: float
    longest_wall_ms: float

    @property
    def text(self) -> str:
        """For a sentence."""
        return (
            f"{self.median_wall_ms:,.0f} wall ms longer than alone in the median, {self.longest_wall_ms:,.0f} at most"
        )


@dataclass(frozen=True)
class Failover:
    """`timeline` in order; repairs as ms from the report of the failure to the last barrier.

    `in_flight` handoffs were on their way when a fault began, `lost` of them never ended; `unfinished` counts those
    that the end of the run cut off too. `used` are those on their way of which a path had what failed, `others` the
    rest. `not_reached`: events after the end of serving.
    """

    timeline: tuple[Moment, ...]
    repair_ms: tuple[float, ...]
    queue_pairs_cut: int
    handoffs: int
    in_flight: int
    lost: int
    unfinished: int
    stalls: Stalls
    used: Stalls
    others: Stalls
    lost_packets: str
    not_reached: tuple[str, ...]

    def lines(self) -> tuple[str, ...]:
        """What is said below the timeline."""
        found = [f"NOT REACHED, serving had ended: {text}" for text in self.not_reached]
        if not self.timeline:
            return tuple(found)
        repairs = f"{_many(len(self.repair_ms), 'update')} of the rules confirmed"
        cut = (
            "no queue pair was cut" if not self.queue_pairs_cut else f"{_many(self.queue_pairs_cut, 'queue pair')} cut"
        )
        found.append(f"{repairs}; {cut}.")
        text = f"{_many(self.handoffs, 'handoff')}, {self.in_flight} on their way at a failure, {self.lost} lost."
        told = [
            f"{some.handoffs or 'none'} {which}" + (f" and took {some.text}" if some.handoffs else "")
            for which, some in (("used what failed", self.used), ("did not", self.others))
        ]
        if self.in_flight:
            text += f" Of those on their way {told[0]}; {told[1]}."
        found += [text + (" Queues are included." if self.in_flight else ""), f"Packets: {self.lost_packets}."]
        found.append(BUSY_MACHINE)
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """For --json."""
        return {
            "timeline": [vars(moment) for moment in self.timeline],
            "repair_ms": self.repair_ms,
            "queue_pairs_cut": self.queue_pairs_cut,
            "handoffs": self.handoffs,
            "in_flight": self.in_flight,
            "lost": self.lost,
            "unfinished": self.unfinished,
            "longest_stall_wall_ms": self.stalls.longest_wall_ms,
            "median_stall_wall_ms": self.stalls.median_wall_ms,
            "used": vars(self.used),
            "others": vars(self.others),
            "lost_packets": self.lost_packets,
            "not_reached": self.not_reached,
        }


def failover(folder: Path) -> Failover:
    """Read a run that had faults. Raises InputError for a folder that is not a run or had no faults."""
    run = RunFolder(folder)
    start, dilation = float(run.meta()["t0_monotonic_s"]), run.scale().dilation
    scenario, events = run.scenario(), run.events()
    if not scenario.faults.events:
        raise InputError("run folder", str(folder), "its scenario has no faults.events", "try `zcube failover`")
    faults = [event for event in events if event["event"] in ("fault down", "fault up")]
    timeline = []
    for event in events if faults else ():
        text = _text(event)
        if text:
            at = float(event["t_monotonic_s"])
            first = float(faults[0]["t_monotonic_s"])
            timeline.append(Moment(1e3 * (at - first), (at - start) / dilation, text))
    transfers = run.transfers()
    done = transfers["t_done_s"].to_numpy(dtype=np.float64)
    submit = transfers["t_submit_s"].to_numpy(dtype=np.float64)
    stall_ms = (done - submit - transfers["isolated_s"].to_numpy(dtype=np.float64)) * dilation * 1e3
    hit, used = np.zeros(len(transfers), dtype=bool), np.zeros(len(transfers), dtype=bool)
    fabric = build(scenario.fabric)
    for event in faults:
        if event["event"] == "fault down":
            at_s = (float(event["t_monotonic_s"]) - start) / dilation
            here = (submit <= at_s) & ~(done < at_s)
            hit |= here
            used |= here & _crosses(transfers["path"], fabric, event["what"])
    numbers = transfers["transfer_id"].to_numpy()
    # A handoff is one, whatever its queue pairs: it used the cable when one of them does.
    used = hit & np.isin(numbers, numbers[used])

    def stalls(rows: Flags) -> Stalls:
        ended = pd.Series(stall_ms[rows & np.isfinite(stall_ms)]).groupby(numbers[rows & np.isfinite(stall_ms)]).max()
        many = len(np.unique(numbers[rows]))
        return Stalls(many, float(ended.median()), float(ended.max())) if len(ended) else Stalls(many, 0.0, 0.0)

    lost = next(check["text"] for check in run.fidelity()["checks"] if check["name"] == "packets_lost")
    return Failover(
        timeline=tuple(timeline),
        repair_ms=tuple(float(event["last_barrier_ms"]) for event in events if event["event"] == "repaired"),
        queue_pairs_cut=sum(int(event["queue_pairs_cut"]) for event in events if event["event"] == "flows moved"),
        handoffs=len(np.unique(numbers)),
        in_flight=len(np.unique(numbers[hit])),
        lost=len(np.unique(numbers[hit & ~np.isfinite(done)])),
        unfinished=len(np.unique(numbers[~np.isfinite(done)])),
        stalls=stalls(hit),
        used=stalls(used),
        others=stalls(hit & ~used),
        lost_packets=str(lost),
        not_reached=tuple(_not_reached(event) for event in events if event["event"] == "fault not reached"),
    )


def _crosses(paths: pd.Series, fabric: Fabric, names: Iterable[str]) -> Flags:
    """Rows whose path, at the start of the handoff, has a cable that failed."""
    down = Failures.of(fabric, names)
    links = {link.id for link in fabric.links if link.id in down.links or {link.a.node, link.b.node} & down.switches}
    return np.array([not links.isdisjoint(path) for path in paths], dtype=np.bool_)


def _not_reached(event: Mapping[str, Any]) -> str:
    parts = [f"{', '.join(event[which])} {which}" for which in ("down", "up") if event[which]]
    return f"{' and '.join(parts)} at {event['at_s']:g} model s (serving ended at {event['served_s']:.2f} s)"


def _text(event: Mapping[str, Any]) -> str:
    match event["event"]:
        case "fault down" | "fault up":
            names = event["what"]
            one, more = ("fails", "fail") if event["event"] == "fault down" else ("comes back", "come back")
            verb = one if len(names) == 1 else more
            return f"{', '.join(names)} {verb}"
        case "repaired":
            return _repair_text(event)
        case "flows moved":
            cut = int(event["queue_pairs_cut"])
            if cut:
                return f"agents told: {_many(cut, 'queue pair')} cut, their bytes go on over others, or wait"
            return "agents told: no queue pair is cut, bytes go on by the new rules"
        case "controller ended":
            return "the controller ended: switches forward as before, nothing is repaired"
        case "controller took over":
            return f"a new controller has taken over, {event['quiet_s']:.1f} s after the end of the one before"
    return ""


def _repair_text(event: Mapping[str, Any]) -> str:
    back = not set(event["down"]) - set(event["before"])
    what = "repair confirmed" if not back else "back to the normal rules" if not event["down"] else "repair reduced"
    if not event["changes"]:
        return f"{what}: no rule to change"
    return (
        f"{what}: {_many(int(event['changes']), 'rule change')} in {_many(int(event['phases']), 'phase')};"
        f" after PORT_STATUS {event['computed_ms']:,.0f} ms to compute, {event['last_barrier_ms']:,.0f} ms to the last"
        " barrier"
    )


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
