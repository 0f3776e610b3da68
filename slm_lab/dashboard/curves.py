"""Learning curves for the screen: mean and band over sessions, and plotly figures of them.

Figures are plain data that the page and the report give to plotly.js. plotly reads some HTML in
labels (links, for one), so every text that comes from a run is escaped.
"""

from __future__ import annotations

import html
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from slm_lab.analysis.curves import thinned
from slm_lab.analysis.style import rgba
from slm_lab.analysis.tables import read_session
from slm_lab.dashboard.run_files import trials_by_score
from slm_lab.runs.glossary import label
from slm_lab.runs.summary import RunSummary, stamp

Axis = Literal["frame", "wall_t", "opt_step"]
AXIS_LABELS: dict[Axis, str] = {
    "frame": "frames",
    "wall_t": "wall time (s)",
    "opt_step": "gradient steps",
}
NOT_DRAWN = frozenset({*AXIS_LABELS, "t", "epi"})  # columns that count, rather than measure
AVERAGE, RAW = RETURNS_OF_ROWS = ("total_reward_ma", "total_reward")
RETURNS = (*RETURNS_OF_ROWS, "last_100_return")
DASHES = ("solid", "dash", "dot")
MOST_RUNS = 21  # as many as colours and dashes can tell apart
MOST_POINTS = 400  # of a line: more than that a screen does not show
MAX_TABLE_BYTES = 100_000_000
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"

Values = NDArray[np.float64]


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
class Curve:
    """Mean over a trial's sessions, one standard deviation around it, and each session's own."""

    x: Values
    mean: Values
    low: Values
    high: Values
    sessions: tuple[pd.Series, ...]

    @property
    def is_empty(self) -> bool:
        return len(self.x) == 0


@dataclass(frozen=True, slots=True)
class Trace:
    """A run in a figure: its label, its curve, and its place in the palette.

    The curve `raw`, of which `curve` is a moving average, stands faint behind it. A trace that is
    `faint` itself is a thin grey line, such as a trial beside the best of its search.
    """

    label: str
    curve: Curve
    place: int
    raw: Curve | None = None
    faint: bool = False


def join(lines: Iterable[pd.Series], points: int = MOST_POINTS) -> Curve:
    """Mean and band of lines whose x may differ: a line is interpolated between its points, and
    left out beyond its ends."""
    known = [line for line in map(_clean, lines) if len(line)]
    if not known:
        nothing = np.empty(0)
        return Curve(nothing, nothing, nothing, nothing, ())
    every_x = pd.Series(np.unique(np.concatenate([line.index for line in known])))
    x = thinned(every_x, points).to_numpy()
    table = np.stack([np.interp(x, line.index, line, np.nan, np.nan) for line in known])
    count = np.isfinite(table).sum(axis=0)
    x, table, count = x[count > 0], table[:, count > 0], count[count > 0]
    mean = np.nansum(table, axis=0) / count
    squares = np.nansum((table - mean) ** 2, axis=0)
    std = np.sqrt(squares / np.maximum(count - 1, 1))  # 0 where there is one session
    return Curve(x, mean, mean - std, mean + std, tuple(thinned(line, points) for line in known))


def _clean(line: pd.Series) -> pd.Series:
    """Finite points by rising x; of several at one x the last, which replaces those before."""
    line = line[np.isfinite(line) & np.isfinite(line.index)].sort_index(kind="stable")
    return line[~line.index.duplicated(keep="last")]


class CurveStore:
    """Owns the tables read so far. A table is read again when its file has changed."""

    def __init__(self, most_tables: int = 500) -> None:
        self._tables: dict[Path, tuple[tuple[int, int], pd.DataFrame]] = {}
        self._most_tables = most_tables
        self._lock = threading.Lock()

    def curve(
        self, run: RunSummary, y: str, x: Axis = "frame", *, trial: int | None = None
    ) -> Curve:
        """One column of a trial's tables (of a search: its best trial's) against another."""
        trial = run.trial if trial is None else trial
        tables = (self.table(run, trial, s, y) for s in run.layout.sessions(trial))
        known = (table for table in tables if {x, y} <= {*table})
        return join(pd.Series(table[y].to_numpy(), index=table[x]) for table in known)

    def trace(self, run: RunSummary, y: str, x: Axis, *, label: str, place: int) -> Trace:
        """A run's curve; where it is a moving average, with the curve behind it."""
        raw = self.curve(run, RAW, x) if y == AVERAGE else None
        return Trace(label, self.curve(run, y, x), place, raw)

    def trials(self, run: RunSummary, y: str, x: Axis, most: int) -> list[Trace]:
        """The other trials of a search than its best, those with higher scores first."""
        ranked = [record.trial for record in trials_by_score(run) if record.trial != run.trial]
        curves = ((trial, self.curve(run, y, x, trial=trial)) for trial in ranked[:most])
        return [Trace(f"trial {trial}", curve, 0, faint=True) for trial, curve in curves]

    def columns(self, run: RunSummary) -> tuple[str, ...]:
        """Columns that hold numbers, returns first."""
        names: dict[str, None] = dict.fromkeys(RETURNS_OF_ROWS)
        for session in run.layout.sessions(run.trial)[:1]:
            table = self.table(run, run.trial, session, "loss")
            known = (name for name in map(str, table) if np.isfinite(table[name]).any())
            names |= dict.fromkeys(name for name in known if name not in NOT_DRAWN)
        return tuple(names)

    def table(self, run: RunSummary, trial: int, session: int, y: str) -> pd.DataFrame:
        """A session's table; for returns that of its separate evaluations, if any."""
        if y in RETURNS_OF_ROWS:
            table = self._read(run.folder, run.layout.session_csv(trial, session, "eval"))
            if len(table.columns):
                return table
        return self._read(run.folder, run.layout.session_csv(trial, session, "train"))

    def _read(self, folder: Path, path: Path) -> pd.DataFrame:
        version = stamp(path)
        if not 0 < version[1] <= MAX_TABLE_BYTES:
            return pd.DataFrame()
        with self._lock:
            known = self._tables.get(path)
        if known and known[0] == version:
            return known[1]
        try:
            table = read_session(path, folder=folder)
        except ValueError:  # gone meanwhile, half written, or no table at all
            table = pd.DataFrame()
        with self._lock:
            self._tables[path] = (version, table)
            while len(self._tables) > self._most_tables:
                del self._tables[next(iter(self._tables))]
        return table


# Figures


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
    data = [part for trace in traces for part in _run_traces(trace, theme, with_sessions)]
    named = [trace for trace in traces if not trace.faint]
    layout = _layout(y, x, theme) | {"showlegend": len(named) > 1}
    if len(named) < len(traces):  # one box for dozens of trials would hide them
        layout["hovermode"] = "closest"
    return {"data": data, "layout": layout | _target_line(target, theme)}


def _run_traces(trace: Trace, theme: Theme, with_sessions: bool) -> list[dict[str, Any]]:
    if trace.faint:
        name = html.escape(trace.label)
        line = {"width": 1, "color": rgba(theme.faint, 0.5)}
        mean = _scatter(trace.curve.x, trace.curve.mean, line)
        return [mean | {"hovertemplate": f"{name}: %{{y:.5g}}<extra></extra>", "showlegend": False}]
    color = theme.colors[trace.place % len(theme.colors)]
    dash = DASHES[trace.place // len(theme.colors) % len(DASHES)]
    curve, name = trace.curve, html.escape(trace.label)
    band: list[dict[str, Any]] = []
    if len(curve.sessions) > 1:
        x = np.concatenate([curve.x, curve.x[::-1]])
        edge = _scatter(x, np.concatenate([curve.high, curve.low[::-1]]), {"width": 0})
        band.append(edge | {"fill": "toself", "fillcolor": rgba(color, 0.16)})
        if with_sessions:
            faded = {"width": 1, "color": rgba(color, 0.45)}
            band += [_scatter(line.index, line, faded) for line in curve.sessions]
    if trace.raw is not None and len(trace.raw.x) > 1:
        faded = {"width": 1, "color": rgba(color, 0.35)}
        band.append(_scatter(trace.raw.x, trace.raw.mean, faded))
    quiet = {"hoverinfo": "skip", "showlegend": False, "legendgroup": name}
    mean = _scatter(curve.x, curve.mean, {"width": 2.2, "color": color, "dash": dash})
    if len(curve.x) == 1:  # a line through one point draws nothing
        mean["mode"] = "lines+markers"
    mean |= {"name": name, "legendgroup": name, "hovertemplate": "%{y:.5g}"}
    return [*(part | quiet for part in band), mean]


def _scatter(x: Iterable[float], y: Iterable[float], line: dict[str, Any]) -> dict[str, Any]:
    """A line to seven digits, all that a table holds: JSON of half the size."""
    numbers = {"x": [float(f"{v:.7g}") for v in x], "y": [float(f"{v:.7g}") for v in y]}
    return {"type": "scatter", "mode": "lines", **numbers, "line": line}


def _layout(y: str, x: Axis, theme: Theme) -> dict[str, Any]:
    title = {"font": {"color": theme.faint, "size": 12.5}, "standoff": 10}
    axis = {
        "gridcolor": theme.grid,
        "linecolor": theme.grid,
        "zeroline": False,
        "automargin": True,
        "tickfont": {"color": theme.faint, "size": 12},
    }
    y_title = title | {"text": html.escape(label(y))}
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "color": theme.ink, "size": 13},
        "margin": {"l": 12, "r": 16, "t": 40, "b": 12},  # the toolbar stands on top
        "hovermode": "x unified",
        "hoverlabel": {
            "bgcolor": theme.card,
            "bordercolor": theme.grid,
            "font": {"family": FONT, "color": theme.ink, "size": 12},
            "namelength": 48,
        },
        "legend": {
            "orientation": "h",
            "yref": "container",
            "y": 0,
            "yanchor": "bottom",
            "x": 0,
            "font": {"size": 12},
        },
        "xaxis": axis | {"title": title | {"text": AXIS_LABELS[x]}, "showgrid": False},
        "yaxis": axis | {"title": y_title},
        # A zoom lasts while the run grows; another quantity starts afresh.
        "uirevision": f"{x}/{y}",
        "datarevision": 0,
    }


def _target_line(target: float | None, theme: Theme) -> dict[str, Any]:
    """A dashed line with its label, where curves are still low."""
    if target is None:
        return {"shapes": [], "annotations": []}
    style = {"color": theme.faint, "width": 1.2, "dash": "6px,4px"}
    ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": target, "y1": target}
    place = {"xref": "paper", "x": 0, "y": target, "xanchor": "left", "yanchor": "bottom"}
    font = {"color": theme.faint, "size": 11.5}
    label = {"showarrow": False, "text": f"target {target:g}", "font": font}
    return {"shapes": [{"type": "line", **ends, "line": style}], "annotations": [place | label]}
