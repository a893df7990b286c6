"""The charts of the report: each a pure function from a comparison to a plotly figure, None for nothing to
draw."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis import requests as rq
from analysis.arms import ArmResult
from analysis.compare import Comparison
from analysis.flows import completion_ms
from analysis.metrics import slowest_requests
from analysis.ports import tier_rank
from analysis.style import (
    BOUND_COLOUR,
    GRID,
    HEAT,
    INK,
    MUTED,
    STAGE_COLOURS,
    arm_colour,
    arm_dash,
    axis,
    finish,
)

_MAX_POINTS = 1500
_SLOWEST, _SAMPLE = 12, 12
_LEGEND_BELOW = {
    "orientation": "h",
    "yanchor": "top",
    "y": -0.17,
    "xanchor": "left",
    "x": 0,
    "traceorder": "normal",
}


def ttft_cdf(comparison: Comparison) -> go.Figure | None:
    """Share of completed requests with at most this TTFT, a line an arm, the bound in grey."""
    values = [rq.ttft_ms(rq.completed(arm.data.requests)) for arm in comparison.arms]
    return _cdf(comparison, values, "TTFT", "requests")


def completion_cdf(comparison: Comparison) -> go.Figure | None:
    """The same of flow completion times, where messages were played."""
    values = [completion_ms(arm.data.requests, arm.data.transfers)["fct_ms"].dropna() for arm in comparison.arms]
    return _cdf(comparison, values, "flow completion time", "flows")


def _cdf(comparison: Comparison, columns: Sequence[pd.Series[float]], what: str, of: str) -> go.Figure | None:
    figure = go.Figure()
    spread: list[float] = []
    for index, arm in enumerate(comparison.arms):
        values = np.sort(columns[index].to_numpy(dtype=np.float64))
        if not values.size:
            continue
        spread += [float(values[0]), float(values[-1])]
        share = np.arange(1, values.size + 1) / values.size * 100
        if values.size > _MAX_POINTS:
            keep = np.unique(np.linspace(0, values.size - 1, _MAX_POINTS).astype(int))
            values, share = values[keep], share[keep]
        figure.add_scatter(
            x=np.round(values, 3),
            y=np.round(share, 3),
            name=f"{arm.label}{' (reference)' if arm.is_bound else ''}",
            mode="lines",
            line={
                "color": BOUND_COLOUR if arm.is_bound else arm_colour(index),
                "dash": "dot" if arm.is_bound else arm_dash(index),
                "width": 2,
                "shape": "hv",
            },
            hovertemplate="%{y:.1f} % within %{x:,.0f} ms<extra>" + arm.label + "</extra>",
        )
    if not spread:
        return None
    low, high = min(spread), max(spread)
    log = low > 0 and high / low > 30
    scale = axis(f"{what}, ms of model time" + (" (log scale)" if log else ""), type="log" if log else "linear")
    if log:
        ticks = _log_ticks(low, high)
        scale |= {"tickvals": ticks, "ticktext": [f"{t:,g}" for t in ticks]}
    for level in (50, 90, 99):
        figure.add_hline(y=level, line={"color": "#cbd2d9", "width": 1, "dash": "dot"})
    tick_levels = [0, 25, 50, 75, 90, 99]
    return finish(
        figure,
        430,
        xaxis=scale,
        yaxis=axis(f"{of}, %", range=[0, 101], tickvals=tick_levels),
        hovermode="closest",
    )


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10.0**p for p in powers for m in (1, 2, 5) if low * 0.8 <= m * 10.0**p <= high * 1.2]


def stage_split(comparison: Comparison) -> go.Figure | None:
    """Where TTFT goes: mean over all completed requests and over the slowest 5 %, an arm each."""
    arms = [arm for arm in comparison.arms if arm.summary["completed"]]
    if not arms:
        return None
    rows = [(f"{arm.label}, all", arm.summary["mean_stage_ms"]) for arm in arms]
    slow = [(f"{arm.label}, slowest 5 %", arm.summary["slowest_stage_ms"]) for arm in arms]
    figure = make_subplots(
        rows=2,
        cols=1,
        vertical_spacing=0.24,
        subplot_titles=("Mean of all completed requests", "Mean of the slowest 5 %"),
    )
    for place, block in enumerate((rows, slow), start=1):
        names = [name.rsplit(",", 1)[0] for name, _ in block]
        for stage in rq.TTFT_STAGES:
            values = [split[stage] for _, split in block]
            figure.add_bar(
                y=names,
                x=values,
                name=rq.STAGE_SHORT[stage],
                legendgroup=stage,
                showlegend=place == 1,
                orientation="h",
                marker={"color": STAGE_COLOURS[stage], "line": {"width": 0.5, "color": "#ffffff"}},
                hovertemplate="%{x:,.1f} ms " + rq.STAGE_SHORT[stage] + "<extra>%{y}</extra>",
                row=place,
                col=1,
            )
        totals = [sum(split.values()) for _, split in block]
        figure.add_scatter(
            x=totals,
            y=names,
            mode="text",
            text=[f" {total:,.0f} ms" for total in totals],
            textposition="middle right",
            textfont={"size": 11, "color": INK},
            showlegend=False,
            hoverinfo="skip",
            cliponaxis=False,
            row=place,
            col=1,
        )
        figure.update_xaxes(axis("ms of model time", tickformat=",", range=[0, max(totals) * 1.12]), row=place, col=1)
        figure.update_yaxes(axis("", autorange="reversed"), row=place, col=1)
    _small_titles(figure)
    return finish(figure, 300 + 55 * len(arms), barmode="stack", legend=_LEGEND_BELOW, bargap=0.35)


def _small_titles(figure: go.Figure) -> None:
    """Subplot titles on the left, small."""
    for note in figure.layout.annotations:
        note.update(x=0, xanchor="left", font={"size": 12, "color": MUTED})


def backlog_heatmap(arm: ArmResult, zmax: float, span_s: tuple[float, float]) -> go.Figure | None:
    """Backlog in front of every switch port over time, tiers from top to bottom in the order of a transfer's
    way; each cell is the greatest backlog in its time bin. `zmax` and `span_s` are the same for all arms."""
    if arm.data.ports is None or not arm.data.ports.backlog.ports:
        return None
    backlog = arm.data.ports.backlog
    rounded = np.round(backlog.frames)
    narrow = np.uint16 if rounded.max(initial=0) < 65_536 else np.uint32
    figure = go.Figure(
        go.Heatmap(
            z=rounded.astype(narrow),
            x0=float(backlog.bin_start_s[0]),
            dx=float(np.diff(backlog.bin_start_s[:2])[0]) if backlog.bin_start_s.size > 1 else 1.0,
            y=[port.label for port in backlog.ports],
            zmin=0,
            zmax=zmax,
            colorscale=[list(stop) for stop in HEAT],
            colorbar={
                "title": {"text": "frames", "side": "right", "font": {"size": 11, "color": MUTED}},
                "thickness": 12,
                "tickfont": {"size": 11},
                "outlinewidth": 0.5,
                "outlinecolor": "#9aa5b1",
            },
            hovertemplate="%{y}<br>%{x:.2f} s: %{z} frames<extra></extra>",
        )
    )
    tiers = [port.tier for port in backlog.ports]
    starts = [i for i, tier in enumerate(tiers) if i == 0 or tiers[i - 1] != tier]
    ends = [*starts[1:], len(tiers)]
    for start in starts[1:]:
        figure.add_hline(y=start - 0.5, line={"color": "#9aa5b1", "width": 1})
    ticks = [(start + end - 1) / 2 for start, end in zip(starts, ends, strict=True)]
    labels = [f"{tiers[start]}<br>{end - start} ports" for start, end in zip(starts, ends, strict=True)]
    scale = axis("", tickmode="array", tickvals=ticks, ticktext=labels, showgrid=False, ticklen=0)
    scale |= {"range": [len(tiers) - 0.5, -0.5], "type": "category", "showline": True, "mirror": True}
    return finish(
        figure,
        150 + max(3 * len(tiers), 150),
        margin={"l": 110, "r": 20, "t": 10, "b": 50},
        yaxis=scale,
        xaxis=axis("model time, s", range=list(span_s), showgrid=False, showline=True, mirror=True),
    )


def backlog_scale(arms: Sequence[ArmResult]) -> tuple[float, tuple[float, float]]:
    """The greatest backlog of any arm in frames, and the time span that all arms cover: common to all
    heatmaps."""
    grids = [arm.data.ports.backlog for arm in arms if arm.data.ports is not None]
    top = max((float(grid.frames.max(initial=0)) for grid in grids), default=0.0)
    windows = [arm.data.window for arm in arms]
    return max(top, 1.0), (min(w.t_start_s for w in windows), max(w.t_end_s for w in windows))


def link_loads(comparison: Comparison) -> go.Figure | None:
    """Load of every port by tier: a bar for the mean, a dot a port, so that imbalance is seen."""
    arms = [arm for arm in comparison.runs if arm.data.ports is not None]
    if not arms:
        return None
    figure = go.Figure()
    names: list[str] = []
    random = np.random.default_rng(0)
    for index, arm in enumerate(comparison.runs):
        if arm.data.ports is None:
            continue
        table = arm.data.ports.table
        table = table[table["load"].notna()]
        groups = sorted(table.groupby("tier", sort=False), key=lambda item: tier_rank(str(item[0])))
        rows = [f"{arm.label}: {tier}" for tier, _ in groups]
        means = [float(group["load"].mean()) * 100 for _, group in groups]
        figure.add_bar(
            x=means,
            y=np.arange(len(names), len(names) + len(rows)),
            orientation="h",
            name=f"{arm.label}, mean",
            showlegend=False,
            marker={"color": arm_colour(index), "opacity": 0.28},
            width=0.62,
            hovertemplate="mean %{x:.2f} %<extra></extra>",
        )
        place = np.concatenate(
            [np.full(len(group), len(names) + i) for i, (_, group) in enumerate(groups)]
        ) + random.uniform(-0.24, 0.24, len(table))
        figure.add_scatter(
            x=np.round(np.concatenate([group["load"].to_numpy(dtype=np.float64) for _, group in groups]) * 100, 3),
            y=np.round(place, 3),
            mode="markers",
            name=arm.label,
            showlegend=False,
            marker={"size": 5, "color": arm_colour(index), "opacity": 0.75},
            text=[label for _, group in groups for label in group["label"]],
            hovertemplate="%{text}: %{x:.2f} %<extra></extra>",
        )
        names += rows
        if index < len(comparison.runs) - 1:
            figure.add_hline(y=len(names) - 0.5, line={"color": GRID, "width": 1})
    return finish(
        figure,
        110 + 26 * len(names),
        margin={"l": 60, "r": 20, "t": 10, "b": 50},
        xaxis=axis("load, % of the configured rate, over the window", rangemode="tozero"),
        yaxis=axis(
            "",
            tickvals=list(range(len(names))),
            ticktext=names,
            range=[len(names) - 0.5, -0.5],
            showgrid=False,
        ),
    )


def sample_requests(arm: ArmResult) -> list[tuple[int, int]]:
    """(session, turn) of completed requests at even ranks of TTFT in this arm, slowest first."""
    done = rq.completed(arm.data.requests)
    order = rq.ttft_ms(done).sort_values(ascending=False, kind="stable").index[_SLOWEST:]
    if not len(order):
        return []
    ranks = np.unique(np.linspace(0, len(order) - 1, min(_SAMPLE, len(order))).astype(int))
    rows = done.loc[[order[rank] for rank in ranks]]
    return [(int(s), int(t)) for s, t in zip(rows["session_id"], rows["turn"], strict=True)]


def timeline(arm: ArmResult, sample: Sequence[tuple[int, int]], slowest_top_ms: float) -> go.Figure | None:
    """Stages of single requests as stacked bars from their arrival: the slowest of this arm, and the sample,
    which is the same for all arms. Labels: session, turn, prompt tokens."""
    done = rq.completed(arm.data.requests)
    if done.empty:
        return None
    slow = done.loc[rq.ttft_ms(done).sort_values(ascending=False, kind="stable").index[:_SLOWEST]]
    by_name = done.drop_duplicates(["session_id", "turn"]).set_index(["session_id", "turn"], drop=False)
    sampled = by_name.loc[[name for name in sample if name in by_name.index]]
    figure = make_subplots(
        rows=1,
        cols=2,
        horizontal_spacing=0.16,
        subplot_titles=(f"The {len(slow)} slowest here", "A sample, the same requests for every fabric"),
    )
    for column, rows in ((1, slow), (2, sampled)):
        if rows.empty:
            continue
        split = rq.stage_seconds(rows)[list(rq.TTFT_STAGES)] * 1e3
        names = _request_names(rows)
        for stage in rq.TTFT_STAGES:
            figure.add_bar(
                y=names,
                x=np.round(split[stage].to_numpy(dtype=np.float64), 2),
                orientation="h",
                name=rq.STAGE_SHORT[stage],
                legendgroup=stage,
                showlegend=column == 1,
                marker={"color": STAGE_COLOURS[stage]},
                hovertemplate="%{x:,.1f} ms " + rq.STAGE_SHORT[stage] + "<extra>%{y}</extra>",
                row=1,
                col=column,
            )
        figure.update_yaxes(axis("", autorange="reversed", type="category"), row=1, col=column)
        span = {"range": [0, slowest_top_ms * 1.02]} if column == 1 else {"rangemode": "tozero"}
        figure.update_xaxes(axis("ms after arrival", tickformat=",", **span), row=1, col=column)
    _small_titles(figure)
    for note, start in zip(figure.layout.annotations, (0.0, 0.58), strict=True):
        note.update(x=start)
    return finish(figure, 400, barmode="stack", legend=_LEGEND_BELOW, bargap=0.25)


def _request_names(rows: pd.DataFrame) -> list[str]:
    return [
        f"s{session} t{turn} · {tokens / 1000:.0f}k"
        for session, turn, tokens in zip(rows["session_id"], rows["turn"], rows["input_tokens"], strict=True)
    ]


def slowest_ms(arms: Sequence[ArmResult]) -> float:
    """The greatest TTFT of any arm: the common time axis of the timelines."""
    tops = []
    for arm in arms:
        done = rq.completed(arm.data.requests)
        if not done.empty:
            tops.append(float(rq.ttft_ms(done).loc[slowest_requests(done)[0]]))
    return max(tops, default=1.0)
