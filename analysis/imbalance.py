"""How unevenly load lies on the members of a group: ports of a tier, switches, rails, NICs.

* max / mean: 1 when all are equal; the time that the busiest needs over the time that a perfect spread would need.
* Coefficient of variation: standard deviation of the population over the mean; 0 when all are equal.
* Jain's index: (sum x)^2 / (n * sum x^2); 1 when all are equal, 1/n when one has everything. It is 1 / (1 + CV^2).
  R. Jain, D. Chiu, W. Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared
  Computer Systems", DEC Research Report TR-301, 1984.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.ports import ROLES, PortFigures, tier_rank


@dataclass(frozen=True)
class Imbalance:
    """Spread of a load over members; NaN where nothing was sent at all."""

    max_over_mean: float
    cv: float
    jain: float


def imbalance(loads: Sequence[float]) -> Imbalance:
    """The three figures of loads (at least 0); NaN without members, and where all are 0."""
    values = np.asarray(loads, dtype=np.float64)
    mean = float(values.mean()) if values.size else 0.0
    if not mean > 0:
        return Imbalance(math.nan, math.nan, math.nan)
    jain = float(values.sum()) ** 2 / (values.size * float((values**2).sum()))
    return Imbalance(float(values.max()) / mean, float(values.std()) / mean, jain)


def members(figures: PortFigures, group: str) -> pd.DataFrame:
    """Members of one of `ports.GROUPS`, a row each, those with samples: ports, utilisation = bytes sent over what
    their configured rates allow, backlog percentiles over port-seconds, greatest backlog, time over the threshold and
    would-pause time summed over ports, number of would-be pauses."""
    ports = figures.table[figures.table["samples"] > 1]
    groups = ports.assign(sent=ports["load"] * ports["gbps"]).groupby(group, sort=False)
    found = pd.DataFrame(
        {
            "ports": groups.size(),
            "utilisation": groups["sent"].sum() / groups["gbps"].sum(),
            "over_threshold_port_s": groups["over_threshold_s"].sum(),
            "would_pause_port_s": groups["would_pause_s"].sum(),
            "would_pauses": groups["would_pauses"].sum().astype(int),
            "backlog_peak_frames": groups["backlog_peak_frames"].max(),
        }
    )
    return found.join(figures.group_percentiles[group])


def _row(scope: str, loads: pd.Series[float]) -> dict[str, Any]:
    found = imbalance(loads.tolist())
    busiest = str(loads.idxmax()) if len(loads) and loads.max() > 0 else ""
    return {
        "scope": scope,
        "members": len(loads),
        "utilisation_mean": float(loads.mean()) if len(loads) else math.nan,
        "utilisation_busiest": float(loads.max()) if len(loads) else math.nan,
        "busiest": busiest,
        "max_over_mean": found.max_over_mean,
        "cv": found.cv,
        "jain": found.jain,
    }


def imbalance_table(figures: PortFigures) -> pd.DataFrame:
    """One row a scope: ports of each tier, switches of each kind (all egress ports of one together), and rails and
    NICs, sending (NIC to switch) and receiving (switch to NIC).

    Utilisation is over the window and against the configured rate, so members of unequal rates compare; the mean is
    over members.
    """
    ports = figures.table[figures.table["samples"] > 1]
    rows = [
        _row(f"ports, {tier}", pd.Series(group["load"].to_numpy(dtype=np.float64), index=list(group["label"])))
        for tier, group in sorted(ports.groupby("tier", sort=False), key=lambda item: tier_rank(str(item[0])))
    ]
    switches = members(figures, "switch")["utilisation"]
    kind_of = {info.node: info.tier.split(" ")[0] for info in figures.infos}
    for kind in dict.fromkeys(kind_of[str(name)] for name in switches.index):
        mine = [kind_of[str(name)] == kind for name in switches.index]
        rows.append(_row(f"switches, {kind}", switches[mine]))
    for group, many in (("rail", "rails"), ("nic", "NICs")):
        everyone = members(figures, group)["utilisation"]
        for way in ("sending", "receiving"):
            mine = [str(name).endswith(way) for name in everyone.index]
            rows.append(_row(f"{many}, {way}", everyone[mine].rename(lambda name: str(name).split(",")[0])))
    return pd.DataFrame([row for row in rows if row["members"]], columns=list(rows[0]) if rows else None)


#: A port is hot when it held the threshold's frames, or more, for at least this share of the window.
HOT_SHARE = 0.01


def hot_ports(ports: pd.DataFrame, window_s: float) -> pd.DataFrame:
    """Hot switch ports, hottest first, by the rule of HOT_SHARE: label, tier, utilisation, over_share (of the window),
    backlog percentiles, moment (`peak_s`, when most waited) and the longest stretch over the threshold.

    A NIC's own queue is left out: what waits there has not entered the fabric.
    """
    share = ports["over_threshold_s"] / window_s
    shown = ports.assign(over_share=share, utilisation=ports["load"])
    chosen = shown[(ports["role"] != ROLES[0]) & (share >= HOT_SHARE)]
    columns = ["label", "node", "tier", "utilisation", "over_share", "backlog_p50_frames", "backlog_p95_frames",
               "backlog_p99_frames", "backlog_peak_frames", "peak_s", "longest_over_start_s", "longest_over_s",
               "would_pause_s"]  # fmt: skip
    return chosen[columns].sort_values("over_share", ascending=False, kind="stable")
