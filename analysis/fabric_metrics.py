"""The `fabric_*` keys of summary.json, from samples of egress ports inside the window; null in a run without ports.

Backlog is excess backlog (deep buffer), not switch buffer occupancy; percentiles are over time, of several ports over
port-seconds. "Switch ports" leaves out the senders' NICs. `_bytes` = frames * model bytes of a frame.

* The most that waited at one switch port: `fabric_backlog_peak_frames`, at `fabric_backlog_peak_port`. Time mean of the
  sum over all switch ports: `fabric_backlog_total_mean_frames`; that divided by their number:
  `fabric_backlog_mean_frames`. Percentiles over the port-seconds of all of them: `fabric_backlog_p50_frames`, p95, p99.
* Port-seconds with at least `telemetry.backlog_threshold_frames`: `fabric_time_over_threshold_port_s`.
* Port-seconds, and number, of would-be pauses, a model on measured queues (`analysis.would_pause`):
  `fabric_would_pause_port_s`, `fabric_would_pauses`; its thresholds, and what XOFF stands for in model bytes and in
  buffers of a real ASIC: `fabric_would_pause`.
* Utilisation = bytes sent over what the configured rate allows in the window. By kind of port: `fabric_roles`,
  `fabric_tiers` (here `load_busiest`, `load_mean`). By switch, rail and NIC: `fabric_switches`, `fabric_rails`,
  `fabric_nics`. By port: `fabric_ports`.
* How unevenly utilisation lies on ports of a tier, switches, rails, NICs (`analysis.imbalance`): `fabric_imbalance`.
* Switch ports over the threshold for 1 % of the window or more, hottest first, with their moment: `fabric_hot_ports`.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.imbalance import hot_ports, imbalance_table, members
from analysis.ports import BACKLOG_PERCENTILES, ROLES, SWITCH_PORTS, PortFigures, tier_table
from results.reader import Scale, Window
from scenario.models import TelemetrySection

#: Shared packet buffer of a 51.2 Tb/s switch ASIC (Broadcom Tomahawk 5 class), for a sense of size only.
ASIC_BUFFER_BYTES = 165e6

_PORT_COLUMNS = ("tier", "utilisation", *(f"backlog_p{percent}_frames" for percent in BACKLOG_PERCENTILES),
                 "backlog_peak_frames", "over_threshold_s", "would_pause_s", "would_pauses")  # fmt: skip


def fabric_metrics(
    ports: PortFigures | None, scale: Scale, window: Window, telemetry: TelemetrySection
) -> dict[str, Any]:
    """The keys of the module's text; NaN means no value."""
    base = ("peak_frames", "mean_frames", "total_mean_frames", "peak_bytes", "mean_bytes", "total_mean_bytes",
            *(f"p{percent}_frames" for percent in BACKLOG_PERCENTILES))  # fmt: skip
    found: dict[str, Any] = {f"fabric_backlog_{name}": float("nan") for name in base}
    found |= {"fabric_model_bytes_per_frame": scale.model_bytes_per_frame}
    if ports is None:
        return found | {
            "fabric_switch_ports": 0,
            "fabric_drops": None,
            "fabric_roles": {},
            "fabric_tiers": {},
        }
    table = ports.table
    switch = table[(table["role"] != ROLES[0]) & (table["samples"] > 0)]
    peak, total = float(switch["backlog_peak_frames"].max()), float(switch["backlog_mean_frames"].sum())
    for name, frames in (("peak", peak), ("mean", total / max(len(switch), 1)), ("total_mean", total)):
        found[f"fabric_backlog_{name}_frames"] = frames
        found[f"fabric_backlog_{name}_bytes"] = frames * scale.model_bytes_per_frame
    pooled = ports.group_percentiles["fabric"].to_dict("index").get(SWITCH_PORTS, {})
    found |= {f"fabric_{name}": value for name, value in pooled.items()}
    highest = switch["backlog_peak_frames"].idxmax() if peak > 0 else None
    known = table[table["samples"] > 1]
    return found | {
        "fabric_backlog_peak_port": str(switch.at[highest, "label"]) if highest is not None else "",
        "fabric_switch_ports": len(switch),
        "fabric_time_over_threshold_port_s": float(switch["over_threshold_s"].sum()),
        "fabric_would_pause_port_s": float(switch["would_pause_s"].sum()),
        "fabric_would_pauses": int(switch["would_pauses"].sum()),
        "fabric_would_pause": pause_thresholds(scale, telemetry),
        "fabric_drops": int(table["drops"].sum()),
        "fabric_roles": _records(tier_table(table, "role"), "role"),
        "fabric_tiers": _with_percentiles(_records(tier_table(table, "tier"), "tier"), ports),
        "fabric_imbalance": _records(imbalance_table(ports), "scope"),
        "fabric_hot_ports": _records(hot_ports(table, window.duration_s), "label"),
        "fabric_switches": _records(members(ports, "switch").rename_axis("name").reset_index(), "name"),
        "fabric_rails": _records(members(ports, "rail").rename_axis("name").reset_index(), "name"),
        "fabric_nics": _records(members(ports, "nic").rename_axis("name").reset_index(), "name"),
        "fabric_ports": _records(known.assign(utilisation=known["load"])[["label", *_PORT_COLUMNS]], "label"),
    }


def pause_thresholds(scale: Scale, telemetry: TelemetrySection) -> dict[str, float]:
    """The thresholds of the would-pause model, and what XOFF is in model bytes and in buffers of a real ASIC."""
    model_bytes = telemetry.xoff_frames * scale.model_bytes_per_frame
    return {
        "xoff_frames": telemetry.xoff_frames,
        "xon_frames": telemetry.xon_frames,
        "xoff_model_bytes": model_bytes,
        "asic_buffer_bytes": ASIC_BUFFER_BYTES,
        "xoff_asic_buffers": model_bytes / ASIC_BUFFER_BYTES,
    }


def _with_percentiles(tiers: dict[str, dict[str, Any]], ports: PortFigures) -> dict[str, dict[str, Any]]:
    more = members(ports, "tier").to_dict("index")
    names = ["would_pause_port_s", "would_pauses", *(f"backlog_p{percent}_frames" for percent in BACKLOG_PERCENTILES)]
    for tier, row in tiers.items():
        if tier in more:
            row |= {name: more[tier][name] for name in names}
    return tiers


def _records(table: pd.DataFrame, key: str) -> dict[str, dict[str, Any]]:
    return {str(row.pop(key)): row for row in ({str(k): v for k, v in r.items()} for r in table.to_dict("records"))}
