"""Graphs that compare trials: learning curves, and the statistics of `comparison`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from slm_lab.analysis import plot
from slm_lab.analysis.comparison import EnvComparison, Estimate, MethodScore, method_names
from slm_lab.analysis.curves import FRAMES, XAxis, common_axes, curve, return_label
from slm_lab.analysis.plot import TARGET_LINE, Line, plot_lines
from slm_lab.analysis.robust import FEWEST_FOR_INTERVAL, performance_profile, profile_band
from slm_lab.analysis.style import GREY, LineStyle, legend_rank, line_styles
from slm_lab.analysis.tables import SavedTrial
from slm_lab.runs.files import write_atomic
from slm_lab.spec.run_folder import RunFolderError

PROFILE_POINTS = 401
IMPROVEMENT_COLORS = "PuOr"  # two ends that every eye tells apart, white in the middle


def graph_stem(title: str) -> str:
    """Beginning of a file name for a title: `ALE/Pong-v5` and `mine:Pong-v5` are Pong-v5, and
    `(Hard) X` is Hard_X."""
    last = re.split(r"[/\\:]", title)[-1]
    stem = re.sub(r'[()<>"|?*\x00-\x1f]', "", last).strip().replace(" ", "_").lstrip(".")
    if not stem:
        raise RunFolderError(
            f"--title: found `{title}`; expected a name that can begin a file name"
        )
    return stem


def default_title(trials: Sequence[SavedTrial]) -> str:
    envs = {trial.env for trial in trials}
    return envs.pop() if len(envs) == 1 else "benchmark"


# Learning curves


def plot_multi_trial(
    trials: Sequence[SavedTrial],
    output: Path,
    *,
    title: str,
    legends: Sequence[str] | None = None,
    x: XAxis = FRAMES,
    smooth: bool = True,
    legend: bool = True,
    html: bool = False,
) -> list[Path]:
    """Draw the mean over sessions of every trial in one graph; returns the files written."""
    for trial in trials:
        if x not in common_axes(trial.sessions.values()):
            raise RunFolderError(f"{trial.folder}: its tables have no {x.column}; use --x frame")
    lines = _lines(trials, legends, x, smooth)
    targets = {trial.target for trial in trials}
    target = targets.pop() if len(targets) == 1 else None
    output.mkdir(parents=True, exist_ok=True)
    name = f"{graph_stem(title)}_multi_trial_graph_mean_returns{'_ma' * smooth}_vs_{x.name}.png"
    path, label = output / name, return_label(smooth)
    plot_lines(lines, path, title=title, x=x, y_label=label, target=target, legend=legend)
    if not html:
        return [path]
    page = path.with_suffix(".html")
    view = plot.lines_view(lines, x=x, y_label=label, target=target)
    plot.write_page(page, title, [plot.Panel({(): view})], home=output)
    return [path, page]


def _lines(
    trials: Sequence[SavedTrial], legends: Sequence[str] | None, x: XAxis, smooth: bool
) -> list[Line]:
    labels = list(legends) if legends else _distinct(method_names(trials), trials)
    order = sorted(range(len(trials)), key=lambda i: (legend_rank(trials[i].algorithm), labels[i]))
    styles = line_styles([trials[i].algorithm for i in order])
    lines = []
    for i, style in zip(order, styles, strict=True):
        tables = trials[i].sessions.values()
        curves = [curve(table, x=x, smooth=smooth) for table in tables]
        raw = [curve(table, x=x) for table in tables] if smooth else ()
        lines.append(Line(labels[i], curves, style, raw))
    return lines


def _distinct(names: Sequence[str], trials: Sequence[SavedTrial]) -> list[str]:
    """The names, with the run folder's where two lines would have the same."""
    return [
        name if names.count(name) == 1 else f"{trial.algorithm} ({trial.folder.name})"
        for name, trial in zip(names, trials, strict=True)
    ]


# Statistics


def plot_comparison(found: Sequence[EnvComparison], output: Path, *, title: str) -> list[Path]:
    """Write intervals, performance profiles and improvements as PNG, all numbers as JSON."""
    output.mkdir(parents=True, exist_ok=True)
    stem = output / graph_stem(title)
    names = ("_intervals.png", "_profiles.png", "_improvement.png", ".json")
    *graphs, improvement, numbers = (Path(f"{stem}_compare{name}") for name in names)
    styles = _method_styles(found)
    plot_intervals(found, styles, graphs[0], title=title)
    plot_profiles(found, styles, graphs[1], title=title)
    if any(comparison.improvements for comparison in found):
        plot_improvements(found, improvement, title=title)
        graphs.append(improvement)
    content = [comparison.to_json() for comparison in found]
    write_atomic(output, numbers, json.dumps(content, indent=2, default=np.ndarray.tolist) + "\n")
    return [*graphs, numbers]


def plot_intervals(
    found: Sequence[EnvComparison], styles: Mapping[str, LineStyle], path: Path, *, title: str
) -> None:
    """Draw each statistic of each method with its interval, one row of graphs per env."""
    names = {"interquartile_mean": "IQM", "median": "median", "mean": "mean"}
    heights = [1.1 + 0.34 * len(comparison.methods) for comparison in found]
    figure = Figure(figsize=(9, sum(heights) + 0.4), dpi=plot.DPI, layout="constrained")
    rows = figure.subplots(
        len(found), len(names), squeeze=False, sharey="row", height_ratios=heights
    )
    for graphs, comparison in zip(rows, found, strict=True):
        methods = sorted(comparison.methods, key=lambda m: _rank(m), reverse=True)
        for graph, (name, label) in zip(graphs, names.items(), strict=True):
            _interval_rows(graph, {m.method: getattr(m, name) for m in methods}, styles)
            if comparison.target is not None:
                graph.axvline(comparison.target, linewidth=1, **TARGET_LINE)
            graph.set_title(label, fontsize=10)
            graph.xaxis.set_major_locator(MaxNLocator(5))
        graphs[0].set_ylabel(_env_label(comparison).replace(" at ", "\nat "), fontsize=9)
    figure.suptitle(f"{title}: 95 % intervals over seeds, dashed: target", x=0.01, ha="left")
    plot.save(figure, path)


def plot_profiles(
    found: Sequence[EnvComparison], styles: Mapping[str, LineStyle], path: Path, *, title: str
) -> None:
    """Draw the share of runs that score more than tau, against tau."""
    columns = min(2, len(found))
    rows = -(-len(found) // columns)
    size = (7.5, 4.2) if columns == 1 else (9, 3.4 * rows + 0.4)
    figure, grid = plot.new_grid(len(found), columns, size)
    for graph, comparison in zip(grid, found, strict=True):
        taus = _taus(comparison)
        for method in sorted(comparison.methods, key=_rank):
            style = styles[method.method]
            profile = performance_profile(method.scores, taus)
            look: dict[str, Any] = {"where": "post", "linewidth": 2, "label": method.method}
            graph.step(taus, profile, color=style.color, **look)
            if method.seeds >= FEWEST_FOR_INTERVAL:
                low, high = profile_band(method.scores, taus)
                look = {"step": "post", "linewidth": 0, "alpha": 0.12}
                graph.fill_between(taus, low, high, color=style.color, **look)
        if comparison.target is not None and taus[0] <= comparison.target <= taus[-1]:
            graph.axvline(comparison.target, linewidth=1, **TARGET_LINE)
        plot.dress(graph)
        graph.set_ylim(-0.03, 1.03)
        graph.set_title(_env_label(comparison), fontsize=10, loc="left")
        graph.set_xlabel("return τ" if comparison.frame is not None else "normalised score τ")
        graph.set_ylabel("share of runs above τ")
    legend = {h.get_label(): h for g in grid for h in g.get_legend_handles_labels()[0]}
    names = [name for name in styles if name in legend]
    handles = [legend[name] for name in names]
    figure.legend(handles, names, frameon=False, fontsize=9, loc="outside right upper")
    figure.suptitle(f"{title}: performance profiles", x=0.01, ha="left")
    plot.save(figure, path)


def plot_improvements(found: Sequence[EnvComparison], path: Path, *, title: str) -> None:
    """Draw the chance that a run of one method beats a run of another, for every pair."""
    found = [comparison for comparison in found if comparison.improvements]
    most = max(len(comparison.methods) for comparison in found)
    columns = 1 if most > 4 else min(2, len(found))
    rows = -(-len(found) // columns)
    size = (max(6.5, columns * (0.85 * most + 2.2)), rows * (0.5 * most + 1.2) + 0.4)
    figure, grid = plot.new_grid(len(found), columns, size)
    for graph, comparison in zip(grid, found, strict=True):
        _improvement_matrix(graph, comparison)
    head = f"{title}: probability that a run of the row beats one of the column"
    key = "bold: better; grey: too few seeds to tell"
    figure.suptitle(f"{head}\n{key}", x=0.01, ha="left", fontsize=10)
    plot.save(figure, path)


def _improvement_matrix(graph: Axes, comparison: EnvComparison) -> None:
    names = [method.method for method in sorted(comparison.methods, key=_rank)]
    matrix = np.full((len(names), len(names)), np.nan)
    for pair in comparison.improvements:
        i, j = names.index(pair.better), names.index(pair.worse)
        for row, column, probability in ((i, j, pair.probability), (j, i, 1 - pair.probability)):
            is_unknown = pair.verdict == "too few seeds to tell"
            matrix[row, column] = np.nan if is_unknown else probability
            weight = "bold" if pair.verdict == "better" else "normal"
            look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9}
            look |= {"fontweight": weight, "color": _ink(matrix[row, column])}
            graph.text(column, row, f"{probability:.2f}", **look)
    graph.set_facecolor("#F2F2F2")  # shows where there is no colour
    graph.imshow(matrix, cmap=IMPROVEMENT_COLORS, vmin=0, vmax=1, aspect="auto")
    graph.set_xticks(range(len(names)), names, fontsize=8)
    graph.set_yticks(range(len(names)), names, fontsize=8)
    graph.tick_params(length=0)
    graph.spines[:].set_visible(False)
    graph.set_title(_env_label(comparison), fontsize=10, loc="left")


def _ink(probability: float) -> str:
    """Colour of the text in a cell of the matrix, which contrasts with the cell."""
    if np.isnan(probability):
        return GREY
    return "white" if abs(probability - 0.5) > 0.3 else "black"


def _interval_rows(
    graph: Axes, estimates: Mapping[str, Estimate], styles: Mapping[str, LineStyle]
) -> None:
    for y, (name, estimate) in enumerate(estimates.items()):
        color = styles[name].color
        if estimate.ci95 is not None:
            low, high = estimate.ci95
            graph.barh(y, high - low, left=low, height=0.55, color=color, alpha=0.35)
        graph.plot([estimate.value] * 2, [y - 0.3, y + 0.3], color=color, linewidth=2.5)
    graph.set_yticks(range(len(estimates)), list(estimates), fontsize=9)
    graph.set_ylim(-0.6, len(estimates) - 0.4)
    plot.dress(graph)
    graph.use_sticky_edges = False
    graph.margins(x=0.06)
    graph.grid(visible=False, axis="y")
    graph.tick_params(axis="y", length=0)


def _taus(comparison: EnvComparison) -> np.ndarray:
    scores = np.concatenate([s for method in comparison.methods for s in method.scores])
    low, high = float(scores.min()), float(scores.max())
    if comparison.frame is None:  # normalised: from a random policy on
        low = min(low, 0.0)
    margin = 0.03 * (high - low) or 1.0
    return np.linspace(low - margin, high + margin, PROFILE_POINTS)


def _method_styles(found: Sequence[EnvComparison]) -> dict[str, LineStyle]:
    """One style per method, the same in every graph."""
    methods = {m.method: m for comparison in found for m in comparison.methods}
    ordered = sorted(methods.values(), key=_rank)
    styles = line_styles([method.algorithm for method in ordered])
    return {method.method: style for method, style in zip(ordered, styles, strict=True)}


def _rank(method: MethodScore) -> tuple[tuple[int, str], str]:
    return legend_rank(method.algorithm), method.method


def _env_label(comparison: EnvComparison) -> str:
    if comparison.frame is None:
        return comparison.env
    return f"{comparison.env} at frame {comparison.frame:,}"
