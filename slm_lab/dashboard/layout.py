"""Structure of the page. The rows selected in the grid decide what every panel shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dash_ag_grid as dag
from dash import dcc, html
from dash.development.base_component import Component

from slm_lab.dashboard import panels
from slm_lab.dashboard.curves import COLUMN_LABELS, MOST_RUNS, RETURNS
from slm_lab.dashboard.run_files import benchmark_rows
from slm_lab.runs.catalog import RunCatalog
from slm_lab.runs.summary import STATUSES, RunSummary

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
    grid = _grid("grid", rows, RUN_COLUMNS, options, getRowId="params.data.key")
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


def _grid(
    id: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    **attributes: str,
) -> Component:
    return dag.AgGrid(
        id=id,
        rowData=rows,
        columnDefs=columns,
        defaultColDef={"sortable": True, "resizable": True, "suppressMovable": True},
        dashGridOptions={"rowHeight": 38, "headerHeight": 36, "animateRows": False, **options},
        className="ag-theme-quartz",
        style={"height": None, "width": None},
        **attributes,
    )


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
    grid = _grid("benchmark", benchmark_rows(runs), BENCHMARK_COLUMNS, {})
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


_NUMBER = {"type": "rightAligned", "valueFormatter": {"function": "number(params.value)"}}
_DAY = {"function": "day(params.value)"}
_COUNT = {"type": "rightAligned", "valueFormatter": {"function": "count(params.value)"}}

RUN_COLUMNS: list[dict[str, Any]] = [
    {"field": "status", "width": 106, "cellRenderer": "Status", "tooltipField": "reason"},
    {"field": "label", "headerName": "Run", "minWidth": 150, "flex": 2, "tooltipField": "key"},
    {"field": "algorithm", "minWidth": 96, "flex": 1, "tooltipField": "algorithm"},
    {"field": "env", "minWidth": 108, "flex": 1.2, "tooltipField": "env"},
    {"field": "score", "width": 86, **_NUMBER},
    {"field": "progress", "width": 98, "cellRenderer": "Progress"},
    {"field": "started", "width": 112, "valueFormatter": _DAY, "tooltipField": "started"},
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
    return [{"label": COLUMN_LABELS.get(name, name), "value": name} for name in names]


def names(values: Iterable[str]) -> list[str]:
    return sorted({value for value in values if value})
