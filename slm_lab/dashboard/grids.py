"""The two tables of the page: all runs, and runs against targets.

Both fit in a window of 1,280 pixels without scrolling sideways. How cells are drawn is in
assets/page.js.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_ag_grid as dag
from dash.development.base_component import Component

from slm_lab.runs.glossary import meaning

_NUMBER = {"type": "rightAligned", "valueFormatter": {"function": "number(params.value)"}}
_COUNT = {"type": "rightAligned", "valueFormatter": {"function": "count(params.value)"}}


def _explained(name: str) -> dict[str, str]:
    return {"headerTooltip": meaning(name)}


RUN_COLUMNS: list[dict[str, Any]] = [
    {"field": "status", "width": 98, "cellRenderer": "Status", "tooltipField": "reason"},
    {
        "field": "label",
        "headerName": "Run",
        "minWidth": 160,
        "flex": 1,
        "cellRenderer": "Run",
        "tooltipField": "key",
    },
    {
        "field": "last_100",
        "headerName": "Last 100",
        "width": 88,
        "type": "rightAligned",
        "cellRenderer": "Recent",
        **_explained("last_100_return"),
    },
    {
        "field": "score",
        "headerName": "Average",
        "width": 88,
        **_NUMBER,
        **_explained("total_reward_ma"),
    },
    {"field": "progress", "width": 90, "cellRenderer": "Progress"},
    {"field": "sessions", "width": 82, "cellRenderer": "Sessions"},
    {"field": "started", "width": 66, "cellRenderer": "Started", "tooltipField": "started"},
]
BENCHMARK_COLUMNS: list[dict[str, Any]] = [
    {"field": "env", "minWidth": 190, "flex": 1, "tooltipField": "env"},
    {"field": "algorithm", "width": 96, "tooltipField": "algorithm"},
    {"field": "score", "width": 96, **_NUMBER, **_explained("total_reward_ma")},
    {"field": "target", "width": 90, **_NUMBER},
    {"field": "gap", "headerName": "Score − target", "width": 116, **_NUMBER},
    {"field": "reached", "headerName": "Target", "width": 92, "cellRenderer": "Reached"},
    {"field": "runs", "width": 64, "type": "rightAligned"},
    {"field": "sessions", "width": 90, "type": "rightAligned"},
    {"field": "frame", "headerName": "Frames", "width": 96, **_COUNT},
    {"field": "key", "headerName": "Best run", "minWidth": 250, "flex": 1.4, "tooltipField": "key"},
]


def grid(
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
        dashGridOptions={"rowHeight": 46, "headerHeight": 36, "animateRows": False, **options},
        className="ag-theme-quartz",
        style={"height": None, "width": None},
        **attributes,
    )
