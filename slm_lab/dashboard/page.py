"""The page: its structure, and what a tick of the timer or a click changes.

The rows selected in the grid decide what every panel shows. One timer asks for changes; a panel is
sent again only if a run it shows has changed. Filtering and light or dark happen in the browser
(assets/page.js).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from slm_lab.dashboard import curves, grids, panels
from slm_lab.dashboard.curves import MOST_RUNS, RETURNS, CurveStore, Trace
from slm_lab.dashboard.run_files import benchmark_rows, log_names, log_text
from slm_lab.runs.catalog import RunCatalog
from slm_lab.runs.glossary import label, meaning
from slm_lab.runs.summary import STATUSES, RunSummary

REFRESH_SECONDS = 2.0
MOST_TRIALS = 60  # of a search in one graph, beside its best
INDEX = """<!doctype html>
<html lang="en">
<head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}</head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body>
</html>
"""
TABS = {
    "curves": "Curves",
    "details": "Metrics",
    "spec": "Spec",
    "profile": "Profile",
    "log": "Log",
    "video": "Video",
}
GRAPH_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
}
SHORT_AXES = {"frame": "frames", "wall_t": "time", "opt_step": "steps"}
SHOW: dict[str, str] = {}
HIDE = {"display": "none"}


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


# Structure


def page_layout(catalog: RunCatalog, refresh_seconds: float) -> Component:
    runs = catalog.scan()
    views = [
        html.Div([_runs_card(runs), _panel_card()], id="runs-view", className="columns"),
        html.Div(_benchmark_card(runs), id="benchmark-view", style=HIDE),
    ]
    return html.Div(
        [
            dcc.Interval(id="tick", interval=int(refresh_seconds * 1_000)),
            dcc.Store(id="theme"),
            dcc.Store(id="version", data=catalog.version),
            dcc.Store(id="shown", data=shown_runs(runs, [], {})),
            dcc.Store(id="filtered"),
            _header(catalog, runs),
            html.Main(views),
        ]
    )


def _header(catalog: RunCatalog, runs: Sequence[RunSummary]) -> Component:
    label = {"aria-label": "switch between light and dark"}
    return html.Header(
        [
            html.H1("SLM Lab"),
            html.Code("/".join(catalog.root.parts[-2:]), className="root", title=str(catalog.root)),
            html.Div(panels.counts(runs), id="counts", **{"aria-live": "polite"}),
            _segments("view", {"runs": "Runs", "benchmark": "Benchmark"}, "View"),
            html.Button("◐", id="theme-button", title="light or dark", **label),
        ]
    )


def _runs_card(runs: Sequence[RunSummary]) -> Component:
    boxes = {"checkboxes": True, "headerCheckbox": False}
    options = {
        "rowSelection": {"mode": "multiRow", **boxes, "enableClickSelection": True},
        "selectionColumnDef": {"width": 38, "pinned": "left"},
        "isExternalFilterPresent": {"function": "true"},
        "doesExternalFilterPass": {"function": "passes(params)"},
        "tooltipShowDelay": 300,
    }
    rows = [panels.run_row(run) for run in runs]
    grid = grids.grid("grid", rows, grids.RUN_COLUMNS, options, getRowId="params.data.key")
    hint = "Click a run to see it; tick several to compare them."
    quiet = html.P(hint, id="grid-hint", className="quiet")
    return _card("runs", "runs", [_filters(runs), grid, quiet])


def _filters(runs: Sequence[RunSummary]) -> Component:
    statuses = [
        {"value": status, "label": html.Span([html.I(className=f"dot {status}"), status])}
        for status in STATUSES
    ]
    text = dcc.Input(id="text-filter", type="search", placeholder="Find a run")
    filters = [
        html.Label([html.Span("Find a run", className="unseen"), text]),
        _choice_of("envs", "env-filter", (run.env for run in runs)),
        _choice_of("algorithms", "algorithm-filter", (run.algorithm for run in runs)),
        dcc.Checklist(id="status-filter", options=statuses, value=[], inline=True),
    ]
    return html.Div(filters, className="filters", role="search")


def _choice_of(kind: str, id: str, values: Iterable[str]) -> Component:
    dropdown = dcc.Dropdown(id=id, multi=True, placeholder=f"All {kind}", options=names(values))
    return _named(kind, dropdown)


def _panel_card() -> Component:
    log = _named("log file", dcc.Dropdown(id="log-name", clearable=False, searchable=False))
    all_keys = _checkbox("all-keys", "also the keys that agree")
    parts = [
        _segments("tab", TABS, "Panel"),
        _curves_panel(),
        html.Div(log, id="log-controls", className="controls", style=HIDE),
        html.Div(all_keys, id="spec-controls", className="controls", style=HIDE),
        html.Div(id="panel"),
    ]
    return _card("panel", "selected runs", parts)


def _curves_panel() -> Component:
    choice = {"options": column_options(RETURNS), "value": RETURNS[0]}
    quantity = dcc.Dropdown(id="y", **choice, clearable=False, searchable=False)
    controls = [
        _named("quantity", quantity),
        _segments("x", SHORT_AXES, "x"),
        _checkbox("with-sessions", "each session"),
    ]
    empty = {"data": [], "layout": {"xaxis": {"visible": False}}}
    graph = dcc.Graph(id="graph", figure=empty, config=GRAPH_CONFIG)
    parts = [
        html.Div(controls, className="controls"),
        html.Div(graph, className="graph-frame"),
        html.P(id="graph-note", className="quiet"),
    ]
    return html.Div(parts, id="curves-panel")


def _checkbox(id: str, label: str) -> Component:
    return dcc.Checklist(id=id, options=[{"label": label, "value": "yes"}], value=[])


def _benchmark_card(runs: Sequence[RunSummary]) -> Component:
    note = (
        "The best trial of each algorithm in each env that has a target. Searches are left out: "
        "the highest of many scores is no result."
    )
    grid = grids.grid("benchmark", benchmark_rows(runs), grids.BENCHMARK_COLUMNS, {})
    parts = [html.H2("Runs against targets"), html.P(note, className="quiet"), grid]
    return _card("benchmark", "benchmark", parts)


def _card(kind: str, label: str, parts: Sequence[Component]) -> Component:
    return html.Section(parts, className=f"card {kind}", **{"aria-label": label})


def _segments(id: str, options: Mapping[str, str], label: str) -> Component:
    """Radio buttons in a row, which the arrow keys move through; the first is chosen."""
    choices = [{"label": text, "value": name} for name, text in options.items()]
    radio = dcc.RadioItems(id=id, options=choices, value=next(iter(options)), inline=True)
    return _named(label, radio, className="segments")


def _named(name: str, control: Component, **attributes: str) -> Component:
    """Give a control without a visible label a name for screen readers."""
    return html.Div(control, role="group", **attributes, **{"aria-label": name})


def shown_runs(
    runs: Sequence[RunSummary], selected: Sequence[str], places_before: Mapping[str, Any]
) -> dict[str, Any]:
    """The runs that the panels show, their times of change, and their places in the palette.

    Without a selection it is the newest run that is running, else the newest of all.
    """
    by_key = {run.key: run for run in runs}
    keys = [key for key in selected if key in by_key]
    if not keys and runs:
        keys = [next((run.key for run in runs if run.status == "running"), runs[0].key)]
    return {
        "keys": keys,
        "stamps": [[by_key[key].updated, by_key[key].status] for key in keys],
        "places": panels.places(places_before, keys[:MOST_RUNS], MOST_RUNS),
    }


def column_options(names: Sequence[str] | Mapping[str, None]) -> list[dict[str, str]]:
    return [{"label": label(name), "value": name} for name in names]


def names(values: Iterable[str]) -> list[str]:
    return sorted({value for value in values if value})


# Callbacks


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
        axis = next((name for name in curves.AXIS_LABELS if name == x), None)
        colors = curves.THEMES.get(theme) if isinstance(theme, str) else None
        if axis is None or colors is None or not isinstance(y, str):
            return no_update, no_update, no_update
        runs = _shown_runs(catalog, shown)[:MOST_RUNS]
        traces = [
            store.trace(run, y, axis, label=name, place=_place(shown, run.key))
            for name, run in zip(panels.short_names(runs), runs, strict=True)
        ]
        if len(runs) == 1 and runs[0].kind == "search":
            traces = [*store.trials(runs[0], y, axis, MOST_TRIALS), *traces]
        drawn = [trace for trace in traces if not trace.curve.is_empty]
        target = panels.same_target(runs) if y in RETURNS and drawn else None
        columns = dict.fromkeys(name for run in runs for name in store.columns(run))
        each = bool(with_sessions)
        content = curves.figure(drawn, y=y, x=axis, theme=colors, with_sessions=each, target=target)
        return content, _graph_note(shown, runs, drawn, y), column_options(columns or RETURNS)


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


def _graph_note(shown: object, runs: Sequence[RunSummary], drawn: Sequence[Trace], y: str) -> str:
    if not runs:
        return ""
    if not drawn:
        return "No row of the curve yet."
    notes = []
    if len(runs) == 1:
        best = ""
        if runs[0].kind == "search":
            others = sum(trace.faint for trace in drawn)
            best = f", trial {runs[0].trial}, the best so far; in grey, {others} other trial(s)"
        notes.append(f"{runs[0].key}{best}.")
    if any(len(trace.curve.sessions) > 1 for trace in drawn):
        notes.append("Mean over sessions, band of one standard deviation.")
    if any(trace.raw for trace in drawn):
        notes.append("Faint: without smoothing.")
    count = len(_part(shown, "keys", list))
    if count > MOST_RUNS:
        notes.append(f"The first {MOST_RUNS} of {count} selected runs.")
    notes.append(meaning(y).partition(". ")[0].replace("`", ""))
    return " ".join(notes)
