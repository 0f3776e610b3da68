"""Graphs of a search: PNG, and one interactive HTML that works offline.

A trial that diverged or failed has the score of a random policy; it is drawn hollow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from slm_lab.analysis.plot import MEAN_COLOR, RETURN_LABEL, SESSION_COLOR, SMOOTH_LABEL

SCORE_LABEL = "score (total_reward_ma)"
COLORS = "viridis"  # even in grey, and to most eyes
GRAPHS_PER_ROW = 3


@dataclass(frozen=True, slots=True)
class Axis:
    """A searched key as a graph shows it."""

    path: str
    is_log: bool
    is_choice: bool

    @property
    def label(self) -> str:
        """Without the words that every path shares: `algorithm.gamma`, `optim_spec.lr`."""
        return ".".join(self.path.split(".")[-2:])


def plot_scatter(table: pd.DataFrame, axes: Sequence[Axis], path: Path, *, title: str) -> None:
    """The score against each key, one graph per key."""
    columns = min(GRAPHS_PER_ROW, len(axes))
    rows = -(-len(axes) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.4 * rows), dpi=100, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    is_fit = table["status"].isin(["completed", "stopped"])
    color, style = _colors(table), {"edgecolors": "#444444", "linewidths": 0.6, "s": 36}
    for graph, axis in zip(grid, axes, strict=False):
        x, ticks = _positions(table, axis)
        graph.scatter(x[is_fit], table["score"][is_fit], c=color[is_fit], **style)
        graph.scatter(x[~is_fit], table["score"][~is_fit], c="none", **style)
        if axis.is_log:
            graph.set_xscale("log")
        if ticks:
            graph.set_xticks(range(len(ticks)), ticks, fontsize=8)
            graph.set_xlim(-0.5, len(ticks) - 0.5)
        graph.set_xlabel(axis.label)
        graph.grid(alpha=0.3)
    for row in range(rows):
        grid[row * columns].set_ylabel(SCORE_LABEL)
    for unused in grid[len(axes) :]:
        unused.set_visible(False)
    figure.suptitle(f"{title}: {len(table)} trials")
    figure.savefig(path)


def plot_parallel(table: pd.DataFrame, axes: Sequence[Axis], path: Path, *, title: str) -> None:
    """Each trial a line through its values, the colour its score: what good trials share."""
    figure = Figure(figsize=(2.2 * len(axes) + 3, 4.5), dpi=100, layout="constrained")
    graph = figure.add_subplot()
    heights = np.stack([_height(table, axis) for axis in axes] + [_score_height(table)], axis=1)
    color = _colors(table)
    for row in np.argsort(table["score"].to_numpy()):  # the best on top
        graph.plot(range(len(axes) + 1), heights[row], color=color[row], linewidth=1.5, alpha=0.8)
    for i, axis in enumerate(axes):
        graph.axvline(i, color="#888888", linewidth=0.8)
        _label_ends(graph, i, *_ends(table, axis))
    graph.axvline(len(axes), color="#888888", linewidth=0.8)
    _label_ends(graph, len(axes), f"{table['score'].min():.4g}", f"{table['score'].max():.4g}")
    graph.set_xticks(range(len(axes) + 1), [*(axis.label for axis in axes), "score"])
    graph.set_yticks([])
    graph.set_ylim(-0.12, 1.12)
    for side in ("top", "right", "left", "bottom"):
        graph.spines[side].set_visible(False)
    scale = Normalize(table["score"].min(), table["score"].max())
    figure.colorbar(ScalarMappable(scale, COLORS), ax=graph, label=SCORE_LABEL)
    graph.set_title(title)
    figure.savefig(path)


def plot_importance(share: Mapping[str, float], path: Path, *, title: str) -> None:
    """How much of the spread of the scores each key explains, the most on top."""
    ordered = sorted(share.items(), key=lambda item: -np.nan_to_num(item[1]))
    figure = Figure(figsize=(7, 0.5 * len(ordered) + 1.6), dpi=100, layout="constrained")
    graph = figure.add_subplot()
    labels = [label for label, _ in ordered]
    values = [float(np.nan_to_num(value)) for _, value in ordered]
    graph.barh(labels, values, color=MEAN_COLOR)
    for y, (_, value) in enumerate(ordered):
        text = "too few trials" if np.isnan(value) else f"{value:.0%}"
        graph.text(np.nan_to_num(value) + 0.01, y, text, va="center", fontsize=9)
    graph.invert_yaxis()
    graph.set_xlim(0, 1.1)
    graph.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    graph.set_xlabel("share of the spread of the scores that this key alone explains")
    graph.set_title(f"{title}: importance")
    figure.savefig(path)


def plot_trials(
    curves: Mapping[int, pd.Series],
    scores: Mapping[int, float],
    path: Path,
    *,
    title: str,
    smooth: bool,
) -> None:
    """The mean curve of every trial; the best by score stands out."""
    figure = Figure(figsize=(8, 5), dpi=100, layout="constrained")
    graph = figure.add_subplot()
    best = max(curves, key=lambda trial: scores[trial], default=None)
    for trial, line in curves.items():
        is_best = trial == best
        graph.plot(
            line.index,
            line,
            color=MEAN_COLOR if is_best else SESSION_COLOR,
            linewidth=2 if is_best else 0.9,
            alpha=1 if is_best else 0.6,
            zorder=3 if is_best else 2,
            marker="o" if len(line) == 1 else "",
            label=f"trial {trial}, the best of {len(curves)} in this search" if is_best else None,
        )
    graph.set_title(title)
    graph.set_xlabel("frames")
    graph.set_ylabel(SMOOTH_LABEL if smooth else RETURN_LABEL)
    graph.xaxis.set_major_formatter(EngFormatter(sep=""))
    graph.grid(alpha=0.3)
    if curves:
        graph.legend(loc="best", fontsize=8)
    figure.savefig(path)


def plot_search_html(
    table: pd.DataFrame,
    axes: Sequence[Axis],
    share: Mapping[str, float],
    path: Path,
    *,
    title: str,
) -> None:
    """Parallel coordinates, the score against each key, and importance, on one page.

    plotly.js is inlined once (over 4 MB), so the page opens anywhere, without a network.
    """
    figures = [_parallel_html(table, axes, title), *_scatter_html(table, axes), _bars_html(share)]
    parts = [
        figure.to_html(
            full_html=False,
            include_plotlyjs=i == 0,
            div_id=f"search_graph_{i}",
            config={"displaylogo": False},
        )
        for i, figure in enumerate(figures)
    ]
    head = f'<!DOCTYPE html><html><head><meta charset="utf-8"><title>{title}</title></head>'
    path.write_text(f"{head}<body>{''.join(parts)}</body></html>\n")


def _parallel_html(table: pd.DataFrame, axes: Sequence[Axis], title: str) -> go.Figure:
    dims = [_html_dimension(table, axis) for axis in axes]
    dims.append({"label": "score", "values": table["score"].to_numpy()})
    line = {"color": table["score"].to_numpy(), "colorscale": "Viridis", "showscale": True}
    return go.Figure(go.Parcoords(line=line, dimensions=dims)).update_layout(
        title=f"{title}: drag along an axis to select trials", template="plotly_white"
    )


def _html_dimension(table: pd.DataFrame, axis: Axis) -> dict[str, Any]:
    x, ticks = _positions(table, axis)
    if ticks:
        marks = {"tickvals": list(range(len(ticks))), "ticktext": ticks}
        return {"label": axis.label, "values": x.to_numpy(), **marks}
    if axis.is_log:
        logs = np.log10(x.to_numpy(dtype=np.float64))
        marks = {"tickvals": logs, "ticktext": [f"{value:.3g}" for value in x]}
        return {"label": f"{axis.label} (log)", "values": logs, **marks}
    return {"label": axis.label, "values": x.to_numpy()}


def _scatter_html(table: pd.DataFrame, axes: Sequence[Axis]) -> list[go.Figure]:
    text = [f"trial {row.trial}, {row.status}" for row in table.itertuples()]
    figures = []
    for axis in axes:
        x = table[axis.path].map(str) if axis.is_choice else table[axis.path]
        marker = {"color": table["score"].to_numpy(), "colorscale": "Viridis", "size": 9}
        points = go.Scatter(x=x, y=table["score"], mode="markers", text=text, marker=marker)
        figure = go.Figure(points).update_layout(
            template="plotly_white",
            height=360,
            xaxis_title=axis.label,
            yaxis_title=SCORE_LABEL,
            xaxis_type="category" if axis.is_choice else "log" if axis.is_log else "linear",
        )
        figures.append(figure)
    return figures


def _bars_html(share: Mapping[str, float]) -> go.Figure:
    ordered = sorted(share.items(), key=lambda item: np.nan_to_num(item[1]))
    bars = go.Bar(
        x=[float(np.nan_to_num(value)) for _, value in ordered],
        y=[label for label, _ in ordered],
        orientation="h",
        marker={"color": MEAN_COLOR},
    )
    return go.Figure(bars).update_layout(
        title="importance: share of the spread of the scores that a key alone explains",
        template="plotly_white",
        height=120 + 40 * len(ordered),
        xaxis={"range": [0, 1], "tickformat": ".0%"},
    )


def _positions(table: pd.DataFrame, axis: Axis) -> tuple[pd.Series, list[str]]:
    """Where trials are along an axis; a choice takes places 0, 1, ... with these names."""
    values = table[axis.path]
    if not axis.is_choice:
        return values.astype("float64"), []
    names = values.map(str)
    options = sorted(names.unique())
    return names.map({name: float(i) for i, name in enumerate(options)}), options


def _height(table: pd.DataFrame, axis: Axis) -> np.ndarray:
    """Along an axis from 0 at the bottom to 1 on top, on the axis' own scale."""
    x = _positions(table, axis)[0].to_numpy(dtype=np.float64)
    return _unit(np.log(x) if axis.is_log else x)


def _score_height(table: pd.DataFrame) -> np.ndarray:
    return _unit(table["score"].to_numpy(dtype=np.float64))


def _unit(x: np.ndarray) -> np.ndarray:
    spread = x.max() - x.min()
    return (x - x.min()) / spread if spread > 0 else np.full_like(x, 0.5)


def _ends(table: pd.DataFrame, axis: Axis) -> tuple[str, str]:
    x, ticks = _positions(table, axis)
    return (ticks[0], ticks[-1]) if ticks else (f"{x.min():.3g}", f"{x.max():.3g}")


def _label_ends(graph: Axes, at: int, low: str, high: str) -> None:
    style: dict[str, Any] = {"ha": "center", "fontsize": 8}
    graph.text(at, -0.04, low, va="top", **style)
    graph.text(at, 1.04, high, va="bottom", **style)


def _colors(table: pd.DataFrame) -> np.ndarray:
    return np.asarray(colormaps[COLORS](_score_height(table)))
