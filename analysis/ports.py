"""Egress ports: how busy they were and how much waited in front of them.

* Load: bytes sent (`tx_bytes_raw`, cumulative) * 8 / configured wall rate / elapsed wall time, between the
  first and the last sample inside the window. The configured wall rate is `rate_factor` * the port's model
  rate (`fabric.json`).
* Backlog: bytes waiting in the egress queue, in full frames (`backlog_bytes_raw` / `frame_bytes`). At the
  run's scale a frame stands for far more than a real one and queues are deep: it is *excess backlog (deep
  buffer)*, never switch buffer occupancy. A sample holds until the next one, so means are over time, however
  irregular the samples.

A port table may have five million rows: they are sorted once and reduced with numpy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from results.reader import RunFolder, Scale, Window

Floats = NDArray[np.float64]

COLUMNS = ["t_s", "t_wall_s", "node", "port", "tx_bytes_raw", "drops", "backlog_bytes_raw"]

#: Role of a port by the kinds of the nodes at both ends of its link, in the order of a transfer's way.
ROLES = ("GPU to switch", "switch to switch", "switch to GPU")
#: Tiers in the order of a transfer's way, for sorting; unknown ones come last.
_TIER_ORDER = (
    "gpu to leaf",
    "gpu to odd",
    "gpu to even",
    "leaf to spine",
    "spine to leaf",
    "odd to even",
    "even to odd",
    "leaf to gpu",
    "odd to gpu",
    "even to gpu",
)


@dataclass(frozen=True)
class PortInfo:
    """A port as `fabric.json` has it; `tier` names the kinds at both ends, e.g. "leaf to spine"."""

    node: str
    port: int
    gbps: float
    tier: str
    role: str
    peer: str

    @property
    def label(self) -> str:
        """Short name for tables and charts."""
        return f"{self.node}:{self.port} to {self.peer}"


@dataclass(frozen=True)
class Backlog:
    """Backlog of the switch ports over the window as time bins; `frames[i, j]` is the greatest in bin j at
    port i."""

    ports: tuple[PortInfo, ...]
    bin_start_s: Floats
    frames: Floats


@dataclass(frozen=True)
class PortFigures:
    """A row a port in `table` (columns: node, port, label, tier, role, gbps, load, backlog_peak_frames,
    backlog_mean_frames, over_threshold_s, drops, samples) and the binned backlog."""

    table: pd.DataFrame
    backlog: Backlog


def _kind(name: str, tier: object) -> str:
    if isinstance(tier, str) and tier:
        return tier
    found = re.match(r"[a-z]+", name.lower())
    return found.group() if found else name


def port_infos(fabric: dict[str, Any]) -> dict[tuple[str, int], PortInfo]:
    """(node, port number) -> what the port is, for both ends of every link of `fabric.json`."""
    kinds = {str(gpu["name"]): "gpu" for gpu in fabric["gpus"]}
    kinds |= {str(s["name"]): _kind(str(s["name"]), s.get("tier")) for s in fabric["switches"]}
    found: dict[tuple[str, int], PortInfo] = {}
    for link in fabric["links"]:
        for here, there in ((link["a"], link["b"]), (link["b"], link["a"])):
            own, other = kinds[here["node"]], kinds[there["node"]]
            role = ROLES[0] if own == "gpu" else ROLES[2] if other == "gpu" else ROLES[1]
            key = (str(here["node"]), int(here["port"]))
            found[key] = PortInfo(*key, float(link["gbps"]), f"{own} to {other}", role, str(there["node"]))
    return found


def tier_rank(tier: str) -> int:
    """Place of a tier along a transfer's way."""
    return _TIER_ORDER.index(tier) if tier in _TIER_ORDER else len(_TIER_ORDER)


def port_figures(run: RunFolder, threshold_frames: float, max_bins: int = 1000) -> PortFigures:
    """Load and backlog of every port of the run over its window."""
    samples = run.ports(COLUMNS)
    return reduce_ports(samples, port_infos(run.fabric()), run.scale(), run.window(), threshold_frames, max_bins)


def reduce_ports(
    samples: pd.DataFrame,
    infos: dict[tuple[str, int], PortInfo],
    scale: Scale,
    window: Window,
    threshold_frames: float,
    max_bins: int = 1000,
) -> PortFigures:
    """The same from a port table in memory. Ports that the fabric does not have (management) are left out."""
    ordered = sorted(infos.values(), key=lambda p: (tier_rank(p.tier), _natural(p.node), p.port))
    rows, port = _select(samples, ordered, window)
    t = samples["t_s"].to_numpy(dtype=np.float64)[rows]
    frames: Floats = samples["backlog_bytes_raw"].to_numpy()[rows] / float(scale.frame_bytes)
    starts = np.flatnonzero(np.r_[True, port[1:] != port[:-1]]) if port.size else np.empty(0, dtype=np.int64)
    ends = np.r_[starts[1:], port.size] - 1 if port.size else starts
    present = port[starts] if port.size else np.empty(0, dtype=np.int64)
    hold = np.diff(t, append=window.t_end_s)
    hold[ends] = window.t_end_s - t[ends]

    def grown(column: str) -> Floats:
        """Increase of a cumulative count from the first to the last sample of each port."""
        values = samples[column].to_numpy(dtype=np.float64)
        return np.asarray(values[rows[ends]] - values[rows[starts]], dtype=np.float64)

    figures = pd.DataFrame({"port_index": np.arange(len(ordered))})
    for name, value in (
        ("node", [p.node for p in ordered]),
        ("port", [p.port for p in ordered]),
        ("label", [p.label for p in ordered]),
        ("tier", [p.tier for p in ordered]),
        ("role", [p.role for p in ordered]),
        ("gbps", [p.gbps for p in ordered]),
    ):
        figures[name] = value
    for name in ("load", "backlog_peak_frames", "backlog_mean_frames", "over_threshold_s", "drops"):
        figures[name] = np.nan
    figures["samples"] = 0
    if port.size:
        held = np.add.reduceat(hold, starts)
        rate_bps = scale.rate_factor * figures["gbps"].to_numpy()[present] * 1e9
        elapsed = grown("t_wall_s")
        with np.errstate(divide="ignore", invalid="ignore"):
            load = grown("tx_bytes_raw") * 8 / rate_bps / elapsed
            mean = np.add.reduceat(frames * hold, starts) / held
        figures.loc[present, "load"] = np.where(elapsed > 0, load, np.nan)
        figures.loc[present, "backlog_peak_frames"] = np.maximum.reduceat(frames, starts)
        figures.loc[present, "backlog_mean_frames"] = np.where(held > 0, mean, np.nan)
        figures.loc[present, "over_threshold_s"] = np.add.reduceat(
            np.where(frames >= threshold_frames, hold, 0.0), starts
        )
        figures.loc[present, "drops"] = grown("drops")
        figures.loc[present, "samples"] = ends - starts + 1
    return PortFigures(
        table=figures.drop(columns="port_index"),
        backlog=_binned(ordered, port, t, frames, window, max_bins),
    )


def _natural(name: str) -> tuple[str, int]:
    found = re.fullmatch(r"(\D*)(\d*).*", name)
    return (found.group(1), int(found.group(2) or 0)) if found else (name, 0)


def _select(
    samples: pd.DataFrame, ordered: list[PortInfo], window: Window
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers of the samples inside the window, sorted by port and then time, and the port index of each."""
    index = {(p.node, p.port): i for i, p in enumerate(ordered)}
    nodes = samples["node"].astype("category")
    width = max((p.port for p in ordered), default=0) + 1
    # One row more than there are nodes and one column more than there are ports: nobody's, always -1.
    lookup = np.full((len(nodes.cat.categories) + 1, width + 1), -1, dtype=np.int64)
    for row, node in enumerate(nodes.cat.categories):
        lookup[row, :width] = [index.get((str(node), place), -1) for place in range(width)]
    t = samples["t_s"].to_numpy(dtype=np.float64)
    number = samples["port"].to_numpy(dtype=np.int64)
    number = np.where((number < 0) | (number >= width), width, number)
    port = lookup.take((nodes.cat.codes.to_numpy(dtype=np.int64) % len(lookup)) * (width + 1) + number)
    keep = np.flatnonzero((port >= 0) & (t >= window.t_start_s) & (t <= window.t_end_s))
    port, t = port[keep], t[keep]
    if np.all(t[1:] >= t[:-1]):  # as a sampler writes them: a stable sort by port alone will do, and is fast
        narrow = port.astype(np.int16) if len(ordered) < 32_768 else port
        order = np.argsort(narrow, kind="stable")
    else:
        order = np.lexsort((t, port))
    return keep[order], port[order]


def _binned(
    ordered: list[PortInfo],
    port: NDArray[np.int64],
    t: Floats,
    frames: Floats,
    window: Window,
    max_bins: int,
) -> Backlog:
    """Greatest backlog per switch port and time bin, the value that held when the bin began included."""
    chosen = [i for i, p in enumerate(ordered) if p.role != ROLES[0]]
    row_of = np.full(len(ordered), -1, dtype=np.int64)
    row_of[chosen] = np.arange(len(chosen))
    row = row_of[port] if port.size else port
    mask = row >= 0
    row, t, frames = row[mask], t[mask], frames[mask]
    per_port = np.bincount(row, minlength=max(len(chosen), 1)).max() if row.size else 0
    bins = int(np.clip(per_port, 1, max_bins))
    width = window.duration_s / bins
    peak: Floats = np.zeros((len(chosen), bins))
    if row.size:
        column = np.minimum(((t - window.t_start_s) / width).astype(np.int64), bins - 1)
        flat = row * bins + column
        first = np.flatnonzero(np.r_[True, flat[1:] != flat[:-1]])
        peak.reshape(-1)[flat[first]] = np.maximum.reduceat(frames, first)
        final = np.full((len(chosen), bins), np.nan)
        final.reshape(-1)[flat[first]] = frames[np.r_[first[1:], flat.size] - 1]
        held = pd.DataFrame(final).ffill(axis=1).shift(1, axis=1).fillna(0.0)
        peak = np.maximum(peak, held.to_numpy(dtype=np.float64))
    starts_s: Floats = window.t_start_s + width * np.arange(bins, dtype=np.float64)
    return Backlog(tuple(ordered[i] for i in chosen), starts_s, peak)


def tier_table(ports: pd.DataFrame, by: str = "tier") -> pd.DataFrame:
    """Per tier (or role): number of ports, busiest and mean load (share of the configured rate), which port
    is busiest, imbalance (busiest / mean), greatest backlog and mean backlog of a port in frames,
    port-seconds over the threshold."""
    rows: list[dict[str, Any]] = []
    for name, group in ports[ports["samples"] > 0].groupby(by, sort=False):
        loads = group["load"]
        mean = float(loads.mean())
        label = ""
        if loads.notna().any():
            label = list(group["label"])[int(np.nanargmax(loads.to_numpy(dtype=np.float64)))]
        rows.append(
            {
                by: name,
                "ports": len(group),
                "load_busiest": float(loads.max()),
                "load_mean": mean,
                "busiest_port": label,
                "imbalance": float(loads.max()) / mean if mean > 0 else float("nan"),
                "backlog_peak_frames": float(group["backlog_peak_frames"].max()),
                "backlog_mean_frames": float(group["backlog_mean_frames"].mean()),
                "over_threshold_port_s": float(group["over_threshold_s"].sum()),
            }
        )
    rank = tier_rank if by == "tier" else (lambda role: ROLES.index(role))
    rows.sort(key=lambda row: rank(str(row[by])))
    return pd.DataFrame(rows)
