"""The page: its layout, and what follows when time passes or something is clicked.

Selecting rows decides what every panel shows. One timer asks for news; a panel is sent again only
if a run it shows has changed. Filtering happens in the browser (assets/page.js).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dash_ag_grid as dag
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from slm_lab.dashboard import panels
from slm_lab.dashboard.comparison import benchmark
from slm_lab.dashboard.curves import AXES, RETURNS, CurveStore
from slm_lab.dashboard.figures import (
    COLUMN_LABELS,
    MOST_RUNS,
    THEMES,
    Trace,
    figure,
)
from slm_lab.dashboard.run_files import log_names, log_text
from slm_lab.experiment.run_catalog import STATUSES, RunCatalog, RunSummary

REFRESH_SECONDS = 2.0
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
INDEX = """<!doctype html>
<html lang="en">
<head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}</head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body>
</html>
"""
SHOW: dict[str, str] = {}
HIDE: dict[str, str] = {"display": "none"}


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
    app.layout = lambda: _layout(catalog, refresh_seconds)
    _add_callbacks(app, catalog, store)
    return app


# Layout


def _layout(catalog: RunCatalog, refresh_seconds: float) -> Component:
    runs = catalog.scan()
    return html.Div(
        [
            dcc.Interval(id="tick", interval=int(refresh_seconds * 1_000)),
            dcc.Store(id="theme"),
            dcc.Store(id="version", data=catalog.version),
            dcc.Store(id="shown", data=_shown(runs, [], {})),
            dcc.Store(id="filtered"),
            _header(catalog, runs),
            html.Main(
                [
                    html.Div(
                        [_runs_card(runs), _panel_card()], id="runs-view", className="columns"
                    ),
                    html.Div(_benchmark_card(runs), id="benchmark-view", style=HIDE),
                ]
            ),
        ]
    )


def _header(catalog: RunCatalog, runs: Sequence[RunSummary]) -> Component:
    return html.Header(
        [
            html.H1("SLM Lab"),
            html.Code("/".join(catalog.root.parts[-2:]), className="root", title=str(catalog.root)),
            html.Div(panels.counts(runs), id="counts", **{"aria-live": "polite"}),
            _segments("view", {"runs": "Runs", "benchmark": "Benchmark"}, "runs", "View"),
            html.Button(
                "◐",
                id="theme-button",
                title="light or dark",
                **{"aria-label": "switch between light and dark"},
            ),
        ]
    )


def _runs_card(runs: Sequence[RunSummary]) -> Component:
    return html.Section(
        [
            html.Div(
                [
                    html.Label(
                        [
                            html.Span("Find a run", className="unseen"),
                            dcc.Input(id="text-filter", type="search", placeholder="Find a run"),
                        ]
                    ),
                    _named(
                        "envs",
                        dcc.Dropdown(
                            id="env-filter",
                            multi=True,
                            placeholder="All envs",
                            options=_names(run.env for run in runs),
                        ),
                    ),
                    _named(
                        "algorithms",
                        dcc.Dropdown(
                            id="algorithm-filter",
                            multi=True,
                            placeholder="All algorithms",
                            options=_names(run.algorithm for run in runs),
                        ),
                    ),
                    dcc.Checklist(
                        id="status-filter",
                        options=[
                            {
                                "value": status,
                                "label": html.Span([html.I(className=f"dot {status}"), status]),
                            }
                            for status in STATUSES
                        ],
                        value=[],
                        inline=True,
                    ),
                ],
                className="filters",
                role="search",
            ),
            dag.AgGrid(
                id="grid",
                rowData=[panels.run_row(run) for run in runs],
                columnDefs=RUN_COLUMNS,
                defaultColDef={"sortable": True, "resizable": True, "suppressMovable": True},
                getRowId="params.data.key",
                dashGridOptions={
                    "rowSelection": {
                        "mode": "multiRow",
                        "checkboxes": True,
                        "headerCheckbox": False,
                        "enableClickSelection": True,
                    },
                    "selectionColumnDef": {"width": 38, "pinned": "left"},
                    "isExternalFilterPresent": {"function": "true"},
                    "doesExternalFilterPass": {"function": "passes(params)"},
                    "rowHeight": 38,
                    "headerHeight": 36,
                    "animateRows": False,
                    "tooltipShowDelay": 300,
                },
                className="ag-theme-quartz",
                style={"height": None, "width": None},
            ),
            html.P(
                "Click a run to see it; tick several to compare them.",
                id="grid-hint",
                className="quiet",
            ),
        ],
        className="card runs",
        **{"aria-label": "runs"},
    )


def _panel_card() -> Component:
    return html.Section(
        [
            _segments("tab", TABS, "curves", "Panel"),
            html.Div(
                [
                    html.Div(
                        [
                            _named(
                                "quantity",
                                dcc.Dropdown(
                                    id="y",
                                    options=_columns(RETURNS),
                                    value=RETURNS[0],
                                    clearable=False,
                                    searchable=False,
                                ),
                            ),
                            _segments("x", SHORT_AXES, "frame", "x"),
                            dcc.Checklist(
                                id="with-sessions",
                                options=[{"label": "each session", "value": "yes"}],
                                value=[],
                            ),
                        ],
                        className="controls",
                    ),
                    html.Div(
                        dcc.Graph(
                            id="graph",
                            figure={"data": [], "layout": {"xaxis": {"visible": False}}},
                            config=GRAPH_CONFIG,
                        ),
                        className="graph-frame",
                    ),
                    html.P(id="graph-note", className="quiet"),
                ],
                id="curves-panel",
            ),
            html.Div(
                _named("log file", dcc.Dropdown(id="log-name", clearable=False, searchable=False)),
                id="log-controls",
                className="controls",
                style=HIDE,
            ),
            html.Div(
                dcc.Checklist(
                    id="all-keys",
                    options=[{"label": "also the keys that agree", "value": "yes"}],
                    value=[],
                ),
                id="spec-controls",
                className="controls",
                style=HIDE,
            ),
            html.Div(id="panel"),
        ],
        className="card panel",
        **{"aria-label": "selected runs"},
    )


def _benchmark_card(runs: Sequence[RunSummary]) -> Component:
    return html.Section(
        [
            html.H2("Runs against targets"),
            html.P(
                "The best trial of each algorithm in each env that has a target. Searches are left "
                "out: the highest of many scores is no result.",
                className="quiet",
            ),
            dag.AgGrid(
                id="benchmark",
                rowData=[panels.benchmark_row(row) for row in benchmark(runs)],
                columnDefs=BENCHMARK_COLUMNS,
                defaultColDef={"sortable": True, "resizable": True, "suppressMovable": True},
                dashGridOptions={"rowHeight": 38, "headerHeight": 36, "animateRows": False},
                className="ag-theme-quartz",
                style={"height": None, "width": None},
            ),
        ],
        className="card benchmark",
        **{"aria-label": "benchmark"},
    )


def _segments(id: str, options: Mapping[str, str], value: str, label: str) -> Component:
    """A choice of one, in a row: radio buttons, so that the arrow keys work."""
    return html.Div(
        dcc.RadioItems(
            id=id,
            options=[{"label": text, "value": name} for name, text in options.items()],
            value=value,
            inline=True,
        ),
        className="segments",
        role="group",
        **{"aria-label": label},
    )


def _named(name: str, control: Component) -> Component:
    """A control whose placeholder is its only label, named for those who do not see it."""
    return html.Div(control, role="group", **{"aria-label": name})


_NUMBER = {"type": "rightAligned", "valueFormatter": {"function": "number(params.value)"}}
_COUNT = {"type": "rightAligned", "valueFormatter": {"function": "count(params.value)"}}

RUN_COLUMNS: list[dict[str, Any]] = [
    {"field": "status", "width": 106, "cellRenderer": "Status", "tooltipField": "reason"},
    {"field": "label", "headerName": "Run", "minWidth": 150, "flex": 2, "tooltipField": "key"},
    {"field": "algorithm", "minWidth": 96, "flex": 1, "tooltipField": "algorithm"},
    {"field": "env", "minWidth": 108, "flex": 1.2, "tooltipField": "env"},
    {"field": "score", "width": 86, **_NUMBER},
    {"field": "progress", "width": 98, "cellRenderer": "Progress"},
    {
        "field": "started",
        "width": 112,
        "valueFormatter": {"function": "day(params.value)"},
        "tooltipField": "started",
    },
    {"field": "frame", "headerName": "Frames", "width": 98, **_COUNT},
    {"field": "sessions", "width": 98, "type": "rightAligned"},
]
BENCHMARK_COLUMNS: list[dict[str, Any]] = [
    {"field": "env", "minWidth": 170, "flex": 1.5, "tooltipField": "env"},
    {"field": "algorithm", "minWidth": 110, "flex": 1},
    {"field": "score", "width": 120, **_NUMBER},
    {"field": "target", "width": 110, **_NUMBER},
    {"field": "gap", "headerName": "Score − target", "width": 140, **_NUMBER},
    {"field": "reached", "headerName": "Target", "width": 130, "cellRenderer": "Reached"},
    {"field": "runs", "width": 90, "type": "rightAligned"},
    {"field": "sessions", "width": 110, "type": "rightAligned"},
    {"field": "frame", "headerName": "Frames", "width": 120, **_COUNT},
    {"field": "key", "headerName": "Best run", "minWidth": 240, "flex": 2, "tooltipField": "key"},
]


# Behaviour


def _add_callbacks(app: Dash, catalog: RunCatalog, store: CurveStore) -> None:
    def runs_of(shown: Mapping[str, Any]) -> list[RunSummary]:
        found = (catalog.get(str(key)) for key in shown["keys"])
        return [run for run in found if run is not None]

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
        _: int, selected: list[dict[str, Any]] | None, version: int, before: dict[str, Any]
    ) -> tuple[Any, ...]:
        """News of the data folder, if there are any, and of the runs that are shown."""
        runs = catalog.scan()
        shown = _shown(runs, [str(row.get("key")) for row in selected or []], before)
        if catalog.version == version:
            news: tuple[Any, ...] = (no_update,) * 6
        else:
            news = (
                [panels.run_row(run) for run in runs],
                [panels.benchmark_row(row) for row in benchmark(runs)],
                panels.counts(runs),
                _names(run.env for run in runs),
                _names(run.algorithm for run in runs),
                catalog.version,
            )
        return (*news, no_update if shown == before else shown)

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
        shown: dict[str, Any], y: str, x: str, with_sessions: list[str], theme: str | None
    ) -> tuple[Any, ...]:
        if theme not in THEMES or x not in AXES:
            return no_update, no_update, no_update
        runs = runs_of(shown)[:MOST_RUNS]
        axis = next(name for name in AXES if name == x)
        traces = [
            Trace(name, store.curve(run, y, axis), shown["places"].get(run.key, 0))
            for name, run in zip(panels.short_names(runs), runs, strict=True)
        ]
        drawn = [trace for trace in traces if not trace.curve.is_empty]
        target = panels.same_target(runs) if y in RETURNS and drawn else None
        columns = dict.fromkeys(name for run in runs for name in store.columns(run))
        return (
            figure(
                drawn,
                y=y,
                x=axis,
                theme=THEMES[theme],
                with_sessions=bool(with_sessions),
                target=target,
            ),
            _graph_note(shown, runs, drawn),
            _columns(columns or RETURNS),
        )

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
        tab: str, shown: dict[str, Any], log_name: str | None, all_keys: list[str]
    ) -> tuple[Any, ...]:
        runs = runs_of(shown)
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
            names = log_names(runs[0])
            value = log_name if log_name in names else next(iter(names), None)
            options = [{"label": name, "value": name} for name in names]
            text = log_text(runs[0], value) if value else ""
            content = html.Pre(text or "No log yet.", className="log", tabIndex="0")
        return content, *styles, options, value

    @app.callback(  # type: ignore[untyped-decorator]
        Output("runs-view", "style"),
        Output("benchmark-view", "style"),
        Input("view", "value"),
    )
    def show_view(view: str) -> tuple[dict[str, str], dict[str, str]]:
        return (SHOW, HIDE) if view == "runs" else (HIDE, SHOW)

    in_browser = {
        "set_theme": (Output("theme", "data"), [Input("theme-button", "n_clicks")]),
        "filter_runs": (
            Output("filtered", "data"),
            [
                Input("text-filter", "value"),
                Input("env-filter", "value"),
                Input("algorithm-filter", "value"),
                Input("status-filter", "value"),
            ],
        ),
    }
    for name, (output, inputs) in in_browser.items():
        app.clientside_callback(ClientsideFunction("page", name), output, inputs)


def _shown(
    runs: Sequence[RunSummary], selected: Sequence[str], before: Mapping[str, Any]
) -> dict[str, Any]:
    """Which runs the panels show, how fresh they are, and their places in the palette.

    Without a selection it is the latest run that is running, else the latest of all.
    """
    by_key = {run.key: run for run in runs}
    keys = [key for key in selected if key in by_key]
    if not keys and runs:
        keys = [next((run.key for run in runs if run.status == "running"), runs[0].key)]
    return {
        "keys": keys,
        "stamps": [[by_key[key].updated, by_key[key].status] for key in keys],
        "places": panels.places(before.get("places", {}), keys[:MOST_RUNS], MOST_RUNS),
    }


def _graph_note(
    shown: Mapping[str, Any], runs: Sequence[RunSummary], drawn: Sequence[Trace]
) -> str:
    if not runs:
        return ""
    if not drawn:
        return "No row of the curve yet."
    notes = []
    if len(runs) == 1:
        notes.append(f"{runs[0].key}.")
    if any(len(trace.curve.sessions) > 1 for trace in drawn):
        notes.append("Mean over sessions, band of one standard deviation.")
    if len(shown["keys"]) > MOST_RUNS:
        notes.append(f"The first {MOST_RUNS} of {len(shown['keys'])} selected runs.")
    return " ".join(notes)


def _columns(names: Sequence[str] | Mapping[str, None]) -> list[dict[str, str]]:
    return [{"label": COLUMN_LABELS.get(name, name), "value": name} for name in names]


def _names(values: Any) -> list[str]:
    return sorted({value for value in values if value})
