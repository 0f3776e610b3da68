"""The graphs of a trial and of its sessions, as PNG files and as interactive HTML pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from slm_lab.analysis import plot
from slm_lab.analysis.curves import FRAMES, XAxis, common_axes, curve, return_label
from slm_lab.analysis.metrics import Series, consistencies, moving_average
from slm_lab.analysis.plot import Panel, View, copy_graph, curves_view
from slm_lab.analysis.tables import SessionResult
from slm_lab.runs.files import make_folder
from slm_lab.runs.layout import Mode, RunLayout

RETURNS = (("mean_returns", False), ("mean_returns_ma", True))
OPTIONAL_GRAPHS = ("loss", "explore_var", "entropy")  # drawn where the column exists
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
    for session in sessions:
        _draw_session(paths, trial, session, log_extra=log_extra)
        if html:
            _write_session_pages(paths, trial, session)
    tables = {f"session {session.index}": session.tables["eval"] for session in sessions}
    title = paths.trial_name(trial)
    for x in common_axes(tables.values()) if html else [FRAMES]:
        for y, smooth in RETURNS:
            path = paths.trial_graph(trial, y, x.name)
            plot.plot_tables(list(tables.values()), path, title=title, x=x, smooth=smooth)
    for y, _ in RETURNS:
        copy_graph(paths.trial_graph(trial, y), paths.trial_graph_copy(trial, y))
    if html:
        panel = _returns_panel(tables)
        plot.write_page(paths.trial_graph_html(trial), title, [panel], home=paths.predir)
    if log_extra:
        _draw_trial_extras(paths, trial, sessions)


# Sessions


def _draw_session(paths: RunLayout, trial: int, session: SessionResult, *, log_extra: bool) -> None:
    names = list(_draw_mode(paths, trial, session, "train", log_extra=log_extra))
    if session.has_own_eval:
        list(_draw_mode(paths, trial, session, "eval", log_extra=log_extra))
        return
    for y, x in names:  # drawing is slow, copying is not
        copy_graph(
            paths.session_graph(trial, session.index, "train", y, x),
            paths.session_graph(trial, session.index, "eval", y, x),
        )


def _draw_mode(
    paths: RunLayout, trial: int, session: SessionResult, mode: Mode, *, log_extra: bool
) -> Iterator[tuple[str, str]]:
    """Draw the session's graphs and yield y and x of each, as its file name has them."""
    table, local = session.tables[mode], session.metrics[mode].local
    title = f"{paths.session_name(trial, session.index)} {mode}"

    def path(y: str, x: str) -> Path:
        return paths.session_graph(trial, session.index, mode, y, x)

    for y, smooth in RETURNS:
        plot.plot_tables([table], path(y, "frames"), title=title, smooth=smooth)
        yield y, "frames"
    for y in _optional(table):
        plot.plot_tables([table], path(y, "frame"), title=title, y=y)
        yield y, "frame"
    if log_extra:
        for name, x in EXTRA_GRAPHS.items():
            for y, smooth in ((name, False), (f"{name}_ma", True)):
                line = _local_curve(local, name, x, smooth=smooth)
                plot.plot_curves([line], path(y, x), title=title, y_label=y, x_label=x)
                yield y, x


def _write_session_pages(paths: RunLayout, trial: int, session: SessionResult) -> None:
    """Write a page of the returns and the optional columns, against every axis.

    Where training and evaluation are one table there is one page.
    """
    for mode, table in session.tables.items():
        if mode == "eval" and not session.has_own_eval:
            continue
        title = f"{paths.session_name(trial, session.index)} {mode}"
        panels = [_returns_panel({"return": table})]
        panels += [_column_panel(table, y) for y in _optional(table)]
        path = paths.session_graph_html(trial, session.index, mode)
        plot.write_page(path, title, panels, home=paths.predir)


def _returns_panel(tables: Mapping[str, pd.DataFrame]) -> Panel:
    def view(x: XAxis, smooth: bool) -> View:
        curves = {name: curve(table, x=x, smooth=smooth) for name, table in tables.items()}
        return curves_view(curves, x_label=x.label, y_label=return_label(smooth))

    return plot.returns_panel(common_axes(tables.values()), view)


def _column_panel(table: pd.DataFrame, y: str) -> Panel:
    axes = common_axes([table])
    curves = {x.label: {y: curve(table, y, x)} for x in axes}
    views = {(x,): curves_view(drawn, x_label=x, y_label=y) for x, drawn in curves.items()}
    return Panel(views, {"against": list(curves)})


def _optional(table: pd.DataFrame) -> list[str]:
    return [y for y in OPTIONAL_GRAPHS if y in table and table[y].notna().any()]


# Extras


def _draw_trial_extras(paths: RunLayout, trial: int, sessions: Sequence[SessionResult]) -> None:
    title, locals_ = paths.trial_name(trial), [s.metrics["eval"].local for s in sessions]
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
