"""What is on the page. Selecting rows of the grid decides what every panel shows."""

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
                            options=names(run.env for run in runs),
                        ),
                    ),
                    _named(
                        "algorithms",
                        dcc.Dropdown(
                            id="algorithm-filter",
                            multi=True,
                            placeholder="All algorithms",
                            options=names(run.algorithm for run in runs),
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
                                    options=column_options(RETURNS),
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


def shown_runs(
    runs: Sequence[RunSummary], selected: Sequence[str], places_before: Mapping[str, Any]
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
        "places": panels.places(places_before, keys[:MOST_RUNS], MOST_RUNS),
    }


def column_options(names: Sequence[str] | Mapping[str, None]) -> list[dict[str, str]]:
    return [{"label": COLUMN_LABELS.get(name, name), "value": name} for name in names]


def names(values: Iterable[str]) -> list[str]:
    return sorted({value for value in values if value})
