"""Tables of the report about queues: who is uneven, who is hot, who would pause, and what the scheduler met there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.arms import ArmResult
from analysis.decode_queue import STATES
from analysis.formats import NONE, data_size, number, percent, short
from analysis.imbalance import HOT_SHARE

#: Hot ports that the page shows of an arm; summary.json has all.
SHOWN = 8


def imbalance_rows(arm: ArmResult) -> list[dict[str, str]]:
    """A row a scope of switches, rails and NICs (`imbalance.imbalance_table`); ports have a table of tiers."""
    return [
        {
            "scope": scope,
            "members": str(row["members"]),
            "mean": percent(row["utilisation_mean"]),
            "busiest": percent(row["utilisation_busiest"]),
            "name": row["busiest"],
            "ratio": number(row["max_over_mean"]),
            "cv": number(row["cv"]),
            "jain": number(row["jain"]),
        }
        for scope, row in arm.summary.get("fabric_imbalance", {}).items()
        if not scope.startswith("ports, ")
    ]


def hot_port_rows(arm: ArmResult) -> list[dict[str, str]]:
    """The hottest switch ports, hottest first."""
    return [
        {
            "label": label,
            "tier": row["tier"],
            "share": percent(row["over_share"]),
            "load": percent(row["utilisation"]),
            "p50": short(row["backlog_p50_frames"]),
            "p95": short(row["backlog_p95_frames"]),
            "p99": short(row["backlog_p99_frames"]),
            "peak": short(row["backlog_peak_frames"]),
            "peak_s": f"{row['peak_s']:.2f}",
            "longest": f"{row['longest_over_s']:.2f} from {row['longest_over_start_s']:.2f}",
        }
        for label, row in list(arm.summary.get("fabric_hot_ports", {}).items())[:SHOWN]
    ]


def hot_summary(arm: ArmResult) -> str:
    """How many ports are hot, in a sentence."""
    hot, ports = len(arm.summary.get("fabric_hot_ports", {})), arm.summary["fabric_switch_ports"]
    more = f"; the {SHOWN} hottest are shown" if hot > SHOWN else ""
    return f"{hot} of {ports} switch ports are hot{more}."


def hot_rule(arm: ArmResult) -> str:
    """The rule, with the run's threshold."""
    threshold = arm.scenario.telemetry.backlog_threshold_frames
    least = f"{HOT_SHARE * 100:g} %"
    return f"A switch port is hot when it held {threshold} frames or more for at least {least} of the window."


def pause_rows(arms: Sequence[ArmResult]) -> list[dict[str, Any]]:
    """Would-be pauses by tier, a row a tier of switch ports with any, and the sum of each arm."""
    rows = []
    for arm in arms:
        tiers = {
            tier: row
            for tier, row in arm.summary.get("fabric_tiers", {}).items()
            if not tier.startswith("gpu ") and row.get("would_pauses")
        }
        rows.append(
            {
                "label": arm.label,
                "pauses": f"{arm.summary['fabric_would_pauses']:,}",
                "port_s": number(arm.summary["fabric_would_pause_port_s"]),
                "where": "; ".join(f"{tier} {number(row['would_pause_port_s'])} port-s" for tier, row in tiers.items())
                or NONE,
            }
        )
    return rows


def pause_note(arm: ArmResult) -> str:
    """What the thresholds stand for."""
    found = arm.summary["fabric_would_pause"]
    return (
        f"XOFF at {found['xoff_frames']} frames, XON at {found['xon_frames']}: at this scale XOFF stands for"
        f" {data_size(found['xoff_model_bytes'])} of model bytes, {short(found['xoff_asic_buffers'])} times the whole"
        f" buffer of a 51.2T ASIC (about {data_size(found['asic_buffer_bytes'])})."
    )


def scheduler_rows(arms: Sequence[ArmResult]) -> list[dict[str, str]]:
    """Hot leaves and hot ports met by handoffs, a row an arm with queues."""
    return [
        {
            "label": arm.label,
            "scheduler": str(arm.summary["hot_leaf_scheduler"]),
            "handoffs": f"{arm.summary['hot_leaf_handoffs']:,}",
            "any": percent(arm.summary["hot_leaf_any_share"]),
            "rate": percent(arm.summary["hot_leaf_hit_rate"]),
            "even": percent(arm.summary["hot_leaf_hit_rate_even"]),
            "ratio": number(arm.summary["hot_leaf_amplification"]),
            "port_rate": percent(arm.summary["hot_port_hit_rate"]),
            "port_even": percent(arm.summary["hot_port_hit_rate_even"]),
            "port_ratio": number(arm.summary["hot_port_amplification"]),
            "rate_bytes": percent(arm.summary["hot_leaf_hit_rate_bytes"]),
            "even_bytes": percent(arm.summary["hot_leaf_hit_rate_even_bytes"]),
            "ratio_bytes": number(arm.summary["hot_leaf_amplification_bytes"]),
            "reason": str(arm.summary["hot_leaf_reason"] or ""),
        }
        for arm in arms
        if arm.data.ports is not None and "hot_leaf_scheduler" in arm.summary
    ]


def queue_rows(arms: Sequence[ArmResult]) -> list[dict[str, Any]]:
    """The decode queue in figures: an arm each with a cell a state."""
    return [
        {
            "label": arm.label,
            "instances": str(arm.summary["decode_queue"]["instances"]),
            "cells": [
                " · ".join(short(arm.summary["decode_queue"][state][key]) for key in ("mean", "p95", "max"))
                for state in STATES
            ],
            "busiest": f"{arm.summary['decode_queue']['waiting']['busiest']}"
            f" ({short(arm.summary['decode_queue']['waiting']['busiest_mean'])})"
            if arm.summary["decode_queue"]["waiting"]["busiest_mean"]
            else NONE,
        }
        for arm in arms
        if arm.summary.get("decode_queue")
    ]
