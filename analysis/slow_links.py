"""Links that carry less than they are configured for, found from transfers alone.

Each lane (queue pair of a transfer) is held against the max-min replay of the same transfers on links of their
configured rates: its slowness is the seconds it needed for a byte over those of the replay. A port is suspect when the
median slowness of the lanes that cross it is at least `SLOW`, over `ENOUGH` lanes or more, and the lanes that cross
none of its cables are not slow as well (a run that is slow everywhere has another cause). Of the ports on a path the
one whose lanes are slow most consistently (highest lower quartile) is named: those before and after it carry healthy
lanes too, or are told as one with it where the same lanes cross both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analysis.handoff_flows import Flows
from topologies.held_back import Account

SLOW, HEALTHY, ENOUGH = 1.5, 1.3, 5


@dataclass(frozen=True)
class SlowLink:
    """`port` sends at about `share` of its configured rate; `lanes` lanes say so; `same` are ports crossed by exactly
    the same lanes, which these transfers cannot tell apart. `late_ms`: request_id -> how much
    later its handoff ended than in the replay."""

    port: str
    share: float
    lanes: int
    same: tuple[str, ...]
    late_ms: Mapping[int, float]


def slow_links(flows: Flows, accounts: Mapping[int, Account]) -> list[SlowLink]:
    """The worst first; empty where all is well or where too little crossed a port to tell."""
    slowness: list[float] = []
    crossing: defaultdict[str, list[int]] = defaultdict(list)
    owner: list[int] = []
    for flow in flows.flows:
        item = accounts[flow.transfer.transfer_id]
        for place, lane in enumerate(flow.transfer.lanes):
            carried, done_s = flow.lane_bytes[place], flow.lane_done_s[place]
            replayed, replayed_s = item.lane_bytes[place], item.lane_done_s[place]
            taken, ideal = done_s - flow.submit_s, replayed_s - item.start_s
            # A lane that carried little, here or there, says little of its rate.
            least = 0.05 * flow.transfer.bytes / len(flow.transfer.lanes)
            if min(carried, replayed) < least or not (taken > 0 and ideal > 0):
                continue
            for port in lane.ports:
                crossing[port].append(len(slowness))
            slowness.append((taken / carried) / (ideal / replayed))
            owner.append(flow.transfer.transfer_id)
    values = np.array(slowness)
    found: list[SlowLink] = []
    suspects: dict[str, float] = {}
    for port, lanes in crossing.items():
        if len(lanes) >= ENOUGH and float(np.median(values[lanes])) >= SLOW:
            suspects[port] = float(np.percentile(values[lanes], 25))
    explained: set[int] = set()
    for port in sorted(suspects, key=lambda name: (-suspects[name], -len(crossing[name]), name)):
        left = [lane for lane in crossing[port] if lane not in explained]
        if len(left) < ENOUGH or float(np.median(values[left])) < SLOW:
            continue
        others = np.array([lane for lane in range(len(values)) if lane not in explained and lane not in set(left)])
        if len(others) < ENOUGH or float(np.median(values[others])) > HEALTHY:
            continue
        mine = set(crossing[port])
        same = tuple(sorted(name for name, lanes in crossing.items() if name != port and set(lanes) == mine))
        explained |= mine
        hit = {owner[lane] for lane in mine}
        late_ms: defaultdict[int, float] = defaultdict(float)
        for flow in flows.flows:
            if flow.transfer.transfer_id in hit:
                behind_s = flow.done_s - accounts[flow.transfer.transfer_id].done_s
                late_ms[flow.request_id] = max(late_ms[flow.request_id], behind_s * 1e3)
        found.append(SlowLink(port, 1 / float(np.median(values[left])), len(mine), same, dict(late_ms)))
    return found
