"""Structure of the page. The rows selected in the grid decide what every panel shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dash_ag_grid as dag
from dash import dcc, html
from dash.development.base_component import Component

from slm_lab.dashboard import panels
from slm_lab.dashboard.comparison import benchmark
from slm_lab.dashboard.curves import RETURNS
from slm_lab.dashboard.figures import COLUMN_LABELS, MOST_RUNS
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
HIDE: dict[str, str] = {"display": "none"}


def page_layout(catalog: RunCatalog, refresh_seconds: float) -> Component:
    runs = catalog.scan()
    return html.Div(
        [
            dcc.Interval(id="tick", interval=int(refresh_seconds * 1_000)),
            dcc.Store(id="theme"),
            dcc.Store(id="version", data=catalog.version),
            dcc.Store(id="shown", data=shown_runs(runs, [], {})),
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
    selection = {
        "mode": "multiRow",
        "checkboxes": True,
        "headerCheckbox": False,
        "enableClickSelection": True,
    }
    grid = _grid(
        "grid",
        [panels.run_row(run) for run in runs],
        RUN_COLUMNS,
        getRowId="params.data.key",
        dashGridOptions={
            "rowSelection": selection,
            "selectionColumnDef": {"width": 38, "pinned": "left"},
            "isExternalFilterPresent": {"function": "true"},
            "doesExternalFilterPass": {"function": "passes(params)"},
            "tooltipShowDelay": 300,
        },
    )
    hint = "Click a run to see it; tick several to compare them."
    return html.Section(
        [_filters(runs), grid, html.P(hint, id="grid-hint", className="quiet")],
        className="card runs",
        **{"aria-label": "runs"},
    )


def _filters(runs: Sequence[RunSummary]) -> Component:
    statuses = [
        {"value": status, "label": html.Span([html.I(className=f"dot {status}"), status])}
        for status in STATUSES
    ]
    text = dcc.Input(id="text-filter", type="search", placeholder="Find a run")
    return html.Div(
        [
            html.Label([html.Span("Find a run", className="unseen"), text]),
            _choice_of("envs", "env-filter", (run.env for run in runs)),
            _choice_of("algorithms", "algorithm-filter", (run.algorithm for run in runs)),
            dcc.Checklist(id="status-filter", options=statuses, value=[], inline=True),
        ],
        className="filters",
        role="search",
    )


def _choice_of(kind: str, id: str, values: Iterable[str]) -> Component:
    options = names(values)
    dropdown = dcc.Dropdown(id=id, multi=True, placeholder=f"All {kind}", options=options)
    return _named(kind, dropdown)


def _grid(
    id: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Mapping[str, Any]],
    *,
    dashGridOptions: Mapping[str, Any] | None = None,
    **options: Any,
) -> Component:
    sizes = {"rowHeight": 38, "headerHeight": 36, "animateRows": False}
    return dag.AgGrid(
        id=id,
        rowData=rows,
        columnDefs=columns,
        defaultColDef={"sortable": True, "resizable": True, "suppressMovable": True},
        dashGridOptions=sizes | dict(dashGridOptions or {}),
        className="ag-theme-quartz",
        style={"height": None, "width": None},
        **options,
    )


def _panel_card() -> Component:
    log_name = dcc.Dropdown(id="log-name", clearable=False, searchable=False)
    all_keys = _checkbox("all-keys", "also the keys that agree")
    return html.Section(
        [
            _segments("tab", TABS, "curves", "Panel"),
            _curves_panel(),
            html.Div(
                _named("log file", log_name), id="log-controls", className="controls", style=HIDE
            ),
            html.Div(all_keys, id="spec-controls", className="controls", style=HIDE),
            html.Div(id="panel"),
        ],
        className="card panel",
        **{"aria-label": "selected runs"},
    )


def _curves_panel() -> Component:
    quantity = dcc.Dropdown(
        id="y",
        options=column_options(RETURNS),
        value=RETURNS[0],
        clearable=False,
        searchable=False,
    )
    controls = [
        _named("quantity", quantity),
        _segments("x", SHORT_AXES, "frame", "x"),
        _checkbox("with-sessions", "each session"),
    ]
    empty = {"data": [], "layout": {"xaxis": {"visible": False}}}
    graph = dcc.Graph(id="graph", figure=empty, config=GRAPH_CONFIG)
    return html.Div(
        [
            html.Div(controls, className="controls"),
            html.Div(graph, className="graph-frame"),
            html.P(id="graph-note", className="quiet"),
        ],
        id="curves-panel",
    )


def _checkbox(id: str, label: str) -> Component:
    return dcc.Checklist(id=id, options=[{"label": label, "value": "yes"}], value=[])


def _benchmark_card(runs: Sequence[RunSummary]) -> Component:
    note = (
        "The best trial of each algorithm in each env that has a target. Searches are left out: "
        "the highest of many scores is no result."
    )
    rows = [panels.benchmark_row(row) for row in benchmark(runs)]
    return html.Section(
        [
            html.H2("Runs against targets"),
            html.P(note, className="quiet"),
            _grid("benchmark", rows, BENCHMARK_COLUMNS),
        ],
        className="card benchmark",
        **{"aria-label": "benchmark"},
    )


def _segments(id: str, options: Mapping[str, str], value: str, label: str) -> Component:
    """Radio buttons in a row, which the arrow keys move through."""
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
    """Give a control without a visible label a name for screen readers."""
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
