"""Parts of the page made of run data. Text of a run goes in as text, never as markup."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from dash import html
from dash.development.base_component import Component

from slm_lab.dashboard.comparison import RUN_KEYS, BenchmarkRow, spec_diff
from slm_lab.dashboard.run_files import (
    PHASES,
    VIDEO_TYPES,
    Table,
    operators,
    profiles,
    session_table,
    spec_leaves,
    trial_metrics,
    trial_table,
    versions,
    videos,
)
from slm_lab.runs.find import STAMP
from slm_lab.runs.resume import resume_command
from slm_lab.runs.summary import STATUSES, RunSummary

MOST_SIDE_BY_SIDE = 6
MOST_ROWS = 200


def run_row(run: RunSummary) -> dict[str, Any]:
    """A run as a row of the grid."""
    return {
        "key": run.key,
        "label": short_name(run),  # the time has a column of its own
        "status": run.status,
        "reason": run.reason,
        "algorithm": run.algorithm,
        "env": run.env,
        "kind": run.kind,
        "score": run.score,
        "target": run.target,
        "progress": run.progress,
        "frame": run.frame,
        "sessions": f"{run.trials}/{run.max_trial or '?'} trials"
        if run.kind == "search"
        else f"{run.sessions}/{run.max_session}",
        "started": run.started.strftime("%Y-%m-%d %H:%M"),
    }


def short_name(run: RunSummary) -> str:
    """The run's key without the time."""
    return STAMP.sub("", run.key) or run.key


def short_names(runs: Sequence[RunSummary]) -> list[str]:
    """A name for each run, with the time only where it is needed to tell two apart."""
    names = [short_name(run) for run in runs]
    return [
        name if names.count(name) == 1 else run.key for name, run in zip(names, runs, strict=True)
    ]


def benchmark_row(row: BenchmarkRow) -> dict[str, Any]:
    return {
        "env": row.env,
        "algorithm": row.algorithm,
        "score": row.score,
        "target": row.target,
        "gap": row.gap,
        "reached": "reached" if row.reached else "below" if row.score is not None else "no score",
        "runs": row.runs,
        "sessions": row.run.sessions,
        "frame": row.run.frame,
        "key": row.run.key,
    }


def counts(runs: Sequence[RunSummary]) -> list[Component]:
    """How many runs there are in each state."""
    by_status = {status: sum(run.status == status for run in runs) for status in STATUSES}
    return [
        html.Span([html.I(className=f"dot {status}"), f"{count} {status}"], className="count")
        for status, count in by_status.items()
        if count
    ]


def details(runs: Sequence[RunSummary]) -> Component:
    """Facts of each run side by side, then the sessions or trials of each."""
    shown = runs[:MOST_SIDE_BY_SIDE]
    metrics = [trial_metrics(run) for run in shown]
    names = dict.fromkeys(name for found in metrics for name in found)
    facts = [_facts(run) for run in shown]
    keys = dict.fromkeys(key for fact in facts for key in fact)
    rows = [(key, [fact.get(key, "") for fact in facts]) for key in keys]
    rows += [
        (name, [_number(found[name]) if name in found else "" for found in metrics])
        for name in names
        if name not in ("frame", "total_reward_ma")
    ]
    rows = [(key, cells) for key, cells in rows if any(cells)]
    parts: list[Component] = [_columns(shown, rows)]
    for run in shown:
        if run.kind == "search":
            parts += _number_table(f"Trials of {run.key}", trial_table(run, _number))
        else:
            parts += _number_table(f"Sessions of {run.key}", session_table(run, _number))
        if run.status in ("resumable", "failed"):
            mode = "search" if run.kind == "search" else "train"
            parts.append(_note("To go on with it:", resume_command(run.layout, mode)))
    return html.Div(parts)


def spec_table(runs: Sequence[RunSummary], *, only_differences: bool) -> Component:
    """Table of one spec, or of the differences between the specs of several runs."""
    shown = runs[:MOST_SIDE_BY_SIDE]
    rows = spec_diff([spec_leaves(run) for run in shown])
    if len(shown) > 1 and only_differences:
        rows = [row for row in rows if row.differs and row.key not in RUN_KEYS]
        if not rows:
            return _quiet("These runs have the same spec.")
    body = [
        html.Tr(
            [
                html.Th(row.key, scope="row"),
                *(
                    html.Td(
                        "not set" if value is None else value,
                        className="absent" if value is None else None,
                    )
                    for value in row.values
                ),
            ],
            className="differs" if row.differs and not only_differences else None,
        )
        for row in rows
    ]
    return html.Div(html.Table([_head(shown), html.Tbody(body)], className="facts mono"))


def profile_bars(runs: Sequence[RunSummary]) -> Component:
    """Time profile of each session as a bar."""
    parts: list[Component] = [
        html.Div(
            [html.Span([html.I(className=f"swatch {phase}"), phase]) for phase in PHASES],
            className="phases",
        )
    ]
    for run in runs[:MOST_SIDE_BY_SIDE]:
        found = profiles(run)
        parts.append(html.H3(run.key))
        if not found:
            parts.append(_quiet("No session has written its profile yet; each does at its end."))
        parts += [
            html.Div(
                [
                    html.Span(f"session {profile.session}", className="bar-label"),
                    html.Div(
                        [
                            html.Div(
                                f"{share:.0%}" if share >= 0.08 else "",
                                className=f"share {phase}",
                                style={"width": f"{share:.1%}"},
                                title=f"{phase} {share:.0%}",
                            )
                            for phase, share in profile.shares.items()
                        ],
                        className="bar",
                        role="img",
                        **{
                            "aria-label": ", ".join(
                                f"{phase} {share:.0%}" for phase, share in profile.shares.items()
                            )
                        },
                    ),
                ],
                className="profile",
            )
            for profile in found
        ]
        slowest = operators(run)
        if slowest:
            body = [html.Tr([html.Th(name), html.Td(f"{us:,.0f} µs")]) for name, us in slowest]
            parts.append(html.Table(html.Tbody(body), className="facts mono"))
    return html.Div(parts)


def video_list(runs: Sequence[RunSummary]) -> Component:
    """The videos of the runs, played by the browser."""
    parts: list[Component] = []
    for run in runs[:MOST_SIDE_BY_SIDE]:
        for path in videos(run):
            source = f"/video/{quote(run.key)}/{quote(path.name)}"
            is_image = VIDEO_TYPES[path.suffix].startswith("image/")
            player = (
                html.Img(src=source, alt=path.name)
                if is_image
                else html.Video(src=source, controls=True, muted=True, preload="metadata")
            )
            parts.append(html.Figure([player, html.Figcaption(f"{run.key}: {path.name}")]))
    if not parts:
        return _quiet("No video yet. Make one with: slm-lab enjoy FOLDER --video")
    return html.Div(parts, className="videos")


def _facts(run: RunSummary) -> dict[str, str]:
    facts = {
        "status": f"{run.status}: {run.reason}" if run.reason else run.status,
        "algorithm": run.algorithm,
        "env": run.env,
        "total_reward_ma": "" if run.score is None else _number(run.score),
        "target": "" if run.target is None else f"{run.target:g}",
        "frames": f"{run.frame:,}" + (f" of {run.max_frame:,}" if run.max_frame else ""),
        "sessions": f"{run.sessions} of {run.max_session}",
        "seed": "" if run.seed is None else str(run.seed),
        "started": run.started.strftime("%Y-%m-%d %H:%M:%S"),
        "code": run.git_sha[:12],
        "versions": ", ".join(f"{name} {version}" for name, version in versions(run).items()),
    }
    if run.kind == "search":
        trials = f"{run.trials} of {run.max_trial or '?'} ended, the best is trial {run.trial}"
        return {"status": facts["status"], "trials": trials, **facts}
    return facts


def _columns(runs: Sequence[RunSummary], rows: Sequence[tuple[str, Sequence[str]]]) -> Component:
    body = [
        html.Tr([html.Th(key, scope="row"), *(html.Td(cell) for cell in cells)])
        for key, cells in rows
    ]
    return html.Table([_head(runs), html.Tbody(body)], className="facts")


def _head(runs: Sequence[RunSummary]) -> Component:
    return html.Thead(html.Tr([html.Th(""), *(html.Th(run.key, scope="col") for run in runs)]))


def _number_table(title: str, table: Table) -> list[Component]:
    if not table.rows:
        return []
    head = html.Tr([html.Th(name, scope="col") for name in table.head])
    body = [
        html.Tr([html.Th(row[0], scope="row"), *map(html.Td, row[1:])])
        for row in table.rows[:MOST_ROWS]
    ]
    content = html.Table([html.Thead(head), html.Tbody(body)], className="facts numbers")
    return [html.H3(title), html.Div(content, className="wide")]


def _note(text: str, command: str) -> Component:
    return html.P([text, " ", html.Code(command)], className="note")


def _quiet(text: str) -> Component:
    return html.P(text, className="quiet")


def _number(value: float) -> str:
    if math.isnan(value):
        return "nan"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.4g}"


def same_target(runs: Sequence[RunSummary]) -> float | None:
    """The target, if all runs are of one env that has one."""
    targets = {(run.env, run.target) for run in runs}
    return next(iter(targets))[1] if len(targets) == 1 else None


def places(previous: Mapping[str, int], keys: Sequence[str], most: int) -> dict[str, int]:
    """Place of each run in the palette: kept while the run is shown, else the first free one."""
    kept = {key: previous[key] for key in keys if isinstance(previous.get(key), int)}
    free = iter(sorted(set(range(most)) - set(kept.values())))
    return {key: kept[key] if key in kept else next(free, 0) for key in keys}
