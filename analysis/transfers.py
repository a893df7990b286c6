"""KV handoffs: how long each took in all, against being alone on the fabric, and how far it went.

A handoff is all transfer rows of one request (ranks, ports and queue pairs). Total transfer time = first
submit to last byte at a receiver. The exposed part is the request's `kv_transfer` stage; the rest was hidden
behind prefill.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from results.reader import Scale, Window

COLUMNS = [
    *("transfer_id", "request_id", "src_gpu", "dst_gpu", "path", "bytes", "t_submit_s", "t_done_s", "isolated_s"),
    *("attempt", "kind", "piece", "status"),
]


def handoffs(transfers: pd.DataFrame) -> pd.DataFrame:
    """One row a request: bytes, total_s (NaN when a part did not finish), isolated_s, slowdown = total / isolated.

    A handoff that was sent in pieces (chunked, layerwise, or again after a failure) waited between them for other
    things than the fabric: its slowdown is the time that its transfers took over what they take alone, both summed. A
    transfer that a later attempt replaced does not count.
    """
    kv = transfers[transfers["kind"] == "kv"] if "kind" in transfers else transfers
    if "attempt" in kv:
        last = kv.groupby("request_id")["attempt"].transform("max")
        kv = kv[kv["t_done_s"].notna() | (kv["attempt"] == last)]
    grouped = kv.groupby("request_id", sort=True)
    table = pd.DataFrame(
        {
            "bytes": grouped["bytes"].sum(),
            "submit_s": grouped["t_submit_s"].min(),
            "done_s": grouped["t_done_s"].max(),
            "isolated_s": grouped["isolated_s"].max(),
        }
    )
    unfinished = kv.loc[kv["t_done_s"].isna(), "request_id"].unique()
    table.loc[table.index.isin(unfinished), "done_s"] = np.nan
    table["total_s"] = table["done_s"] - table["submit_s"]
    table["slowdown"] = table["total_s"] / table["isolated_s"].where(table["isolated_s"] > 0)
    pieces = grouped["piece"].nunique() > 1 if "piece" in kv else table["bytes"] < 0
    if pieces.any():
        by_transfer = kv.groupby(["request_id", "transfer_id"]).agg(
            submit_s=("t_submit_s", "min"), done_s=("t_done_s", "max"), alone_s=("isolated_s", "max")
        )
        by_transfer["taken_s"] = by_transfer["done_s"] - by_transfer["submit_s"]
        summed = by_transfer.groupby("request_id")[["taken_s", "alone_s"]].sum()
        ratio = (summed["taken_s"] / summed["alone_s"].where(summed["alone_s"] > 0)).where(table["done_s"].notna())
        table.loc[pieces, "slowdown"] = ratio[pieces]
    return table


def gigabits_per_s(transfers: pd.DataFrame, window: Window) -> float:
    """KV bytes whose last byte arrived in the window, over the window's wall-clock, in model Gb/s. Durations
    that overlap are not summed (that figure misleads: vllm-project/vllm#48224)."""
    if "kind" in transfers:
        transfers = transfers[transfers["kind"] != "background"]
    done = transfers["t_done_s"]
    inside = (done >= window.t_start_s) & (done < window.t_end_s)
    return float(transfers.loc[inside, "bytes"].sum()) * 8 / 1e9 / window.duration_s


@dataclass(frozen=True)
class PathFigures:
    """Means over KV bytes of the paths they took."""

    switches_mean: float
    one_switch_share: float
    store_and_forward_ms: float


def path_figures(transfers: pd.DataFrame, link_gbps: dict[str, float], scale: Scale) -> PathFigures | None:
    """Switches per path, share of bytes that met one switch only, and the store-and-forward bias.

    A switch sends a frame on when it has all of it, so each switch adds one frame time of its egress link. At
    the run's scale that is far longer than in a real switch: it is a bias against fabrics with more hops.
    None without paths.
    """
    paths = [tuple(path) if path is not None else () for path in transfers["path"]]
    if not any(paths):
        return None
    weights = transfers["bytes"].to_numpy(dtype=np.float64)
    switches = np.array([max(len(path) - 1, 0) for path in paths])
    known: dict[tuple[str, ...], float] = {}
    for path in set(paths):
        rates = (link_gbps.get(link) for link in path[1:])
        known[path] = sum(scale.frame_time_s(gbps) for gbps in rates if gbps)
    bias = np.array([known[path] for path in paths])
    weights = np.where(switches > 0, weights, 0)
    if not weights.sum():
        return None
    return PathFigures(
        switches_mean=float(np.average(switches, weights=weights)),
        one_switch_share=float(np.average(switches == 1, weights=weights)),
        store_and_forward_ms=float(np.average(bias, weights=weights)) * 1e3,
    )
