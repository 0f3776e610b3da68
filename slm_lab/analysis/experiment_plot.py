"""Graphs of a search: PNG files, and one interactive HTML page.

A trial that diverged or failed has the score of a random policy; it is drawn hollow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from numpy.typing import ArrayLike

from slm_lab.analysis import plot
from slm_lab.analysis.curves import (
    FRAMES,
    XAxis,
    common_axes,
    curve,
    mean_and_std,
    return_label,
    thinned,
)
from slm_lab.analysis.experiment import Axis, axes_of, importance
from slm_lab.analysis.plot import Panel, View, numbers
from slm_lab.analysis.style import MEAN_COLOR, SCORE_COLORS, SESSION_COLOR
from slm_lab.analysis.tables import read_session
from slm_lab.runs.files import make_folder
from slm_lab.runs.layout import RunLayout
from slm_lab.spec import Spec
from slm_lab.spec.algorithm import algorithm_label

SCORE_LABEL = "score (total_reward_ma)"
GRAPHS_PER_ROW = 3
POINTS_PER_TRIAL = 200

Trial = Sequence[pd.DataFrame]  # one table per session


def plot_experiment(paths: RunLayout, spec: Spec, table: pd.DataFrame) -> None:
    """Draw the score against each key, parallel coordinates, importance and all learning curves."""
    algorithm = algorithm_label(spec.agent.algorithm.name, spec.agent.memory.name)
    axes, title = axes_of(spec), f"{algorithm} on {spec.env.name} · {paths.name}"
    if table.empty:
        return
    share = importance(table, axes)
    make_folder(paths.predir, paths.experiment_graph().parent)  # and refuse a link there
    plot_scatter(table, axes, paths.experiment_graph(), title=title)
    plot_parallel(table, axes, paths.experiment_graph("parallel"), title=title)
    plot_importance(share, paths.experiment_graph("importance"), title=title)
    for kind in ("", "parallel", "importance"):
        plot.copy_graph(paths.experiment_graph(kind), paths.experiment_graph_copy(kind))
    scores = dict(zip(table["trial"], table["score"], strict=True))
    trials = {trial: found for trial in scores if (found := _read_trial(paths, trial))}
    for y, smooth in (("mean_returns", False), ("mean_returns_ma", True)):
        curves = {trial: _trial_curve(tables, FRAMES, smooth) for trial, tables in trials.items()}
        plot_trials(curves, scores, paths.multi_trial_graph(y), title=title, smooth=smooth)
        plot.copy_graph(paths.multi_trial_graph(y), paths.multi_trial_graph_copy(y))
    views = [_parallel_view(table, axes), *(_scatter_view(table, axis) for axis in axes)]
    panels = [Panel({(): view}) for view in [*views, _bars_view(share)]]
    panels += [_trials_panel(trials, scores)] * bool(trials)
    page = paths.experiment_graph_html()
    plot.write_page(page, f"{title}: {len(table)} trials", panels, home=page.parent)


def plot_scatter(table: pd.DataFrame, axes: Sequence[Axis], path: Path, *, title: str) -> None:
    """The score against each key, one graph per key."""
    columns = min(GRAPHS_PER_ROW, len(axes))
    rows = -(-len(axes) // columns)
    figure, grid = plot.new_grid(len(axes), columns, (4.2 * columns, 3.4 * rows))
    is_fit = table["status"].isin(["completed", "stopped"])
    color = _colors(table)
    style: dict[str, Any] = {"edgecolors": "#444444", "linewidths": 0.6, "s": 36}
    for graph, axis in zip(grid, axes, strict=True):
        x, ticks = _positions(table, axis)
        graph.scatter(x[is_fit], table["score"][is_fit], c=color[is_fit], **style)
        graph.scatter(x[~is_fit], table["score"][~is_fit], c="none", **style)
        if axis.is_log:
            graph.set_xscale("log")
        if ticks:
            graph.set_xticks(range(len(ticks)), ticks, fontsize=8)
            graph.set_xlim(-0.5, len(ticks) - 0.5)
        graph.set_xlabel(axis.label)
        plot.dress(graph)
    for first in grid[::columns]:
        first.set_ylabel(SCORE_LABEL)
    figure.suptitle(f"{title}: {len(table)} trials")
    plot.save(figure, path)


def plot_parallel(table: pd.DataFrame, axes: Sequence[Axis], path: Path, *, title: str) -> None:
    """Draw each trial as a line through its values, coloured by its score."""
    figure, (graph,) = plot.new_grid(1, 1, (2.2 * len(axes) + 3, 4.5))
    columns = [*(_height(table, axis) for axis in axes), _unit(table["score"])]
    heights = np.stack(columns, axis=1)
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
    graph.spines[:].set_visible(False)
    scale = Normalize(table["score"].min(), table["score"].max())
    figure.colorbar(ScalarMappable(scale, SCORE_COLORS), ax=graph, label=SCORE_LABEL)
    graph.set_title(title)
    plot.save(figure, path)


def plot_importance(share: Mapping[str, float], path: Path, *, title: str) -> None:
    """Draw the share of the scores' variance that each key explains, the largest on top."""
    ordered = sorted(share.items(), key=lambda item: -np.nan_to_num(item[1]))
    figure, (graph,) = plot.new_grid(1, 1, (7, 0.5 * len(ordered) + 1.6))
    labels, values = zip(*ordered, strict=True)
    graph.barh(labels, np.nan_to_num(values), color=MEAN_COLOR)
    for y, value in enumerate(values):
        text = "too few trials" if np.isnan(value) else f"{value:.0%}"
        graph.text(np.nan_to_num(value) + 0.01, y, text, va="center", fontsize=9)
    graph.invert_yaxis()
    graph.set_xlim(0, 1.1)
    graph.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    graph.set_xlabel("share of the spread of the scores that this key alone explains")
    graph.set_title(f"{title}: importance")
    plot.save(figure, path)


def plot_trials(
    curves: Mapping[int, pd.Series],
    scores: Mapping[int, float],
    path: Path,
    *,
    title: str,
    smooth: bool,
) -> None:
    """Draw the mean curve of every trial, with the best by score highlighted."""
    figure, graph = plot.new_graph(title, FRAMES.label, return_label(smooth))
    best = max(curves, key=scores.__getitem__, default=None)
    for trial, line in curves.items():
        style: dict[str, Any] = {"color": SESSION_COLOR, "linewidth": 0.9, "alpha": 0.6}
        if trial == best:
            style = {"color": MEAN_COLOR, "linewidth": 2, "alpha": 1, "zorder": 3}
            style["label"] = _trial_label(trial, len(curves))
        graph.plot(line.index, line, marker="o" if len(line) == 1 else "", **style)
    if curves:
        graph.legend(loc="best", fontsize=9, frameon=False)
    plot.save(figure, path)


# The page


def _trials_panel(trials: Mapping[int, Trial], scores: Mapping[int, float]) -> Panel:
    """The mean curve of every trial, with the best by score highlighted."""
    best = max(trials, key=scores.__getitem__)

    def view(x: XAxis, smooth: bool) -> View:
        traces = []
        for trial, tables in trials.items():
            line = thinned(_trial_curve(tables, x, smooth), POINTS_PER_TRIAL)
            if trial == best:
                label = _trial_label(trial, len(trials))
                traces.append(plot.line_trace(line, label, MEAN_COLOR, width=3))
            else:
                label = f"trial {trial}"
                traces.append(plot.line_trace(line, label, SESSION_COLOR, width=1, opacity=0.6))
        layout = plot.axis_titles(x.label, return_label(smooth)) | {"hovermode": "closest"}
        return View(traces, layout)

    return plot.returns_panel(common_axes(table for t in trials.values() for table in t), view)


def _parallel_view(table: pd.DataFrame, axes: Sequence[Axis]) -> View:
    dimensions = [_dimension(table, axis) for axis in axes]
    dimensions.append({"label": "score", "values": numbers(table["score"])})
    line = {"color": numbers(table["score"]), "colorscale": "Viridis", "showscale": True}
    trace = {"type": "parcoords", "line": line, "dimensions": dimensions}
    title = "drag along an axis to select trials"
    margin = {"l": 90, "r": 60, "t": 110, "b": 30}
    return View([trace], {"title": {"text": title}, "margin": margin})


def _dimension(table: pd.DataFrame, axis: Axis) -> dict[str, Any]:
    x, ticks = _positions(table, axis)
    if axis.is_log:
        logs = np.log10(x.to_numpy(dtype=np.float64))
        decades = np.arange(np.ceil(logs.min()), np.floor(logs.max()) + 1)
        places = np.unique([logs.min(), *decades, logs.max()])
        names = [f"{10.0 ** float(place):.3g}" for place in places]
        marks = {"tickvals": numbers(places), "ticktext": names}
        return {"label": f"{axis.label} (log)", "values": numbers(logs), **marks}
    marks = {"tickvals": list(range(len(ticks))), "ticktext": ticks} if ticks else {}
    return {"label": axis.label, "values": numbers(x), **marks}


def _scatter_view(table: pd.DataFrame, axis: Axis) -> View:
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [str(v) for v in table[axis.path]] if axis.is_choice else numbers(table[axis.path]),
        "y": numbers(table["score"]),
        "text": [f"trial {row.trial}, {row.status}" for row in table.itertuples()],
        "marker": {"color": numbers(table["score"]), "colorscale": "Viridis", "size": 9},
    }
    layout = plot.axis_titles(axis.label, SCORE_LABEL) | {"hovermode": "closest"}
    layout["xaxis"]["type"] = "category" if axis.is_choice else "log" if axis.is_log else "linear"
    return View([trace], layout)


def _bars_view(share: Mapping[str, float]) -> View:
    labels, values = zip(*sorted(share.items(), key=lambda i: np.nan_to_num(i[1])), strict=True)
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": numbers(np.nan_to_num(values)),
        "y": list(labels),
        "marker": {"color": MEAN_COLOR},
    }
    title = "importance: share of the spread of the scores that a key alone explains"
    axis = {"range": [0, 1], "tickformat": ".0%"}
    return View([trace], {"title": {"text": title}, "xaxis": axis, "hovermode": "closest"})


# Positions of trials along an axis


def _positions(table: pd.DataFrame, axis: Axis) -> tuple[pd.Series, list[str]]:
    """Positions of the trials along an axis, and the names of 0, 1, ... for a choice."""
    values = table[axis.path]
    if not axis.is_choice:
        return values.astype("float64"), []
    names = values.map(str)
    options = sorted(names.unique())
    return names.map({name: float(i) for i, name in enumerate(options)}), options


def _height(table: pd.DataFrame, axis: Axis) -> np.ndarray:
    """Positions from 0 at the bottom to 1 on top, on the scale of the axis."""
    x = _positions(table, axis)[0]
    return _unit(np.log(x) if axis.is_log else x)


def _unit(values: ArrayLike) -> np.ndarray:
    x = np.asarray(values, dtype=np.float64)
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
    return np.asarray(colormaps[SCORE_COLORS](_unit(table["score"])))


def _read_trial(paths: RunLayout, trial: int) -> Trial:
    """The tables of a trial's sessions; none before its first checkpoint."""
    files = (paths.session_csv(trial, session, "train") for session in paths.sessions(trial))
    tables = (read_session(file, folder=paths.predir) for file in files)
    return [table for table in tables if not table.empty]


def _trial_curve(tables: Trial, x: XAxis, smooth: bool) -> pd.Series:
    return mean_and_std([curve(table, x=x, smooth=smooth) for table in tables])[0]


def _trial_label(trial: int, count: int) -> str:
    return f"trial {trial}, the best of {count} in this search"
