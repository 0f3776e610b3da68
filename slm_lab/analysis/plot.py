"""Graphs as PNG files, and as interactive HTML pages that work offline, light or dark.

PNG files are replaced atomically: a reader sees the old graph or the new one.

plotly.js (nearly 5 MB) is stored once per run folder and loaded from there, so that the folder can
be moved and a page holds only its numbers. Graphs of pages are plain dictionaries in plotly's
vocabulary, because importing plotly's Python package is slow.
"""

from __future__ import annotations

import filecmp
import html
import importlib.util
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from slm_lab.analysis.curves import FRAMES, XAxis, curve, mean_and_std, return_label, thinned
from slm_lab.analysis.style import GREY, MEAN_COLOR, PALETTE, SESSION_COLOR, LineStyle, rgba
from slm_lab.runs.files import check_place, read_bytes, replacing, write_atomic
from slm_lab.runs.glossary import label

SIZE = (8.0, 5.0)
DPI = 100
# Fixed margins, because finding good ones means drawing everything twice.
MARGINS = {"left": 0.095, "right": 0.975, "bottom": 0.11, "top": 0.92}
TOP_WITH_SUBTITLE = 0.875
PNG_EFFORT = 3  # of 9: a fifth faster than matplotlib's 6, for a tenth more bytes
MARKERS_PER_LINE = 8
TARGET_LINE: dict[str, Any] = {"color": GREY, "linestyle": (0, (4, 3))}
MATPLOTLIB_DASH = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
PLOTLY_JS = "plotly.min.js"
MAX_POINTS = 1_000  # of a line; a screen has no more

Trace = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of a comparison: the curves of its sessions, its legend and its style."""

    label: str
    curves: Sequence[pd.Series]
    style: LineStyle
    raw: Sequence[pd.Series] = ()  # drawn faint behind, where `curves` are a moving average


@dataclass(frozen=True, slots=True)
class Heading:
    """Two lines above a graph, and the target drawn in it."""

    title: str
    subtitle: str = ""
    target: float | None = None


def plot_tables(
    tables: Sequence[pd.DataFrame],
    path: Path,
    *,
    title: str | Heading,
    y: str = "total_reward",
    x: XAxis = FRAMES,
    smooth: bool = False,
) -> None:
    """Draw one column of the tables of one or several sessions."""
    curves = [curve(table, y, x, smooth=smooth) for table in tables]
    raw = [curve(table, y, x) for table in tables] if smooth else ()
    name = return_label(smooth) if y == "total_reward" else label(y)
    plot_curves(curves, path, title=title, y_label=name, x_label=x.label, raw=raw)


def plot_curves(
    curves: Sequence[pd.Series],
    path: Path,
    *,
    title: str | Heading,
    y_label: str,
    x_label: str = "frames",
    raw: Sequence[pd.Series] = (),
) -> None:
    """Draw one curve as a line; several as thin lines under their mean and its band.

    The mean of `raw`, the curves without smoothing, stands faint behind them.
    """
    heading = title if isinstance(title, Heading) else Heading(title)
    figure, axes = new_graph(heading.title, x_label, y_label, subtitle=heading.subtitle)
    mean, std = mean_and_std(curves)
    if raw:
        draw_raw(axes, raw, MEAN_COLOR, label="without smoothing")
    if len(curves) > 1:
        thin: dict[str, Any] = {"color": SESSION_COLOR, "linewidth": 0.7, "alpha": 0.5}
        for i, session in enumerate(curves):
            label = f"each of {len(curves)} sessions" if i == 0 else None
            axes.plot(session.index, session, label=label, **thin)
        _band(axes, mean, std, MEAN_COLOR, 0.2, label="± 1 standard deviation")
    dot = "o" if mean.notna().sum() == 1 else ""  # a line through one point draws nothing
    name = "mean" if len(curves) > 1 else "moving average" if raw else y_label
    axes.plot(mean.index, mean, color=MEAN_COLOR, linewidth=2, label=name, marker=dot)
    draw_target(axes, heading.target)
    if len(curves) > 1 or raw or heading.target is not None:
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
        if line.raw:
            draw_raw(axes, line.raw, line.style.color)
        mean, std = mean_and_std(line.curves)
        band = std if len(line.curves) > 1 else None
        edge = {"markeredgecolor": "white", "markeredgewidth": 0.6}
        draw_mean(axes, mean, band, line.style, label=line.label, linewidth=2, markersize=6, **edge)
    draw_target(axes, target)
    if any(line.raw for line in lines):  # one entry for all
        axes.plot([], [], color=GREY, linewidth=0.8, alpha=0.6, label="without smoothing")
    if legend:  # beside the graph: where many lines meet there is no room inside
        labels = axes.get_legend_handles_labels()[1]
        figure.subplots_adjust(right=1 - MARGINS["left"] - 0.011 * max(map(len, labels)))
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9)
    save(figure, path)


def draw_mean(
    axes: Axes, mean: pd.Series, std: pd.Series | None, style: LineStyle, **look: Any
) -> None:
    """Draw a mean in the style of its algorithm, with a band of one std if it is known."""
    if std is not None:
        _band(axes, mean, std, style.color, 0.15)
    look |= {"color": style.color, "linestyle": MATPLOTLIB_DASH[style.dash]}
    every = max(1, len(mean) // MARKERS_PER_LINE)
    axes.plot(mean.index, mean, marker=style.marker, markevery=every, **look)


def draw_raw(axes: Axes, raw: Sequence[pd.Series], color: str, *, label: str | None = None) -> None:
    """Draw the mean of curves without smoothing, faint, and out of the axis limits' way."""
    mean = mean_and_std(raw)[0]
    axes.plot(mean.index, mean, color=color, linewidth=0.8, alpha=0.35, label=label)


def draw_target(axes: Axes, target: float | None) -> None:
    if target is not None:
        axes.axhline(target, linewidth=1.5, label=f"target {target:g}", **TARGET_LINE)


# Canvas, margins, files


def new_graph(
    title: str,
    x_label: str,
    y_label: str,
    size: tuple[float, float] = SIZE,
    *,
    subtitle: str = "",
) -> tuple[Figure, Axes]:
    """An empty graph in the style of all graphs."""
    figure = Figure(figsize=size, dpi=DPI)
    FigureCanvasAgg(figure)
    figure.subplots_adjust(**MARGINS | ({"top": TOP_WITH_SUBTITLE} if subtitle else {}))
    axes = figure.add_subplot()
    dress(axes)
    # y given, because finding the place means drawing the ticks an extra time
    axes.set_title(title, loc="left", fontsize=11, y=1.075 if subtitle else 1.02)
    axes.text(0, 1.025, subtitle, transform=axes.transAxes, fontsize=9, color=GREY)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if x_label != "return":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure, axes


def new_grid(count: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Empty graphs in rows of so many; of `size` is the whole figure."""
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    grid = figure.subplots(-(-count // columns), columns, squeeze=False).ravel()
    for unused in grid[count:]:
        unused.set_visible(False)
    return figure, list(grid[:count])


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


# Pages


@dataclass(frozen=True, slots=True)
class View:
    """One graph: its traces, and its changes of the common layout."""

    traces: Sequence[Trace]
    layout: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Panel:
    """A place on the page. `choices` are rows of buttons, each with its options; `views` has the
    graph for every combination of them: a tuple of options, in the same order."""

    views: Mapping[Any, View]
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)


def returns_panel(axes: Sequence[XAxis], view: Callable[[XAxis, bool], View]) -> Panel:
    """Returns against each axis, smooth or raw; `view` draws one graph of them."""
    lines = {"moving average": True, "raw": False}
    views = {(x.label, line): view(x, smooth) for x in axes for line, smooth in lines.items()}
    return Panel(views, {"against": [x.label for x in axes], "line": list(lines)})


def write_page(path: Path, title: str | Heading, panels: Sequence[Panel], *, home: Path) -> None:
    """Write the page; `home` is the folder that has, or gets, the plotly.js for it."""
    provide_plotly(home)
    heading = title if isinstance(title, Heading) else Heading(title)
    script = Path(os.path.relpath(home / PLOTLY_JS, path.parent)).as_posix()
    plotly = f'<script src="{html.escape(script)}"></script>'
    content = []
    for panel in panels:
        choices = [{"name": name, "options": list(o)} for name, o in panel.choices.items()]
        views = {
            "|".join(key): {"data": list(view.traces), "layout": dict(view.layout)}
            for key, view in panel.views.items()
        }
        content.append({"choices": choices, "views": views})
    # Inside a script element only "<" could end it; JSON may spell it as an escape.
    data = json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    values = {"TITLE": html.escape(heading.title), "SUBTITLE": html.escape(heading.subtitle)}
    values |= {"DATA": data, "PLOTLY": plotly}
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    parts = template.split("%%")  # text, name, text, name, ..., text
    text = "".join(values[part] if i % 2 else part for i, part in enumerate(parts))
    write_atomic(path.parent, path, text)


def provide_plotly(home: Path) -> None:
    """Put plotly.js into the folder; as a link to a neighbour's, if that is the very same."""
    there = home / PLOTLY_JS
    if there.is_file() and not there.is_symlink():
        return
    installed = plotly_js()
    beside = home / f".{PLOTLY_JS}.tmp"
    beside.unlink(missing_ok=True)  # of a process that was killed; it may be a link
    neighbour = next(home.resolve().parent.glob(f"*/{PLOTLY_JS}"), None)
    check_place(home, there)
    try:
        if neighbour is None or not filecmp.cmp(neighbour, installed, shallow=False):
            raise OSError
        os.link(neighbour, beside, follow_symlinks=False)
        beside.replace(there)
    except OSError:  # none, another version, or a disk without links
        write_atomic(home, there, installed.read_bytes())


def plotly_js() -> Path:
    """The plotly.js that ships inside the Python package."""
    spec = importlib.util.find_spec("plotly")
    assert spec is not None, "plotly is a dependency"
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "package_data" / PLOTLY_JS


# Traces


def curves_view(
    curves: Mapping[str, pd.Series],
    *,
    x_label: str,
    y_label: str,
    raw: Sequence[pd.Series] = (),
    target: float | None = None,
) -> View:
    """Curves by name; with several, also their mean and a band of one standard deviation."""
    if len(curves) == 1:
        traces = [line_trace(line, name, MEAN_COLOR) for name, line in curves.items()]
    else:
        colors = itertools.cycle(PALETTE[1:])
        traces = [
            line_trace(line, name, color, width=1.2, opacity=0.85)
            for (name, line), color in zip(curves.items(), colors, strict=False)
        ]
        mean, std = mean_and_std(list(curves.values()))
        band = band_traces(mean, std, MEAN_COLOR, "± 1 std")
        traces = [*band, *traces, line_trace(mean, "mean", MEAN_COLOR, width=3)]
    return View([*_raw_traces(raw, MEAN_COLOR), *traces], _layout(x_label, y_label, target))


def lines_view(lines: Sequence[Line], *, x: XAxis, y_label: str, target: float | None) -> View:
    """The lines of `plot_lines`: the mean over the sessions of each, with a band of one std."""
    traces = []
    for line in lines:
        mean, std = mean_and_std(line.curves)
        if len(line.curves) > 1:
            traces += band_traces(mean, std, line.style.color)
        traces += _raw_traces(line.raw, line.style.color)
        traces.append(line_trace(mean, line.label, line.style.color, dash=line.style.dash))
    return View(traces, _layout(x.label, y_label, target))


def _raw_traces(raw: Sequence[pd.Series], color: str) -> list[Trace]:
    """The mean of curves without smoothing, faint."""
    if not raw:
        return []
    hidden: Trace = {"hoverinfo": "skip", "showlegend": False, "opacity": 0.3}
    return [line_trace(mean_and_std(raw)[0], "", color, width=1, **hidden)]


def _layout(x_label: str, y_label: str, target: float | None) -> dict[str, Any]:
    """Axis titles, and a dashed line at the target."""
    layout = axis_titles(x_label, y_label)
    if target is not None:
        ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": target, "y1": target}
        style = {"color": GREY, "dash": "dash", "width": 1.5}
        layout["shapes"] = [{"type": "line", **ends, "line": style}]
        place = {"xref": "paper", "x": 1, "y": target, "xanchor": "right", "yanchor": "bottom"}
        layout["annotations"] = [place | {"text": f"target {target:g}", "showarrow": False}]
    return layout


def line_trace(
    line: pd.Series, name: str, color: str, *, width: float = 2, dash: str = "solid", **more: Any
) -> Trace:
    line = thinned(line, MAX_POINTS)
    return {
        "type": "scatter",
        "mode": "lines" if line.notna().sum() > 1 else "markers",
        "name": name,
        "x": numbers(line.index),
        "y": numbers(line),
        "line": {"color": color, "width": width, "dash": dash},
        "marker": {"color": color},
        "opacity": 1,
        **more,
    }


def band_traces(mean: pd.Series, std: pd.Series, color: str, name: str = "") -> list[Trace]:
    """Two invisible lines with the space between them filled."""
    low, high = (line_trace(bound, name, color, width=0) for bound in (mean - std, mean + std))
    hidden = {"mode": "lines", "hoverinfo": "skip", "showlegend": False}
    fill = {"fill": "tonexty", "fillcolor": rgba(color, 0.2), "showlegend": bool(name)}
    return [low | hidden, high | hidden | fill]


def axis_titles(x_label: str, y_label: str) -> dict[str, Any]:
    return {"xaxis": {"title": {"text": x_label}}, "yaxis": {"title": {"text": y_label}}}


def numbers(values: Iterable[float]) -> list[float | None]:
    """Numbers for JSON, with six digits; NaN and infinity become gaps."""
    return [
        None if not math.isfinite(v) else int(v) if v.is_integer() else float(f"{v:.6g}")
        for v in map(float, values)
    ]
