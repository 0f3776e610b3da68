"""Learning curves: static PNG, and one interactive HTML per trial that works offline.

A curve is a pandas Series of y indexed by x. Sessions are joined on x, not by position, so one that
stopped early thins out the mean from there on and does not shorten the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from slm_lab.analysis.metrics import MOVING_AVERAGE_WINDOW, moving_average

# Okabe and Ito's palette: told apart with any common form of colour blindness.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
MEAN_COLOR = PALETTE[0]
SESSION_COLOR = "#8A8A8A"

RETURN_LABEL = "mean return"
SMOOTH_LABEL = f"mean return, moving average of {MOVING_AVERAGE_WINDOW} checkpoints"


def curve(table: pd.DataFrame, y: str = "total_reward", *, smooth: bool = False) -> pd.Series:
    """One column of a session table against its frames; an infinite value leaves a gap."""
    values = table[y].where(np.isfinite(table[y])).to_numpy()
    if smooth:
        values = moving_average(values)
    return pd.Series(values, index=pd.Index(table["frame"], name="frame"), name=y)


def plot_session(
    table: pd.DataFrame, y: str, path: Path, *, title: str, smooth: bool = False
) -> None:
    """One column of a session against frames, as PNG."""
    if y == "total_reward":
        label = SMOOTH_LABEL if smooth else RETURN_LABEL
    else:
        label = y
    plot_curves([curve(table, y, smooth=smooth)], path, title=title, y_label=label)


def plot_trial(
    tables: Sequence[pd.DataFrame], path: Path, *, title: str, smooth: bool = False
) -> None:
    """Returns of all sessions, their mean and a band of one standard deviation, as PNG."""
    curves = [curve(table, smooth=smooth) for table in tables]
    plot_curves(curves, path, title=title, y_label=SMOOTH_LABEL if smooth else RETURN_LABEL)


def plot_curves(
    curves: Sequence[pd.Series], path: Path, *, title: str, y_label: str, x_label: str = "frames"
) -> None:
    """One curve as a line; several as thin lines under their mean and its band."""
    figure = Figure(figsize=(8, 5), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    mean, std = _mean_and_std(curves)
    if len(curves) > 1:
        for i, session in enumerate(curves):
            label = f"each of {len(curves)} sessions" if i == 0 else None
            axes.plot(
                session.index, session, color=SESSION_COLOR, linewidth=0.7, alpha=0.45, label=label
            )
        axes.fill_between(
            mean.index,
            mean - std,
            mean + std,
            color=MEAN_COLOR,
            alpha=0.2,
            linewidth=0,
            label="± 1 standard deviation",
        )
    # A line through one point draws nothing.
    marker = "o" if mean.notna().sum() == 1 else ""
    axes.plot(mean.index, mean, color=MEAN_COLOR, linewidth=2, marker=marker, label="mean")
    if len(curves) > 1:
        axes.legend(loc="best", frameon=False)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(visible=True, color="#E5E5E5", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def plot_trial_html(tables: Sequence[pd.DataFrame], path: Path, *, title: str) -> None:
    """The trial's returns to zoom and hover, with buttons for smooth and raw, in one file.

    plotly.js is inlined (over 4 MB), so the page opens anywhere, without a network.
    """
    figure = go.Figure()
    for smooth in (True, False):
        for trace in _html_traces([curve(table, smooth=smooth) for table in tables]):
            figure.add_trace(trace.update(visible=smooth))
    half = len(figure.data) // 2
    buttons = [
        _html_button("moving average", SMOOTH_LABEL, [True] * half + [False] * half),
        _html_button("raw", RETURN_LABEL, [False] * half + [True] * half),
    ]
    figure.update_layout(
        title=title,
        template="plotly_white",
        hovermode="x unified",
        xaxis_title="frames",
        yaxis_title=SMOOTH_LABEL,
        updatemenus=[
            {"type": "buttons", "direction": "left", "x": 1, "y": 1.12, "buttons": buttons}
        ],
    )
    figure.write_html(
        path, include_plotlyjs=True, div_id="trial_graph", config={"displaylogo": False}
    )


def _html_traces(curves: Sequence[pd.Series]) -> list[go.Scatter]:
    mean, std = _mean_and_std(curves)
    x = mean.index.to_numpy()
    sessions = [
        go.Scatter(
            x=session.index.to_numpy(),
            y=session.to_numpy(),
            name=f"session {i}",
            mode="lines",
            line={"width": 1, "color": PALETTE[(i + 1) % len(PALETTE)]},
            opacity=0.6,
        )
        for i, session in enumerate(curves)
    ]
    low, high = (
        go.Scatter(
            x=x,
            y=bound.to_numpy(),
            mode="lines",
            line={"width": 0},
            hoverinfo="skip",
            showlegend=False,
        )
        for bound in (mean - std, mean + std)
    )
    high.update(fill="tonexty", fillcolor="rgba(0, 114, 178, 0.2)", name="± 1 std", showlegend=True)
    line = go.Scatter(
        x=x, y=mean.to_numpy(), name="mean", mode="lines", line={"width": 3, "color": MEAN_COLOR}
    )
    return [low, high, *sessions, line]


def _html_button(label: str, y_label: str, visible: list[bool]) -> dict[str, object]:
    return {
        "label": label,
        "method": "update",
        "args": [{"visible": visible}, {"yaxis.title.text": y_label}],
    }


def _mean_and_std(curves: Sequence[pd.Series]) -> tuple[pd.Series, pd.Series]:
    """Over the sessions known at each x; where there is one, the std is 0."""
    # Gradient steps, as an x, stand still until learning starts: the latest row at an x counts.
    unique = [series[~series.index.duplicated(keep="last")] for series in curves]
    joined = pd.concat(unique, axis=1).sort_index()
    mean = joined.mean(axis=1)
    std = joined.std(axis=1).where(joined.count(axis=1) != 1, 0.0)
    return mean, std
