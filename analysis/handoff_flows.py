"""The transfers of a run as flows on its fabric, from `transfers.parquet` and `fabric.json` alone.

What a run carried out is replayed with its actual start times, queue pairs and paths on links of their *configured*
rates, so that a link which did less shows as a difference. Rows without a path (cancelled, or unknown after a failure)
are left out and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from results.reader import RunFolder
from topologies.fabric import End, port_name
from topologies.fluid import BYTES_PER_S_PER_GBPS, Lane, Transfer, paced
from topologies.paths import QueuePair

COLUMNS = [
    *("transfer_id", "request_id", "src_gpu", "src_port", "dst_gpu", "dst_port", "qp", "path", "bytes"),
    *("t_submit_s", "t_done_s", "kind", "piece", "attempt", "status"),
]


@dataclass(frozen=True)
class Flow:
    """One transfer as it went: `done_s` is its last byte, `lane_done_s` and `lane_bytes` those of each lane."""

    transfer: Transfer
    request_id: int
    kind: str
    submit_s: float
    done_s: float
    lane_done_s: tuple[float, ...]
    lane_bytes: tuple[int, ...]

    @property
    def ports(self) -> frozenset[str]:
        """Egress ports that it crosses."""
        return frozenset(port for lane in self.transfer.lanes for port in lane.ports)


@dataclass(frozen=True)
class Flows:
    """All of a run, with the goodput of every egress port in bytes per second; `left_out` transfers had no path."""

    flows: tuple[Flow, ...]
    capacities: Mapping[str, float]
    left_out: int

    @property
    def starts(self) -> list[tuple[Transfer, float]]:
        """What `topologies.held_back.account` replays."""
        return [(flow.transfer, flow.submit_s) for flow in self.flows]


def flows_of(run: RunFolder) -> Flows:
    """Read a run. Raises InputError for a folder without transfers or fabric."""
    meta, scenario = run.meta(), run.scenario()
    if meta.get("executor") == "simulation":
        payload_share = float(meta.get("goodput_share", 1.0))
    else:
        scale = run.scale()
        payload_share = scale.mss_bytes / scale.frame_bytes
    pacing = scenario.transport.pacing_gbps
    return flows_from(
        run.transfers(COLUMNS),
        run.fabric(),
        payload_share=payload_share,
        striping=scenario.routing.striping,
        pacing_gbps=pacing or None,
    )


def flows_from(
    transfers: pd.DataFrame,
    fabric: Mapping[str, Any],
    *,
    payload_share: float,
    striping: Any = "adaptive",
    pacing_gbps: float | None = None,
) -> Flows:
    """The same from tables in memory; `payload_share` is the payload's share of a port's rate."""
    ends = _link_ends(fabric)
    per_gbps = BYTES_PER_S_PER_GBPS * payload_share
    capacities = {
        port_name(end): float(link["gbps"]) * per_gbps for link in fabric["links"] for end in ends[str(link["id"])]
    }
    usable = transfers[transfers["t_done_s"].notna() & (transfers["path"].str.len() > 0)].sort_values("transfer_id")
    by_transfer: dict[int, list[dict[str, Any]]] = {}
    for row in usable[list(COLUMNS)].to_dict("records"):
        by_transfer.setdefault(int(row["transfer_id"]), []).append({str(k): v for k, v in row.items()})
    server = {str(gpu["name"]): str(gpu["server"]) for gpu in fabric["gpus"]}
    known: dict[tuple[Any, ...], Lane] = {}

    def lane_of(row: dict[str, Any]) -> Lane:
        path = tuple(row["path"])
        key = (*(row[name] for name in ("src_gpu", "src_port", "dst_gpu", "dst_port", "qp")), path)
        if key not in known:
            src, dst = (End(str(row[f"{end}_gpu"]), int(row[f"{end}_port"])) for end in ("src", "dst"))
            lane = Lane(QueuePair(src, dst, int(row["qp"])), egress_ports(src.node, path, ends, server), path)
            known[key] = paced((lane,), capacities, pacing_gbps and pacing_gbps * per_gbps)[0]
        return known[key]

    found: list[Flow] = []
    for number, rows in by_transfer.items():
        size = sum(int(row["bytes"]) for row in rows)
        if size > 0:
            found.append(
                Flow(
                    transfer=Transfer(number, size, tuple(map(lane_of, rows)), striping),
                    request_id=int(rows[0]["request_id"]),
                    kind=str(rows[0]["kind"]),
                    submit_s=min(float(row["t_submit_s"]) for row in rows),
                    done_s=max(float(row["t_done_s"]) for row in rows),
                    lane_done_s=tuple(float(row["t_done_s"]) for row in rows),
                    lane_bytes=tuple(int(row["bytes"]) for row in rows),
                )
            )
    return Flows(tuple(found), capacities, len(set(transfers["transfer_id"]) - set(by_transfer)))


def _link_ends(fabric: Mapping[str, Any]) -> dict[str, tuple[End, End]]:
    return {
        str(link["id"]): (
            End(str(link["a"]["node"]), int(link["a"]["port"])),
            End(str(link["b"]["node"]), int(link["b"]["port"])),
        )
        for link in fabric["links"]
    }


def egress_ports(
    src_gpu: str, path: Sequence[str], ends: Mapping[str, tuple[End, End]], server: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Names of the ports that a path of cable ids leaves by, from the source GPU on, or from another GPU of its server
    (`server`: GPU -> server), which it reaches over NVLink where rails do not meet. Raises ValueError for a path that
    does not hang together."""
    at, found = src_gpu, []
    if server and path and at in server:
        first = [end.node for end in ends[path[0]]]
        at = next((node for node in first if at not in first and server.get(node) == server[at]), at)
    for link in path:
        a, b = ends[link]
        here, there = (a, b) if a.node == at else (b, a)
        if here.node != at:
            raise ValueError(f"cable {link} does not start at {at}")
        found.append(port_name(here))
        at = there.node
    return tuple(found)
