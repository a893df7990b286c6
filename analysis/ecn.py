"""Congestion marks: what switch ports marked and what came back, over a run's serving.

`ecn_marked_packets`: marks set by all switch ports; a packet that two ports would have marked counts at both.
`ecn_marked_share`: that over the packets those ports sent, acknowledgements and warm-up included. `ecn_tiers`: both by
tier. `ecn_delivered_ce`: segments that senders saw acknowledged with the echo of a mark (`tcpi_delivered_ce`), TCP's
analogue of the CNPs that a RoCE receiver sends; `ecn_delivered_ce_share`: that over the segments delivered.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.ports import PortInfo, port_infos, tier_rank
from results.reader import RunFolder


def ecn_figures(run: RunFolder) -> dict[str, Any]:
    """The figures of a run; nothing where switches did not mark."""
    if not run.has("ecn_ports.parquet"):
        return {}
    ports, flows = (run.table(name).to_pandas() for name in ("ecn_ports", "ecn_flows"))
    return reduce_marks(ports, flows, port_infos(run.fabric()))


def reduce_marks(ports: pd.DataFrame, flows: pd.DataFrame, infos: dict[tuple[str, int], PortInfo]) -> dict[str, Any]:
    """The same from tables in memory. Ports without a cable carry nothing and are left out."""
    keys = zip(ports["node"].astype(str), ports["port"].astype(int), strict=True)
    tier_of = [infos[key].tier if key in infos else "" for key in keys]
    known = ports.assign(tier=tier_of)[[bool(tier) for tier in tier_of]]
    tiers: dict[str, dict[str, float]] = {}
    for tier in sorted(set(known["tier"]), key=tier_rank):
        of_tier = known[known["tier"] == tier]
        marked, packets = int(of_tier["marked"].sum()), int(of_tier["packets"].sum())
        tiers[str(tier)] = {"marked": marked, "packets": packets, "share": _share(marked, packets)}
    marked, packets = int(known["marked"].sum()), int(known["packets"].sum())
    told, delivered = int(flows["delivered_ce"].sum()), int(flows["delivered"].sum())
    return {
        "ecn_marked_packets": marked,
        "ecn_marked_share": _share(marked, packets),
        "ecn_tiers": tiers,
        "ecn_delivered_ce": told,
        "ecn_delivered_ce_share": _share(told, delivered),
    }


def _share(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else float("nan")
