"""The pictures of a diagnosis, one a question: pure functions to plotly figures, None for nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from analysis.congestion import KINDS
from analysis.diagnosis import PARTS, Diagnosis
from analysis.diagnosis_answers import PART_TEXT
from analysis.style import INK, STAGE_COLOURS, arm_colour, axis, finish
from analysis.what_if import WhatIf

PART_COLOURS = {
    "gateway": STAGE_COLOURS["arrival"],
    "prefill_wait": STAGE_COLOURS["prefill_waiting"],
    "prefill": STAGE_COLOURS["prefill_forward"],
    "decode_wait": STAGE_COLOURS["decode_alloc"],
    "isolated": "#f3c9a5",
    "sender": "#8c6bb1",
    "incast": "#d55e00",
    "avoidable": "#a50f15",
    "transport": "#7b8794",
    "first_step": STAGE_COLOURS["decode_first_step"],
}
KIND_COLOURS = {"incast": "#d55e00", "avoidable": "#a50f15", "one flow": "#7b8794"}
_BELOW = {"orientation": "h", "yanchor": "top", "y": -0.28, "xanchor": "left", "x": 0, "traceorder": "normal"}
_MOST_PORTS = 24


def parts(found: Diagnosis) -> go.Figure:
    """Mean TTFT of all and of the slowest as stacked bars; what the fabric took stands out."""
    rows = ((f"slowest {found.slowest}", found.slowest_ms), (f"all {found.completed}", found.all_ms))
    figure = go.Figure()
    for name in PARTS:
        figure.add_bar(
            y=[label for label, _ in rows],
            x=[max(0.0, values[name]) for _, values in rows],
            orientation="h",
            name=PART_TEXT[name],
            marker={"color": PART_COLOURS[name], "line": {"width": 0.5, "color": "#ffffff"}},
            hovertemplate="%{x:,.0f} ms " + PART_TEXT[name] + "<extra>%{y}</extra>",
        )
    return finish(
        figure, 270, barmode="stack", legend=_BELOW, bargap=0.35, margin={"l": 90, "r": 20, "t": 10, "b": 110},
        xaxis=axis("mean TTFT, ms of model time", tickformat=","), yaxis=axis("", showgrid=False),
    )  # fmt: skip


def port_loads(found: Diagnosis) -> go.Figure | None:
    """Load of every port that carried something, by group, sorted: a flat line is even, a cliff is a hot spot."""
    figure = go.Figure()
    groups = (("senders' NICs", found.loads.senders), ("between switches", found.loads.core),
              ("receivers' NICs", found.loads.receivers))  # fmt: skip
    for index, (name, group) in enumerate(groups):
        if not group.ports:
            continue
        order = sorted(group.by_port.items(), key=lambda item: -item[1])
        figure.add_scatter(
            x=[100 * (at + 0.5) / len(order) for at in range(len(order))],
            y=[100 * load for _, load in order],
            text=[port for port, _ in order],
            mode="lines+markers",
            line={"shape": "hvh", "width": 2, "color": arm_colour(index)},
            marker={"size": 5},
            name=f"{name} ({group.ports})",
            hovertemplate="%{text}: %{y:.1f} %<extra></extra>",
        )
    if not figure.data:
        return None
    return finish(
        figure, 320, xaxis=axis("ports of the group, busiest first, %", range=[0, 100]),
        yaxis=axis("load, % of goodput", rangemode="tozero"),
    )  # fmt: skip


def intervals(found: Diagnosis) -> go.Figure | None:
    """When each port was congested, and of which kind: the ports whose congestion cost most TTFT, worst on top."""
    cost: dict[str, float] = {}
    for item in found.congestion.intervals:
        cost[item.port] = cost.get(item.port, 0.0) + item.ttft_lost_ms + 1e-9 * (item.end_s - item.start_s)
    ports = sorted(cost, key=lambda name: -cost[name])[:_MOST_PORTS]
    if not ports:
        return None
    figure = go.Figure()
    for kind in KINDS:
        chosen = [item for item in found.congestion.intervals if item.kind == kind and item.port in ports]
        if not chosen:
            continue
        figure.add_bar(
            y=[item.port for item in chosen],
            x=[item.end_s - item.start_s for item in chosen],
            base=[item.start_s for item in chosen],
            orientation="h",
            name=kind,
            marker={"color": KIND_COLOURS[kind]},
            customdata=[
                [len(item.transfers), item.ttft_lost_ms, "" if math.isnan(item.peak_frames) else item.peak_frames]
                for item in chosen
            ],
            hovertemplate="%{y}: from %{base:.2f} s for %{x:.2f} s<br>%{customdata[0]} transfers, peak"
            " %{customdata[2]} frames, %{customdata[1]:,.0f} ms of TTFT<extra>" + kind + "</extra>",
        )
    return finish(
        figure, 130 + 20 * len(ports), barmode="overlay", margin={"l": 110, "r": 20, "t": 30, "b": 50},
        xaxis=axis("model time, s"),
        yaxis=axis("", categoryorder="array", categoryarray=ports[::-1], showgrid=False),
    )  # fmt: skip


def targets(found: Diagnosis) -> go.Figure | None:
    """Prompt tokens that each decode target was given, over the mean."""
    share = found.skew.share_by_target
    if not share:
        return None
    names = list(share)
    figure = go.Figure(
        go.Bar(x=names, y=[share[name] for name in names], marker={"color": arm_colour(1)},
               hovertemplate="%{x}: %{y:.2f} times the mean<extra></extra>")
    )  # fmt: skip
    figure.add_hline(y=1, line={"color": INK, "width": 1, "dash": "dot"})
    return finish(
        figure, 260, xaxis=axis("", type="category", showgrid=False),
        yaxis=axis("KV given, times the mean", rangemode="tozero"),
    )  # fmt: skip


def nic_rates(what_if: WhatIf | None) -> go.Figure | None:
    """Mean and P95 TTFT, simulated at other rates and on an infinite core."""
    if what_if is None:
        return None
    rows: Sequence[tuple[str, tuple[float, float]]] = (
        ("half the rate", what_if.half), ("as it is", what_if.same), ("double the rate", what_if.double),
        ("infinite core", what_if.core),
    )  # fmt: skip
    figure = go.Figure()
    for index, name in enumerate(("mean", "P95")):
        figure.add_bar(
            x=[label for label, _ in rows], y=[values[index] for _, values in rows], name=name,
            marker={"color": arm_colour(1), "opacity": (1.0, 0.4)[index]},
            hovertemplate="%{x}: " + name + " %{y:,.0f} ms<extra></extra>",
        )  # fmt: skip
    return finish(
        figure, 300, barmode="group", xaxis=axis("", showgrid=False),
        yaxis=axis("TTFT, ms (simulated)", rangemode="tozero", tickformat=","),
    )  # fmt: skip
