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

from analysis.port_series import (
    Floats,
    Ints,
    PortSeries,
    Stretches,
    longest,
    make_series,
    rising,
    stretches,
    time_percentiles,
)
from analysis.would_pause import PauseThresholds, would_pauses
from results.reader import RunFolder, Scale, Window

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


#: Percentiles of backlog over time that every port and group of ports gets.
BACKLOG_PERCENTILES = (50, 95, 99)
#: What a port belongs to: all switch ports, its tier, its switch, and the rail and NIC at its GPU end, sending and
#: receiving apart.
GROUPS = ("fabric", "tier", "switch", "rail", "nic")
#: The one member of the group `fabric`: a sender's own queue is not the fabric's.
SWITCH_PORTS = "switch ports"


@dataclass(frozen=True)
class PortInfo:
    """A port as `fabric.json` has it; `tier` names the kinds at both ends, e.g. "leaf to spine"; `gpu_rank` is the
    index in its server of the GPU at either end (None: between switches)."""

    node: str
    port: int
    gbps: float
    tier: str
    role: str
    peer: str
    gpu_rank: int | None = None

    @property
    def label(self) -> str:
        """Short name for tables and charts."""
        return f"{self.node}:{self.port} to {self.peer}"

    def member(self, group: str) -> str | None:
        """The member of one of GROUPS that this port belongs to; None where it belongs to none."""
        if group == "tier":
            return self.tier
        if group in ("fabric", "switch"):
            return None if self.role == ROLES[0] else self.node if group == "switch" else SWITCH_PORTS
        if self.gpu_rank is None:
            return None
        gpu, way = (self.node, "sending") if self.role == ROLES[0] else (self.peer, "receiving")
        return f"rail {self.gpu_rank}, {way}" if group == "rail" else f"{gpu}, {way}"


@dataclass(frozen=True)
class Backlog:
    """Backlog of the switch ports over the window as time bins; `frames[i, j]` is the greatest in bin j at
    port i."""

    ports: tuple[PortInfo, ...]
    bin_start_s: Floats
    frames: Floats


@dataclass(frozen=True)
class PortFigures:
    """A row a port in `table`, in the order of `infos`; the binned backlog; backlog percentiles of groups of ports.

    Columns of `table`: node, port, label, gbps, role, and those of GROUPS; load, backlog_peak_frames and its moment
    peak_s, backlog_mean_frames, backlog_p50_frames and further percentiles, over_threshold_s, the longest stretch over
    the threshold (longest_over_start_s, longest_over_s), would_pause_s and would_pauses, drops, samples.
    `group_percentiles`: GROUPS -> a row a member, a column a percentile as in `table`, over port-seconds.
    `over`: where ports were at or over the threshold, in the whole run and not only its window.
    """

    table: pd.DataFrame
    backlog: Backlog
    infos: tuple[PortInfo, ...]
    over: Stretches
    group_percentiles: dict[str, pd.DataFrame]


def _kind(name: str, tier: object) -> str:
    if isinstance(tier, str) and tier:
        return tier
    found = re.match(r"[a-z]+", name.lower())
    return found.group() if found else name


def port_infos(fabric: dict[str, Any]) -> dict[tuple[str, int], PortInfo]:
    """(node, port number) -> what the port is, for both ends of every link of `fabric.json`."""
    kinds = {str(gpu["name"]): "gpu" for gpu in fabric["gpus"]}
    kinds |= {str(s["name"]): _kind(str(s["name"]), s.get("tier")) for s in fabric["switches"]}
    ranks = gpu_ranks(fabric)
    found: dict[tuple[str, int], PortInfo] = {}
    for link in fabric["links"]:
        for here, there in ((link["a"], link["b"]), (link["b"], link["a"])):
            own, other = kinds[here["node"]], kinds[there["node"]]
            role = ROLES[0] if own == "gpu" else ROLES[2] if other == "gpu" else ROLES[1]
            key = (str(here["node"]), int(here["port"]))
            rank = ranks.get(str(here["node"]), ranks.get(str(there["node"])))
            found[key] = PortInfo(*key, float(link["gbps"]), f"{own} to {other}", role, str(there["node"]), rank)
    return found


def gpu_ranks(fabric: dict[str, Any]) -> dict[str, int]:
    """GPU -> its index in its server, from 0: the rail of its NIC."""
    seen: dict[object, int] = {}
    found: dict[str, int] = {}
    for gpu in fabric["gpus"]:
        server = gpu.get("server")
        found[str(gpu["name"])] = seen.get(server, 0)
        seen[server] = seen.get(server, 0) + 1
    return found


def tier_rank(tier: str) -> int:
    """Place of a tier along a transfer's way."""
    return _TIER_ORDER.index(tier) if tier in _TIER_ORDER else len(_TIER_ORDER)


def port_figures(
    run: RunFolder, threshold_frames: float, max_bins: int = 1000, pause: PauseThresholds | None = None
) -> PortFigures:
    """Load and backlog of every port of the run over its window."""
    samples = run.ports(COLUMNS)
    infos = port_infos(run.fabric())
    return reduce_ports(samples, infos, run.scale(), run.window(), threshold_frames, max_bins, pause)


def reduce_ports(
    samples: pd.DataFrame,
    infos: dict[tuple[str, int], PortInfo],
    scale: Scale,
    window: Window,
    threshold_frames: float,
    max_bins: int = 1000,
    pause: PauseThresholds | None = None,
) -> PortFigures:
    """The same from a port table in memory. Ports that the fabric does not have (management) are left out.

    Without `pause`, would-be pauses last as long as the backlog is at the threshold or above.
    """
    ordered = sorted(infos.values(), key=lambda p: (tier_rank(p.tier), _natural(p.node), p.port))
    rows, port = _select(samples, ordered)
    t = samples["t_s"].to_numpy(dtype=np.float64)[rows]
    frames: Floats = samples["backlog_bytes_raw"].to_numpy()[rows] / float(scale.frame_bytes)
    whole = make_series(port, t, frames, max(window.t_end_s, float(t.max(initial=0.0))))
    over = stretches(whole, whole.frames >= threshold_frames)
    inside = np.flatnonzero((t >= window.t_start_s) & (t <= window.t_end_s))
    rows = rows[inside]
    series = make_series(port[inside], t[inside], frames[inside], window.t_end_s)
    pause = pause or PauseThresholds(threshold_frames, float(np.nextafter(threshold_frames, 0.0)))
    order = rising(series.frames)
    return PortFigures(
        table=_table(samples, rows, series, order, ordered, scale, threshold_frames, pause),
        backlog=_binned(ordered, series.port, series.t_s, series.frames, window, max_bins),
        infos=tuple(ordered),
        over=over,
        group_percentiles={group: _of_groups(series, order, ordered, group) for group in GROUPS},
    )


def _table(
    samples: pd.DataFrame,
    rows: NDArray[np.int64],
    series: PortSeries,
    order: Ints,
    ordered: list[PortInfo],
    scale: Scale,
    threshold_frames: float,
    pause: PauseThresholds,
) -> pd.DataFrame:
    """The port table; `rows`: row numbers in `samples` of the samples of `series`, `order`: `rising` of its frames."""
    count, port, frames, hold = len(ordered), series.port, series.frames, series.hold_s
    starts = np.flatnonzero(series.begins)
    ends = np.r_[starts[1:], port.size] - 1 if port.size else starts
    present = port[starts]

    def grown(column: str) -> Floats:
        """Increase of a cumulative count from the first to the last sample of each port."""
        values = samples[column].to_numpy(dtype=np.float64)
        return np.asarray(values[rows[ends]] - values[rows[starts]], dtype=np.float64)

    figures = pd.DataFrame({"node": [p.node for p in ordered]})
    for name in ("port", "label", "role", "gbps"):
        figures[name] = [getattr(p, name) for p in ordered]
    for name in GROUPS:
        figures[name] = [p.member(name) for p in ordered]
    percentiles = [f"backlog_p{percent}_frames" for percent in BACKLOG_PERCENTILES]
    for name in ("load", "backlog_peak_frames", "peak_s", "backlog_mean_frames", *percentiles, "over_threshold_s",
                 "longest_over_start_s", "longest_over_s", "would_pause_s", "would_pauses", "drops"):  # fmt: skip
        figures[name] = np.nan
    figures["samples"] = 0
    if not port.size:
        return figures
    held = np.add.reduceat(hold, starts)
    rate_bps = scale.rate_factor * figures["gbps"].to_numpy()[present] * 1e9
    elapsed = grown("t_wall_s")
    with np.errstate(divide="ignore", invalid="ignore"):
        load = grown("tx_bytes_raw") * 8 / rate_bps / elapsed
        mean = np.add.reduceat(frames * hold, starts) / held
    peak = np.maximum.reduceat(frames, starts)
    at_peak = np.flatnonzero(frames == np.repeat(peak, ends - starts + 1))
    _, first = np.unique(port[at_peak], return_index=True)
    over = stretches(series, frames >= threshold_frames)
    pauses = would_pauses(series, pause)
    ranks = time_percentiles(port, frames, hold, count, BACKLOG_PERCENTILES, order)
    start_s, length_s = longest(over, count)
    found = {
        "load": np.where(elapsed > 0, load, np.nan),
        "backlog_peak_frames": peak,
        "peak_s": np.where(peak > 0, series.t_s[at_peak[first]], np.nan),
        "backlog_mean_frames": np.where(held > 0, mean, np.nan),
        **{name: ranks[present, column] for column, name in enumerate(percentiles)},
        "over_threshold_s": over.seconds(count)[present],
        "longest_over_start_s": start_s[present],
        "longest_over_s": length_s[present],
        "would_pause_s": pauses.seconds(count)[present],
        "would_pauses": pauses.count(count)[present],
        "drops": grown("drops"),
        "samples": ends - starts + 1,
    }
    for name, values in found.items():
        figures.loc[present, name] = values
    return figures


def _of_groups(series: PortSeries, order: Ints, ordered: list[PortInfo], group: str) -> pd.DataFrame:
    """Backlog percentiles of the members of one of GROUPS over the port-seconds of all their ports."""
    members = [info.member(group) for info in ordered]
    names = list(dict.fromkeys(name for name in members if name is not None))
    place = {name: index for index, name in enumerate(names)}
    of_port = np.array([place.get(name or "", -1) for name in members], dtype=np.int64)
    of = of_port[series.port] if series.port.size else series.port
    found = time_percentiles(of, series.frames, series.hold_s, len(names), BACKLOG_PERCENTILES, order)
    return pd.DataFrame(found, index=names, columns=[f"backlog_p{percent}_frames" for percent in BACKLOG_PERCENTILES])


def _natural(name: str) -> tuple[str, int]:
    found = re.fullmatch(r"(\D*)(\d*).*", name)
    return (found.group(1), int(found.group(2) or 0)) if found else (name, 0)


def _select(samples: pd.DataFrame, ordered: list[PortInfo]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers of the samples of these ports, sorted by port and then time, and the port index of each."""
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
    keep = np.flatnonzero(port >= 0)
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
