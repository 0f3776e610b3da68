"""Plotly figures of curves, as plain data that the page and the report give to plotly.js.

plotly reads some HTML in labels (links, for one), so every text that comes from a run is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slm_lab.dashboard.curves import Axis, Curve, Values

AXIS_LABELS: dict[Axis, str] = {
    "frame": "frames",
    "wall_t": "wall time (s)",
    "opt_step": "optimiser steps",
}
COLUMN_LABELS = {
    "total_reward_ma": "return, moving average",
    "total_reward": "return",
    "fps": "frames per second",
    "lr": "learning rate",
    "explore_var": "exploration",
}
DASHES = ("solid", "dash", "dot")
MOST_RUNS = 21  # as many as colours and dashes can tell apart
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


@dataclass(frozen=True, slots=True)
class Theme:
    ink: str
    faint: str
    grid: str
    card: str
    colors: tuple[str, ...]


# Okabe and Ito's palette, told apart with any common form of colour blindness. Black, the eighth,
# is left out; light ones are darker on white and dark ones lighter on black, for a contrast of 3.
THEMES = {
    "light": Theme(
        ink="#1d2733",
        faint="#5b6875",
        grid="#e6eaef",
        card="#ffffff",
        colors=("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#C48600", "#3A9BD6", "#9C8B00"),
    ),
    "dark": Theme(
        ink="#e6ebf1",
        faint="#98a5b3",
        grid="#2b343f",
        card="#171d25",
        colors=("#4AA8E0", "#F07F3C", "#2CC59A", "#E095BF", "#F0B73D", "#8FD0F5", "#F0E442"),
    ),
}


@dataclass(frozen=True, slots=True)
class Trace:
    """A run in a figure: its label, its curve, and its place in the palette."""

    label: str
    curve: Curve
    place: int


def figure(
    traces: Sequence[Trace],
    *,
    y: str,
    x: Axis,
    theme: Theme,
    with_sessions: bool = False,
    target: float | None = None,
) -> dict[str, Any]:
    """Mean and band of each run; with `target` a dashed line at that height."""
    data: list[dict[str, Any]] = []
    for trace in traces:
        data += _run_traces(trace, theme, with_sessions=with_sessions)
    return {"data": data, "layout": _layout(traces, y, x, theme, target)}


def _run_traces(trace: Trace, theme: Theme, *, with_sessions: bool) -> list[dict[str, Any]]:
    color = theme.colors[trace.place % len(theme.colors)]
    dash = DASHES[trace.place // len(theme.colors) % len(DASHES)]
    curve, name = trace.curve, html.escape(trace.label)
    quiet = {"hoverinfo": "skip", "showlegend": False, "legendgroup": name}
    parts: list[dict[str, Any]] = []
    if len(curve.sessions) > 1:
        parts.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": _numbers(np.concatenate([curve.x, curve.x[::-1]])),
                "y": _numbers(np.concatenate([curve.high, curve.low[::-1]])),
                "fill": "toself",
                "fillcolor": _faded(color, 0.16),
                "line": {"width": 0},
                **quiet,
            }
        )
        if with_sessions:
            parts += [
                {
                    "type": "scatter",
                    "mode": "lines",
                    "x": _numbers(line.x),
                    "y": _numbers(line.y),
                    "line": {"width": 1, "color": _faded(color, 0.45)},
                    **quiet,
                }
                for line in curve.sessions
            ]
    parts.append(
        {
            "type": "scatter",
            # A line through one point draws nothing.
            "mode": "lines+markers" if len(curve.x) == 1 else "lines",
            "x": _numbers(curve.x),
            "y": _numbers(curve.mean),
            "name": name,
            "legendgroup": name,
            "line": {"width": 2.2, "color": color, "dash": dash},
            "hovertemplate": "%{y:.5g}",
        }
    )
    return parts


def _layout(
    traces: Sequence[Trace], y: str, x: Axis, theme: Theme, target: float | None
) -> dict[str, Any]:
    axis = {
        "gridcolor": theme.grid,
        "linecolor": theme.grid,
        "zeroline": False,
        "automargin": True,
        "tickfont": {"color": theme.faint, "size": 12},
        "title": {"font": {"color": theme.faint, "size": 12.5}, "standoff": 10},
    }
    layout: dict[str, Any] = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "color": theme.ink, "size": 13},
        "margin": {"l": 12, "r": 16, "t": 12, "b": 12},
        "hovermode": "x unified",
        "hoverlabel": {
            "bgcolor": theme.card,
            "bordercolor": theme.grid,
            "font": {"family": FONT, "color": theme.ink, "size": 12},
            "namelength": 48,
        },
        "showlegend": len(traces) > 1,
        "legend": {
            "orientation": "h",
            "yref": "container",
            "y": 0,
            "yanchor": "bottom",
            "x": 0,
            "font": {"size": 12},
        },
        "xaxis": _with_title(axis, AXIS_LABELS[x]) | {"showgrid": False},
        "yaxis": _with_title(axis, html.escape(COLUMN_LABELS.get(y, y))),
        # A zoom lasts while the run grows; another quantity starts afresh.
        "uirevision": f"{x}/{y}",
        "datarevision": 0,
        "shapes": [],
        "annotations": [],
    }
    return layout if target is None else layout | _target_line(target, theme)


def _target_line(target: float, theme: Theme) -> dict[str, Any]:
    line = {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": target,
        "y1": target,
        "line": {"color": theme.faint, "width": 1.2, "dash": "6px,4px"},
    }
    label = {
        "xref": "paper",
        "x": 0,  # where curves are still low
        "y": target,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "text": f"target {target:g}",
        "font": {"color": theme.faint, "size": 11.5},
    }
    return {"shapes": [line], "annotations": [label]}


def _with_title(axis: dict[str, Any], text: str) -> dict[str, Any]:
    return {**axis, "title": {**axis["title"], "text": text}}


def _faded(color: str, alpha: float) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def _numbers(values: Values) -> list[float]:
    """To seven digits, all that a table holds: JSON of half the size."""
    return [float(f"{value:.7g}") for value in values.tolist()]
