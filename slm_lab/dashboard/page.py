"""Callbacks of the page: what a tick of the timer or a click changes.

One timer asks for changes; a panel is sent again only if a run it shows has changed. Filtering and
light or dark happen in the browser (assets/page.js).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from dash import ClientsideFunction, Dash, Input, Output, State, html, no_update

from slm_lab.dashboard import panels
from slm_lab.dashboard.curves import (
    AXIS_LABELS,
    MOST_RUNS,
    RETURNS,
    THEMES,
    CurveStore,
    Trace,
    figure,
)
from slm_lab.dashboard.layout import HIDE, SHOW, column_options, names, page_layout, shown_runs
from slm_lab.dashboard.run_files import benchmark_rows, log_names, log_text
from slm_lab.runs.catalog import RunCatalog
from slm_lab.runs.summary import RunSummary

REFRESH_SECONDS = 2.0
INDEX = """<!doctype html>
<html lang="en">
<head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}</head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body>
</html>
"""


def build_app(
    catalog: RunCatalog, store: CurveStore, refresh_seconds: float = REFRESH_SECONDS
) -> Dash:
    app = Dash(
        __name__,
        title="SLM Lab",
        update_title="",
        index_string=INDEX,
        assets_folder=str(Path(__file__).parent / "assets"),
        serve_locally=True,
        enable_mcp=False,
        add_log_handler=False,
    )
    app.layout = lambda: page_layout(catalog, refresh_seconds)
    _add_timer(app, catalog)
    _add_graph(app, catalog, store)
    _add_panels(app, catalog)
    _add_browser_callbacks(app)
    return app


def _shown_runs(catalog: RunCatalog, shown: object) -> list[RunSummary]:
    found = (catalog.get(str(key)) for key in _part(shown, "keys", list))
    return [run for run in found if run is not None]


def _add_timer(app: Dash, catalog: RunCatalog) -> None:
    @app.callback(  # type: ignore[untyped-decorator]
        Output("grid", "rowData"),
        Output("benchmark", "rowData"),
        Output("counts", "children"),
        Output("env-filter", "options"),
        Output("algorithm-filter", "options"),
        Output("version", "data"),
        Output("shown", "data"),
        Input("tick", "n_intervals"),
        Input("grid", "selectedRows"),
        State("version", "data"),
        State("shown", "data"),
        prevent_initial_call=True,
    )
    def look_again(
        _: int, selected: object, version: int, before: dict[str, Any] | None
    ) -> tuple[Any, ...]:
        """Rows of the grids if the data folder has changed, and the runs that are shown."""
        runs = catalog.scan()
        ticked = selected if isinstance(selected, list) else []
        keys = [str(row.get("key")) for row in ticked if isinstance(row, dict)]
        shown = shown_runs(runs, keys, _part(before, "places", dict))
        told = no_update if shown == before else shown
        if catalog.version == version:
            return (*(no_update,) * 6, told)
        rows = [panels.run_row(run) for run in runs]
        envs, algorithms = names(run.env for run in runs), names(run.algorithm for run in runs)
        counts = panels.counts(runs)
        return rows, benchmark_rows(runs), counts, envs, algorithms, catalog.version, told


def _add_graph(app: Dash, catalog: RunCatalog, store: CurveStore) -> None:
    @app.callback(  # type: ignore[untyped-decorator]
        Output("graph", "figure"),
        Output("graph-note", "children"),
        Output("y", "options"),
        Input("shown", "data"),
        Input("y", "value"),
        Input("x", "value"),
        Input("with-sessions", "value"),
        Input("theme", "data"),
    )
    def draw(
        shown: object, y: object, x: object, with_sessions: object, theme: object
    ) -> tuple[Any, ...]:
        axis = next((name for name in AXIS_LABELS if name == x), None)
        colors = THEMES.get(theme) if isinstance(theme, str) else None
        if axis is None or colors is None or not isinstance(y, str):
            return no_update, no_update, no_update
        runs = _shown_runs(catalog, shown)[:MOST_RUNS]
        traces = [
            Trace(name, store.curve(run, y, axis), _place(shown, run.key))
            for name, run in zip(panels.short_names(runs), runs, strict=True)
        ]
        drawn = [trace for trace in traces if not trace.curve.is_empty]
        target = panels.same_target(runs) if y in RETURNS and drawn else None
        columns = dict.fromkeys(name for run in runs for name in store.columns(run))
        each = bool(with_sessions)
        content = figure(drawn, y=y, x=axis, theme=colors, with_sessions=each, target=target)
        return content, _graph_note(shown, runs, drawn), column_options(columns or RETURNS)


def _add_panels(app: Dash, catalog: RunCatalog) -> None:
    @app.callback(  # type: ignore[untyped-decorator]
        Output("panel", "children"),
        Output("curves-panel", "style"),
        Output("log-controls", "style"),
        Output("spec-controls", "style"),
        Output("log-name", "options"),
        Output("log-name", "value"),
        Input("tab", "value"),
        Input("shown", "data"),
        Input("log-name", "value"),
        Input("all-keys", "value"),
    )
    def show_panel(
        tab: object, shown: object, log_name: object, all_keys: object
    ) -> tuple[Any, ...]:
        runs = _shown_runs(catalog, shown)
        styles = tuple(SHOW if tab == name else HIDE for name in ("curves", "log", "spec"))
        options, value = no_update, no_update
        content: Any = None
        if not runs:
            content = html.P("Nothing to show yet.", className="quiet")
        elif tab == "details":
            content = panels.details(runs)
        elif tab == "spec":
            content = panels.spec_table(runs, only_differences=not all_keys)
        elif tab == "profile":
            content = panels.profile_bars(runs)
        elif tab == "video":
            content = panels.video_list(runs)
        elif tab == "log":
            known = log_names(runs[0])
            value = log_name if log_name in known else next(iter(known), None)
            options = [{"label": name, "value": name} for name in known]
            text = log_text(runs[0], value) if value else ""
            content = html.Div(html.Pre(text or "No log yet."), className="log", tabIndex="0")
        return content, *styles, options, value


def _add_browser_callbacks(app: Dash) -> None:
    """View, theme and filters."""

    @app.callback(  # type: ignore[untyped-decorator]
        Output("runs-view", "style"),
        Output("benchmark-view", "style"),
        Input("view", "value"),
    )
    def show_view(view: str) -> tuple[dict[str, str], dict[str, str]]:
        return (SHOW, HIDE) if view == "runs" else (HIDE, SHOW)

    set_theme, filter_runs = (
        ClientsideFunction("page", name) for name in ("set_theme", "filter_runs")
    )
    app.clientside_callback(set_theme, Output("theme", "data"), [Input("theme-button", "n_clicks")])
    filters = [Input(f"{kind}-filter", "value") for kind in ("text", "env", "algorithm", "status")]
    app.clientside_callback(filter_runs, Output("filtered", "data"), filters)


T = TypeVar("T", list[Any], dict[str, Any])


def _part(value: object, name: str, kind: type[T]) -> T:
    """A part of the state that the page sends; empty if a request sends anything else."""
    part = value.get(name) if isinstance(value, dict) else None
    return part if isinstance(part, kind) else kind()


def _place(shown: object, key: str) -> int:
    """The run's place in the palette."""
    place = _part(shown, "places", dict).get(key)
    return place if isinstance(place, int) and 0 <= place < MOST_RUNS else 0


def _graph_note(shown: object, runs: Sequence[RunSummary], drawn: Sequence[Trace]) -> str:
    if not runs:
        return ""
    if not drawn:
        return "No row of the curve yet."
    notes = []
    if len(runs) == 1:
        best = f", trial {runs[0].trial}, the best so far" if runs[0].kind == "search" else ""
        notes.append(f"{runs[0].key}{best}.")
    if any(len(trace.curve.sessions) > 1 for trace in drawn):
        notes.append("Mean over sessions, band of one standard deviation.")
    count = len(_part(shown, "keys", list))
    if count > MOST_RUNS:
        notes.append(f"The first {MOST_RUNS} of {count} selected runs.")
    return " ".join(notes)
