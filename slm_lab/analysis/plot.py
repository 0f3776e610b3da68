"""PNG graphs. Files are replaced atomically: a reader sees the old graph or the new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from slm_lab.analysis.curves import FRAMES, XAxis, curve, mean_and_std, return_label
from slm_lab.analysis.style import GREY, MEAN_COLOR, SESSION_COLOR, LineStyle
from slm_lab.runs.files import read_bytes, replacing, write_atomic

SIZE = (8.0, 5.0)
DPI = 100
# Fixed margins, because finding good ones means drawing everything twice.
MARGINS = {"left": 0.095, "right": 0.975, "bottom": 0.11, "top": 0.92}
PNG_EFFORT = 3  # of 9: a fifth faster than matplotlib's 6, for a tenth more bytes
MARKERS_PER_LINE = 8
MATPLOTLIB_DASH = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of a comparison: the curves of its sessions, its legend and its style."""

    label: str
    curves: Sequence[pd.Series]
    style: LineStyle


def plot_tables(
    tables: Sequence[pd.DataFrame],
    path: Path,
    *,
    title: str,
    y: str = "total_reward",
    x: XAxis = FRAMES,
    smooth: bool = False,
) -> None:
    """Draw one column of the tables of one or several sessions."""
    curves = [curve(table, y, x, smooth=smooth) for table in tables]
    label = return_label(smooth) if y == "total_reward" else y
    plot_curves(curves, path, title=title, y_label=label, x_label=x.label)


def plot_curves(
    curves: Sequence[pd.Series], path: Path, *, title: str, y_label: str, x_label: str = "frames"
) -> None:
    """Draw one curve as a line; several as thin lines under their mean and its band."""
    figure, axes = new_graph(title, x_label, y_label)
    mean, std = mean_and_std(curves)
    if len(curves) > 1:
        for i, session in enumerate(curves):
            label = f"each of {len(curves)} sessions" if i == 0 else None
            axes.plot(
                session.index, session, color=SESSION_COLOR, linewidth=0.7, alpha=0.5, label=label
            )
        _band(axes, mean, std, MEAN_COLOR, 0.2, label="± 1 standard deviation")
    axes.plot(mean.index, mean, color=MEAN_COLOR, linewidth=2, label="mean", marker=_dot(mean))
    if len(curves) > 1:
        axes.legend(loc="best", frameon=False, fontsize=9)
    save(figure, path)


def plot_lines(
    lines: Sequence[Line],
    path: Path,
    *,
    title: str,
    x: XAxis,
    y_label: str,
    target: float | None = None,
    legend: bool = True,
) -> None:
    """Draw several trials: the mean over the sessions of each, with a band of one std."""
    figure, axes = new_graph(title, x.label, y_label)
    for line in lines:
        mean, std = mean_and_std(line.curves)
        if len(line.curves) > 1:
            _band(axes, mean, std, line.style.color, 0.15)
        axes.plot(
            mean.index,
            mean,
            color=line.style.color,
            linestyle=MATPLOTLIB_DASH[line.style.dash],
            linewidth=2,
            marker=line.style.marker,
            markersize=6,
            markeredgecolor="white",
            markeredgewidth=0.6,
            markevery=max(1, len(mean) // MARKERS_PER_LINE),
            label=line.label,
        )
    if target is not None:
        label = f"target {target:g}"
        axes.axhline(target, color=GREY, linestyle=(0, (4, 3)), linewidth=1.5, label=label)
    if legend:  # beside the graph: where many lines meet there is no room inside
        figure.subplots_adjust(right=1 - MARGINS["left"] - 0.011 * max(map(len, _labels(axes))))
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9)
    save(figure, path)


# Canvas, margins, files


def new_graph(
    title: str, x_label: str, y_label: str, size: tuple[float, float] = SIZE
) -> tuple[Figure, Axes]:
    """An empty graph in the style of all graphs."""
    figure = Figure(figsize=size, dpi=DPI)
    FigureCanvasAgg(figure)
    figure.subplots_adjust(**MARGINS)
    axes = figure.add_subplot()
    dress(axes)
    # y given, because finding the place means drawing the ticks an extra time
    axes.set_title(title, loc="left", fontsize=11, y=1.02)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if x_label != "return":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure, axes


def dress(axes: Axes) -> None:
    axes.grid(visible=True, color="#E5E5E5", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.02)


def save(figure: Figure, path: Path) -> None:
    """Write a graph into a folder that exists."""
    with replacing(path.parent, path) as file:
        figure.savefig(file, format="png", pil_kwargs={"compress_level": PNG_EFFORT})


def copy_graph(source: Path, path: Path) -> None:
    write_atomic(path.parent, path, read_bytes(source.parent, source))


def _band(
    axes: Axes, mean: pd.Series, std: pd.Series, color: str, alpha: float, label: str | None = None
) -> None:
    axes.fill_between(
        mean.index, mean - std, mean + std, color=color, alpha=alpha, linewidth=0, label=label
    )


def _labels(axes: Axes) -> list[str]:
    return axes.get_legend_handles_labels()[1]


def _dot(line: pd.Series) -> str:
    """A line through one point draws nothing."""
    return "o" if line.notna().sum() == 1 else ""
