"""Colours and the common layout of charts: calm, safe for colour-blind readers, legible in print."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
INK, MUTED, GRID = "#1f2933", "#616e7c", "#e4e7eb"
#: Arms in order: colours from Okabe and Ito's palette, and a dash each, for print.
ARM_COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
ARM_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "solid")
BOUND_COLOUR = "#7b8794"
STAGE_COLOURS = {
    "arrival": "#cbd2d9",
    "prefill_waiting": "#b3c7de",
    "prefill_forward": "#3f6fa8",
    "decode_alloc": "#e8d27a",
    "kv_transfer": "#d55e00",
    "decode_waiting": "#a8d5c2",
    "decode_first_step": "#2f8f6f",
}
#: White for nothing, then fast to visible: position is the share of the greatest backlog of all arms.
HEAT = (
    (0.0, "#ffffff"),
    (0.002, "#fdeadb"),
    (0.03, "#fbc99b"),
    (0.12, "#f0924f"),
    (0.35, "#c8501e"),
    (0.7, "#7f2a17"),
    (1.0, "#3b0f0f"),
)


def arm_colour(index: int) -> str:
    """Colour of the arm with this index among the runs."""
    return ARM_COLOURS[index % len(ARM_COLOURS)]


def arm_dash(index: int) -> str:
    """Line pattern of the arm with this index among the runs."""
    return ARM_DASHES[index % len(ARM_DASHES)]


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with a light grid and a title that names the unit."""
    return {
        "title": {"text": title, "font": {"size": 12, "color": MUTED}, "standoff": 8},
        "gridcolor": GRID,
        "zeroline": False,
        "linecolor": "#9aa5b1",
        "tickfont": {"size": 11, "color": INK},
        "automargin": True,
        **more,
    }


def finish(figure: go.Figure, height: int, **layout: Any) -> go.Figure:
    """Gives a figure the common look."""
    defaults: dict[str, Any] = {
        "height": height,
        "margin": {"l": 60, "r": 20, "t": 40, "b": 50},
        "font": {"family": FONT, "size": 12, "color": INK},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "xanchor": "left", "x": 0},
        "hoverlabel": {"font": {"family": FONT}},
    }
    figure.update_layout(**(defaults | layout))
    return figure
