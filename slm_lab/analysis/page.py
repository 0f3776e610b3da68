"""Interactive HTML pages of graphs that work offline, in a light or a dark browser.

plotly.js (nearly 5 MB) is stored once per run folder and loaded from there, so that the folder can
be moved and a page holds only its numbers. Graphs are plain dictionaries in plotly's vocabulary,
because importing plotly's Python package is slow.
"""

from __future__ import annotations

import filecmp
import functools
import html
import importlib.util
import itertools
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from slm_lab.analysis.curves import mean_and_std, thinned
from slm_lab.analysis.style import MEAN_COLOR, PALETTE, rgba
from slm_lab.runs.files import check_place, write_atomic

PLOTLY_JS = "plotly.min.js"
MAX_POINTS = 1_000  # of a line; a screen has no more

Trace = dict[str, Any]


@dataclass(frozen=True, slots=True)
class View:
    """One graph: its traces, and its changes of the common layout."""

    traces: Sequence[Trace]
    layout: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Panel:
    """A place on the page. `choices` are rows of buttons, each with its options; `views` has the
    graph for every combination of them, in the same order."""

    views: Mapping[tuple[str, ...], View]
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)


def write_page(path: Path, title: str, panels: Sequence[Panel], *, home: Path) -> None:
    """Write the page; `home` is the folder that has, or gets, the plotly.js for it."""
    provide_plotly(home)
    script = Path(os.path.relpath(home / PLOTLY_JS, path.parent)).as_posix()
    text = page_html(title, panels, f'<script src="{html.escape(script)}"></script>')
    write_atomic(path.parent, path, text)


def page_html(title: str, panels: Sequence[Panel], plotly: str) -> str:
    """The page as text; `plotly` is the element that loads plotly.js, or has it inside."""
    content = [
        {
            "choices": [{"name": name, "options": list(o)} for name, o in panel.choices.items()],
            "views": {
                "|".join(key): {"data": list(view.traces), "layout": dict(view.layout)}
                for key, view in panel.views.items()
            },
        }
        for panel in panels
    ]
    # Inside a script element only "<" could end it; JSON may spell it as an escape.
    data = json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    values = {"TITLE": html.escape(title), "DATA": data, "PLOTLY": plotly}
    parts = _template().split("%%")  # text, name, text, name, ..., text
    return "".join(values[part] if i % 2 else part for i, part in enumerate(parts))


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


@functools.cache
def _template() -> str:
    return Path(__file__).with_name("page.html").read_text(encoding="utf-8")


# Traces


def curves_view(curves: Mapping[str, pd.Series], *, x_label: str, y_label: str) -> View:
    """Curves by name; with several, also their mean and a band of one standard deviation."""
    if len(curves) == 1:
        traces = [line_trace(next(iter(curves.values())), next(iter(curves)), MEAN_COLOR)]
    else:
        colors = itertools.cycle(PALETTE[1:])
        traces = [
            line_trace(line, name, color, width=1.2, opacity=0.85)
            for (name, line), color in zip(curves.items(), colors, strict=False)
        ]
        mean, std = mean_and_std(list(curves.values()))
        band = band_traces(mean, std, MEAN_COLOR, "± 1 std")
        traces = [*band, *traces, line_trace(mean, "mean", MEAN_COLOR, width=3)]
    return View(traces, axis_titles(x_label, y_label))


def line_trace(
    line: pd.Series,
    name: str,
    color: str,
    *,
    width: float = 2,
    dash: str = "solid",
    opacity: float = 1,
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
        "opacity": opacity,
    }


def band_traces(mean: pd.Series, std: pd.Series, color: str, name: str = "") -> list[Trace]:
    """Two invisible lines with the space between them filled."""
    low, high = (
        line_trace(bound, name, color, width=0) | {"mode": "lines", "hoverinfo": "skip"}
        for bound in (mean - std, mean + std)
    )
    low["showlegend"] = False
    fill = {"fill": "tonexty", "fillcolor": rgba(color, 0.2), "showlegend": bool(name)}
    return [low, high | fill]


def axis_titles(x_label: str, y_label: str) -> dict[str, Any]:
    return {"xaxis": {"title": {"text": x_label}}, "yaxis": {"title": {"text": y_label}}}


def numbers(values: Iterable[float]) -> list[float | None]:
    """Numbers for JSON, with six digits; NaN and infinity become gaps."""
    return [
        None if not math.isfinite(v) else int(v) if v.is_integer() else float(f"{v:.6g}")
        for v in map(float, values)
    ]
