"""Charts of what was sampled beside requests: GPU time by state, and the decode queue over time. As `analysis.charts`:
pure functions from a comparison to a figure, None for nothing to draw."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.arms import ArmResult
from analysis.compare import Comparison
from analysis.decode_queue import STATES, Steps, total_steps
from analysis.port_series import Floats
from analysis.service import STATES as GPU_STATES
from analysis.style import BOUND_COLOUR, MUTED, arm_colour, arm_dash, axis, finish

GPU_TEXT = {
    "busy": "busy",
    "waiting_work": "waits for work",
    "waiting_kv": "waits for KV",
    "blocked": "blocked by held KV",
}
GPU_COLOURS = {"busy": "#3f6fa8", "waiting_work": "#dfe5ec", "waiting_kv": "#d55e00", "blocked": "#e8d27a"}
QUEUE_TEXT = {
    "waiting": "waiting for KV space or a slot",
    "receiving": "space reserved, KV on its way",
    "decoding": "decoding",
}
_MAX_BINS = 600
_BELOW = {"orientation": "h", "yanchor": "top", "y": -0.2, "xanchor": "left", "x": 0, "traceorder": "normal"}


def gpu_time_bars(comparison: Comparison) -> go.Figure | None:
    """Share of the window that the GPUs of a role were in each state: a stacked bar an arm and role."""
    rows = [
        (role, arm.label, arm.summary["gpu_time"][role]["shares"])
        for role in ("prefill", "decode")
        for arm in comparison.arms
        if role in arm.summary.get("gpu_time", {})
    ]
    if not rows:
        return None
    figure = go.Figure()
    names = [[role for role, _, _ in rows], [label for _, label, _ in rows]]
    for state in GPU_STATES:
        values = [100 * shares[state] for _, _, shares in rows]
        figure.add_bar(
            y=names,
            x=values,
            name=GPU_TEXT[state],
            orientation="h",
            marker={"color": GPU_COLOURS[state], "line": {"width": 0.5, "color": "#ffffff"}},
            text=[f"{value:.0f} %" if value >= 6 else "" for value in values],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            hovertemplate="%{x:.1f} % " + GPU_TEXT[state] + "<extra>%{y}</extra>",
        )
    return finish(
        figure,
        130 + 34 * len(rows),
        barmode="stack",
        bargap=0.3,
        legend={**_BELOW, "y": -52 / (70 + 34 * len(rows))},
        margin={"l": 60, "r": 20, "t": 10, "b": 50},
        xaxis=axis("share of the window, %", range=[0, 100.5]),
        yaxis=axis("", autorange="reversed", showgrid=False),
    )


def decode_queue_lines(comparison: Comparison) -> go.Figure | None:
    """Requests at all decode instances together over time, a panel a state, a line an arm."""
    arms = [(index, arm) for index, arm in enumerate(comparison.arms) if arm.summary.get("decode_queue")]
    if not arms:
        return None
    figure = make_subplots(
        rows=len(STATES),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.09,
        subplot_titles=[QUEUE_TEXT[state] for state in STATES],
    )
    for row, state in enumerate(STATES, start=1):
        for index, arm in arms:
            t_s, count = _binned(_steps(arm, state), arm.data.window.t_end_s)
            figure.add_scatter(
                x=np.round(t_s, 3),
                y=np.round(count, 3),
                name=arm.label,
                legendgroup=arm.label,
                showlegend=row == 1,
                mode="lines",
                line={
                    "color": BOUND_COLOUR if arm.is_bound else arm_colour(index),
                    "dash": "dot" if arm.is_bound else arm_dash(index),
                    "width": 1.4,
                    "shape": "hv",
                },
                hovertemplate="%{y:.1f} at %{x:.1f} s<extra>" + arm.label + "</extra>",
                row=row,
                col=1,
            )
        title = "model time, s" if row == len(STATES) else ""
        figure.update_xaxes(axis(title), row=row, col=1)
        figure.update_yaxes(axis("requests", rangemode="tozero"), row=row, col=1)
    for note in figure.layout.annotations:
        note.update(x=0, xanchor="left", font={"size": 12, "color": MUTED})
    return finish(figure, 520, legend={**_BELOW, "y": -0.12}, margin={"l": 60, "r": 20, "t": 30, "b": 50})


def _steps(arm: ArmResult, state: str) -> Steps:
    data = arm.data
    return total_steps(data.requests, state, data.window, data.scenario.serving.timeout_s)


def _binned(steps: Steps, end_s: float) -> tuple[Floats, Floats]:
    """Start and time mean of at most _MAX_BINS equal bins: exact steps where these are fewer."""
    if steps.t_s.size <= _MAX_BINS:
        return np.r_[steps.t_s, end_s], np.r_[steps.count, steps.count[-1:]].astype(np.float64)
    edges = np.linspace(float(steps.t_s[0]), end_s, _MAX_BINS + 1)
    area = np.r_[0.0, np.cumsum(steps.hold_s * steps.count)]
    at = np.interp(edges, np.r_[steps.t_s, end_s], area)
    return edges[:-1], np.diff(at) / np.diff(edges)
