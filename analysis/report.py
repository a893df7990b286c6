"""The comparison as one HTML file that needs no network: charts, tables, and the code that draws them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from analysis import charts, telemetry_charts
from analysis import telemetry_tables as tables
from analysis.arms import ArmResult
from analysis.compare import Comparison
from analysis.formats import data_size, number, percent, short
from analysis.ports import tier_table
from analysis.requests import STAGE_SHORT, STAGE_TEXT
from results.writer import plain, write_text
from scenario.flow_workloads import FlowWorkload

_CONFIG = {"displaylogo": False, "responsive": True, "displayModeBar": False}


def figure_html(figure: go.Figure | None, name: str) -> Markup:
    """A figure as a part of a page; nothing for None."""
    if figure is None:
        return Markup("")
    text = figure.to_html(full_html=False, include_plotlyjs=False, include_mathjax=False, config=_CONFIG, div_id=name)
    return Markup(text)  # noqa: S704 - plotly's own output; labels in it are JSON, with < escaped


def _heatmaps(comparison: Comparison) -> list[dict[str, Any]]:
    arms = [arm for arm in comparison.runs if arm.data.ports is not None]
    top, span = charts.backlog_scale(arms) if arms else (1.0, (0.0, 1.0))
    found = []
    for index, arm in enumerate(arms):
        figure = charts.backlog_heatmap(arm, top, span)
        summary = arm.summary
        found.append(
            {
                "label": arm.label,
                "figure": figure_html(figure, f"backlog-{index}"),
                "peak": short(summary["fabric_backlog_peak_frames"]),
                "peak_bytes": data_size(summary["fabric_backlog_peak_bytes"]),
                "port": summary.get("fabric_backlog_peak_port", ""),
                "mean": short(summary["fabric_backlog_total_mean_frames"]),
            }
        )
    return found


def _timelines(comparison: Comparison) -> list[dict[str, Any]]:
    top = charts.slowest_ms(comparison.runs)
    sample = charts.sample_requests(comparison.runs[0])
    return [
        {"label": arm.label, "figure": figure_html(charts.timeline(arm, sample, top), f"timeline-{index}")}
        for index, arm in enumerate(comparison.runs)
    ]


def _tiers(arm: ArmResult) -> list[dict[str, str]]:
    if arm.data.ports is None:
        return []
    spread = arm.summary["fabric_imbalance"]
    return [
        {
            "tier": str(row["tier"]),
            "ports": str(row["ports"]),
            "busiest": percent(row["load_busiest"]),
            "port": str(row["busiest_port"]),
            "mean": percent(row["load_mean"]),
            "imbalance": number(row["imbalance"]),
            "cv": number(spread.get(f"ports, {row['tier']}", {}).get("cv")),
            "jain": number(spread.get(f"ports, {row['tier']}", {}).get("jain")),
        }
        for row in tier_table(arm.data.ports.table).to_dict("records")
    ]


def _queues(comparison: Comparison) -> dict[str, Any] | None:
    """What templates/queues.html.j2 shows; None without sampled queues."""
    arms = [arm for arm in comparison.runs if arm.data.ports is not None]
    if not arms:
        return None
    return {
        "imbalance": [(arm.label, tables.imbalance_rows(arm)) for arm in arms],
        "rule": tables.hot_rule(arms[0]),
        "hot": [(arm.label, tables.hot_summary(arm), tables.hot_port_rows(arm)) for arm in arms],
        "pause_note": tables.pause_note(arms[0]),
        "pauses": tables.pause_rows(arms),
        "scheduler": tables.scheduler_rows(arms),
    }


def _scenarios(comparison: Comparison) -> list[dict[str, str]]:
    return [
        {
            "label": arm.label,
            "path": str(arm.arm.path),
            "yaml": yaml.safe_dump(plain(arm.scenario.model_dump(mode="json")), sort_keys=False, width=100),
            "meta": _provenance(arm),
        }
        for arm in comparison.arms
    ]


def _provenance(arm: ArmResult) -> str:
    keys = ("zcube_version", "executor", "started_utc", "kernel", "ovs_version", "mininet", "controller")
    known = [f"{key.replace('_', ' ')} {arm.meta[key]}" for key in keys if arm.meta.get(key) is not None]
    return " · ".join(known)


def _made(arm: ArmResult) -> str:
    """Seed, size, day and machine of the first run: what a page must say of itself."""
    meta, workload = arm.meta, arm.scenario.workload
    what = "repeats" if isinstance(workload, FlowWorkload) else "requests"
    parts = [f"seed {meta.get('seed', arm.scenario.seed)}", f"{workload.requests:,} measured {what} an arm"]
    if meta.get("started_utc"):
        parts.append(str(meta["started_utc"])[:16].replace("T", " ") + " UTC")
    if meta.get("cpu_model"):
        parts.append(f"{meta['cpu_model']}, {meta.get('cores')} cores, kernel {meta.get('kernel')}")
    if meta.get("ovs_version"):
        parts.append(f"Open vSwitch {str(meta['ovs_version']).split()[-1]}")
    return " · ".join(parts)


def _title(labels: Sequence[str]) -> str:
    if len(labels) == 1:
        return labels[0]
    return f"{', '.join(labels[:-1])} and {labels[-1]} compared"


def render(comparison: Comparison, title: str = "") -> str:
    """The report as text: one HTML page with everything in it."""
    environment = Environment(
        loader=PackageLoader("analysis"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    labels = [arm.label for arm in comparison.runs]
    flows = comparison.flows
    draw, name = (charts.completion_cdf, "fct-cdf") if flows else (charts.ttft_cdf, "ttft-cdf")
    return environment.get_template("report.html.j2").render(
        title=title or _title(labels),
        comparison=comparison,
        first=comparison.runs[0],
        made=_made(comparison.runs[0]),
        plotly_js=Markup(get_plotlyjs()),  # noqa: S704 - the library's own code
        flows=flows,
        cdf=figure_html(draw(comparison), name),
        stages=figure_html(None if flows else charts.stage_split(comparison), "stages"),
        loads=figure_html(charts.link_loads(comparison), "loads"),
        heatmaps=_heatmaps(comparison),
        timelines=[] if flows else _timelines(comparison),
        tiers=[(arm.label, _tiers(arm)) for arm in comparison.runs if arm.data.ports is not None],
        queues=_queues(comparison),
        gpu_time=figure_html(None if flows else telemetry_charts.gpu_time_bars(comparison), "gpu-time"),
        decode_queue=figure_html(None if flows else telemetry_charts.decode_queue_lines(comparison), "decode-queue"),
        decode_rows=[] if flows else tables.queue_rows(comparison.arms),
        frame_bytes=data_size(comparison.runs[0].data.scale.model_bytes_per_frame),
        scenarios=_scenarios(comparison),
        stage_texts=[(STAGE_SHORT[stage], text) for stage, text in STAGE_TEXT.items()],
    )


def write_report(comparison: Comparison, path: Path, title: str = "") -> Path:
    """Writes the report as a whole and returns its path."""
    write_text(path, render(comparison, title))
    return path
