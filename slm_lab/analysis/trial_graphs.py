"""The graphs of a trial and of its sessions, as PNG files and as interactive HTML pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from slm_lab.analysis import plot
from slm_lab.analysis.curves import FRAMES, XAxis, common_axes, curve, return_label
from slm_lab.analysis.metrics import Series, consistencies, moving_average
from slm_lab.analysis.plot import Heading, Panel, View, copy_graph, curves_view
from slm_lab.analysis.tables import SessionResult, TrialFacts, read_facts
from slm_lab.runs.files import make_folder
from slm_lab.runs.glossary import LEARNING, label
from slm_lab.runs.layout import Mode, RunLayout

RETURNS = (("mean_returns", False), ("mean_returns_ma", True))
OPTIONAL_GRAPHS = ("loss", "explore_var", "entropy")  # PNG files, where the column exists
EXTRA_GRAPHS = {  # local series, and what each is drawn against
    "strengths": "frames",
    "sample_efficiencies": "frames",
    "stabilities": "frames",
    "training_efficiencies": "opt_steps",
}


def draw_trial(
    paths: RunLayout,
    trial: int,
    sessions: Sequence[SessionResult],
    *,
    log_extra: bool = False,
    html: bool = True,
) -> None:
    """Draw the trial's graphs and those of its sessions, over whatever was drawn before.

    Without `html` there are no pages, and PNG against frames alone.
    """
    make_folder(paths.predir, paths.trial_graph(trial, "").parent)  # and refuse a link there
    facts = read_facts(paths.predir, trial)
    for session in sessions:
        for mode in session.tables:
            title = _heading(facts, f"{paths.session_name(trial, session.index)} {mode}", [session])
            _draw_session(paths, trial, session, mode, title, log_extra=log_extra)
            if html:
                _write_session_page(paths, trial, session, mode, title)
    tables = {f"session {session.index}": session.table for session in sessions}
    title = _heading(facts, paths.trial_name(trial), sessions)
    for x in common_axes(tables.values()) if html else [FRAMES]:
        for y, smooth in RETURNS:
            path = paths.trial_graph(trial, y, x.name)
            plot.plot_tables(list(tables.values()), path, title=title, x=x, smooth=smooth)
    for y, _ in RETURNS:
        copy_graph(paths.trial_graph(trial, y), paths.trial_graph_copy(trial, y))
    if html:
        panels = [_returns_panel(tables, title.target)]
        panels += [_column_panel(tables, y) for y in _columns(tables.values(), LEARNING)]
        plot.write_page(paths.trial_graph_html(trial), title, panels, home=paths.predir)
    if log_extra:
        _draw_trial_extras(paths, trial, sessions)


def _heading(facts: TrialFacts, name: str, sessions: Sequence[SessionResult]) -> Heading:
    """Env, algorithm and score of the sessions above a graph."""
    named = {"last 100 episodes": "last_100_return", "moving average": "total_reward_ma"}
    scores = {
        told: float(np.mean([session.scored.scalar[metric] for session in sessions]))
        for told, metric in named.items()
    }
    known = [f"{told} {score:.2f}" for told, score in scores.items() if not np.isnan(score)]
    title = f"{facts.algorithm} on {facts.env}"
    return Heading(": ".join([title, *known[:1]]), " · ".join([name, *known[1:]]), facts.target)


# Sessions


def _draw_session(
    paths: RunLayout,
    trial: int,
    session: SessionResult,
    mode: Mode,
    title: Heading,
    *,
    log_extra: bool,
) -> None:
    table, local = session.tables[mode], session.metrics[mode].local
    of_column = replace(title, target=None)

    def path(y: str, x: str) -> Path:
        return paths.session_graph(trial, session.index, mode, y, x)

    for y, smooth in RETURNS:
        plot.plot_tables([table], path(y, "frames"), title=title, smooth=smooth)
    for y in _columns([table], OPTIONAL_GRAPHS):
        plot.plot_tables([table], path(y, "frame"), title=of_column, y=y)
    if log_extra:
        for name, x in EXTRA_GRAPHS.items():
            for y, smooth in ((name, False), (f"{name}_ma", True)):
                line = _local_curve(local, name, x, smooth=smooth)
                plot.plot_curves([line], path(y, x), title=of_column, y_label=y, x_label=x)


def _write_session_page(
    paths: RunLayout, trial: int, session: SessionResult, mode: Mode, title: Heading
) -> None:
    """Write a page of the returns and of what was learned, against every axis."""
    tables = {"return": session.tables[mode]}
    panels = [_returns_panel(tables, title.target)]
    panels += [_column_panel(tables, y) for y in _columns(tables.values(), LEARNING)]
    path = paths.session_graph_html(trial, session.index, mode)
    plot.write_page(path, title, panels, home=paths.predir)


def _returns_panel(tables: Mapping[str, pd.DataFrame], target: float | None) -> Panel:
    def view(x: XAxis, smooth: bool) -> View:
        curves = {name: curve(table, x=x, smooth=smooth) for name, table in tables.items()}
        raw = [curve(table, x=x) for table in tables.values()] if smooth else ()
        name = return_label(smooth)
        return curves_view(curves, x_label=x.label, y_label=name, raw=raw, target=target)

    return plot.returns_panel(common_axes(tables.values()), view)


def _column_panel(tables: Mapping[str, pd.DataFrame], y: str) -> Panel:
    name = label(y)
    views = {
        (x.label,): curves_view(
            {session if len(tables) > 1 else name: curve(t, y, x) for session, t in tables.items()},
            x_label=x.label,
            y_label=name,
        )
        for x in common_axes(tables.values())
    }
    return Panel(views, {"against": [x for (x,) in views]})


def _columns(tables: Iterable[pd.DataFrame], names: Iterable[str]) -> list[str]:
    """Those of the columns that have a number in every table."""
    return [y for y in names if all(y in table and table[y].notna().any() for table in tables)]


# Extras


def _draw_trial_extras(paths: RunLayout, trial: int, sessions: Sequence[SessionResult]) -> None:
    title, locals_ = paths.trial_name(trial), [s.scored.local for s in sessions]
    for name, x in EXTRA_GRAPHS.items():
        for y, smooth in ((name, False), (f"{name}_ma", True)):
            lines = [_local_curve(local, name, x, smooth=smooth) for local in locals_]
            path = paths.trial_graph(trial, y, x)
            plot.plot_curves(lines, path, title=title, y_label=y, x_label=x)
    values = consistencies([local["strengths"] for local in locals_])
    frames = locals_[0]["frames"][: len(values)]
    line = pd.Series(values[: len(frames)], index=frames)
    path = paths.trial_graph(trial, "consistencies")
    plot.plot_curves([line], path, title=title, y_label="consistencies")


def _local_curve(local: Mapping[str, Series], name: str, x: str, *, smooth: bool) -> pd.Series:
    values = moving_average(local[name]) if smooth else local[name]
    # A series of differences (stabilities) has no entry for the first checkpoint.
    return pd.Series(values, index=local[x][len(local[x]) - len(values) :])
