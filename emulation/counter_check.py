"""Two counts of the same bytes: that of the egress queues (ports.parquet) and OpenFlow's (of_ports.parquet).

Both count whole frames that left a switch port. From a port's first OpenFlow reply that falls between two samples on,
at the time of each reply, the growth of one is held against that of the other, interpolated between its samples.

When a switch read its counters it says by its own clock (`duration_s`, the age of the port); the promptest reply of a
port sets that clock against the run's. The time at which a reply reached the controller would not do: where that is
busy, it comes many frames later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from results.reader import RunFolder

#: Shares are taken of ports that sent so many frames: of a few, one frame is much.
COMPARED_FROM_FRAMES = 100


@dataclass(frozen=True)
class CounterDifference:
    """The worst over ports and times, frames; where; the worst share of a port's bytes at its last common time (NaN
    where no port sent enough); ports and common times compared."""

    frames: float
    node: str
    port: int
    end_share: float
    ports: int
    times: int


def compare_counters(of_ports: pd.DataFrame, ports: pd.DataFrame, frame_bytes: int) -> CounterDifference | None:
    """Hold `tx_bytes_raw` of both tables against each other, switch port by switch port (columns t_wall_s, node, port,
    tx_bytes_raw, and of OpenFlow's duration_s). None where they have no two common times."""
    ours = dict(list(ports.groupby(["node", "port"], sort=False, observed=True)))
    worst, where, end_share, compared, times = -1.0, ("", 0), math.nan, 0, 0
    for (node, number), replies in of_ports.groupby(["node", "port"], sort=False):
        mine = ours.get((node, number))
        if mine is None:
            continue
        t, sent = (mine[name].to_numpy(dtype=np.float64) for name in ("t_wall_s", "tx_bytes_raw"))
        age = replies["duration_s"].to_numpy(dtype=np.float64)
        asked = age + (replies["t_wall_s"].to_numpy(dtype=np.float64) - age).min()
        inside = (asked >= t.min()) & (asked <= t.max())
        if inside.sum() < 2:
            continue
        told = replies["tx_bytes_raw"].to_numpy(dtype=np.float64)[inside]
        order = np.argsort(t, kind="stable")
        seen = np.interp(asked[inside], t[order], sent[order])
        difference = np.abs((told - told[0]) - (seen - seen[0]))
        compared, times = compared + 1, times + int(inside.sum())
        if difference.max() / frame_bytes > worst:
            worst, where = float(difference.max()) / frame_bytes, (str(node), int(str(number)))
        grown = max(told[-1] - told[0], seen[-1] - seen[0])
        if grown >= COMPARED_FROM_FRAMES * frame_bytes:
            end_share = np.fmax(end_share, difference[-1] / grown)
    return CounterDifference(worst, *where, float(end_share), compared, times) if compared else None


def counter_difference(folder: Path, frame_bytes: int) -> CounterDifference | None:
    """The same of a run's tables; None where OpenFlow's counters were not polled."""
    run = RunFolder(folder)
    if not run.has("of_ports.parquet"):
        return None
    columns = ("t_wall_s", "node", "port", "tx_bytes_raw")
    return compare_counters(
        run.table("of_ports", (*columns, "duration_s")).to_pandas(), run.ports(columns), frame_bytes
    )
