"""Parts of the page made of run data. Text of a run goes in as text, never as markup."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from dash import html
from dash.development.base_component import Component

from slm_lab.dashboard import run_files
from slm_lab.dashboard.run_files import PHASES, RUN_KEYS, VIDEO_TYPES
from slm_lab.runs.find import STAMP
from slm_lab.runs.glossary import label
from slm_lab.runs.resume import resume_command
from slm_lab.runs.summary import STATUSES, RunSummary
from slm_lab.spec.algorithm import algorithm_label

MOST_SIDE_BY_SIDE = 6
MOST_ROWS = 200
# Of a summary, as they are: the names of the grid's columns and of what its tooltips say.
RUN_WORDS = ("key", "status", "reason", "algorithm", "env", "kind")
RUN_NUMBERS = ("last_100", "score", "evaluated", "target", "progress", "frame")


def run_row(run: RunSummary) -> dict[str, Any]:
    """A run as a row of the grid."""
    sessions = f"{run.finished}/{run.max_session}"
    if run.kind == "search":
        sessions = f"{run.trials}/{run.max_trial or '?'}"
    return {name: getattr(run, name) for name in RUN_WORDS + RUN_NUMBERS} | {
        "label": short_name(run),  # the time has a column of its own
        "what": f"{algorithm_label(run.algorithm)} · {run.env}",
        "sessions": sessions,
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
    metrics = [run_files.trial_metrics(run) for run in shown]
    names = dict.fromkeys(name for found in metrics for name in found)
    facts = [_facts(run) for run in shown]
    keys = dict.fromkeys(key for fact in facts for key in fact)
    rows = [(key, *(fact.get(key, "") for fact in facts)) for key in keys]
    rows += [
        (label(name), *(_number(found[name]) if name in found else "" for found in metrics))
        for name in names
        if name not in ("frame", "total_reward_ma", "last_100_return")
    ]
    filled = [row for row in rows if any(row[1:])]
    parts: list[Component] = [html.Table([_head(shown), _body(filled)], className="facts")]
    for run in shown:
        is_search = run.kind == "search"
        head, rows = (run_files.trial_table if is_search else run_files.session_table)(run, _number)
        if rows:
            top = html.Thead(html.Tr([html.Th(name, scope="col") for name in head]))
            table = html.Table([top, _body(rows[:MOST_ROWS])], className="facts numbers")
            parts.append(html.H3(f"{'Trials' if is_search else 'Sessions'} of {run.key}"))
            parts.append(html.Div(table, className="wide"))
        if run.status in ("resumable", "failed"):
            command = html.Code(resume_command(run.layout, "search" if is_search else "train"))
            parts.append(html.P(["To go on with it:", " ", command], className="note"))
    return html.Div(parts)


def spec_table(runs: Sequence[RunSummary], *, only_differences: bool) -> Component:
    """Table of one spec, or of the differences between the specs of several runs."""
    shown = runs[:MOST_SIDE_BY_SIDE]
    rows = run_files.spec_diff([run_files.spec_leaves(run) for run in shown])
    different = {key for key, values in rows.items() if len(set(values)) > 1}
    if len(shown) > 1 and only_differences:
        rows = {key: rows[key] for key in rows if key in different - RUN_KEYS}
        if not rows:
            return _quiet("These runs have the same spec.")
    absent = html.Td("not set", className="absent")
    body = []
    for key, values in rows.items():
        cells = (absent if value is None else html.Td(value, className=None) for value in values)
        mark = "differs" if key in different and not only_differences else None
        body.append(html.Tr([html.Th(key, scope="row"), *cells], className=mark))
    return html.Div(html.Table([_head(shown), html.Tbody(body)], className="facts mono"))


def profile_bars(runs: Sequence[RunSummary]) -> Component:
    """Time profile of each session as a bar."""
    swatches = [html.Span([html.I(className=f"swatch {phase}"), phase]) for phase in PHASES]
    parts: list[Component] = [html.Div(swatches, className="phases")]
    for run in runs[:MOST_SIDE_BY_SIDE]:
        found = run_files.profiles(run)
        parts.append(html.H3(run.key))
        if not found:
            parts.append(_quiet("No session has written its profile yet; each does at its end."))
        for session, shares in found.items():
            label = html.Span(f"session {session}", className="bar-label")
            parts.append(html.Div([label, _bar(shares)], className="profile"))
        if slowest := run_files.operators(run):
            body = [html.Tr([html.Th(name), html.Td(f"{us:,.0f} µs")]) for name, us in slowest]
            parts.append(html.Table(html.Tbody(body), className="facts mono"))
    return html.Div(parts)


def _bar(shares: Mapping[str, float]) -> Component:
    told = {phase: f"{phase} {share:.0%}" for phase, share in shares.items()}
    parts = [
        html.Div(
            f"{share:.0%}" if share >= 0.08 else "",
            className=f"share {phase}",
            style={"width": f"{share:.1%}"},
            title=told[phase],
        )
        for phase, share in shares.items()
    ]
    return html.Div(parts, className="bar", role="img", **{"aria-label": ", ".join(told.values())})


def video_list(runs: Sequence[RunSummary]) -> Component:
    """The videos of the runs, played by the browser."""
    parts: list[Component] = []
    for run in runs[:MOST_SIDE_BY_SIDE]:
        for path in run_files.videos(run):
            source = f"/video/{quote(run.key)}/{quote(path.name)}"
            if VIDEO_TYPES[path.suffix].startswith("image/"):
                player = html.Img(src=source, alt=path.name)
            else:
                player = html.Video(src=source, controls=True, muted=True, preload="metadata")
            parts.append(html.Figure([player, html.Figcaption(f"{run.key}: {path.name}")]))
    if not parts:
        return _quiet("No video yet. Make one with: slm-lab enjoy FOLDER --video")
    return html.Div(parts, className="videos")


def _facts(run: RunSummary) -> dict[str, str]:
    packages = run_files.versions(run).items()
    facts = {
        "status": f"{run.status}: {run.reason}" if run.reason else run.status,
        "algorithm": run.algorithm,
        "env": run.env,
        label("last_100_return"): _number_or_empty(run.last_100),
        label("evaluated"): _number_or_empty(run.evaluated),
        "total_reward_ma": _number_or_empty(run.score),
        "target": "" if run.target is None else f"{run.target:g}",
        "frames": f"{run.frame:,}" + (f" of {run.max_frame:,}" if run.max_frame else ""),
        "sessions": run_files.sessions_in_words(run),
        "seed": "" if run.seed is None else str(run.seed),
        "started": run.started.strftime("%Y-%m-%d %H:%M:%S"),
        "code": run.git_sha[:12],
        "versions": ", ".join(f"{name} {version}" for name, version in packages),
    }
    if run.kind == "search":
        trials = f"{run.trials} of {run.max_trial or '?'} ended, the best is trial {run.trial}"
        return {"status": facts["status"], "trials": trials, **facts}
    return facts


def _head(runs: Sequence[RunSummary]) -> Component:
    return html.Thead(html.Tr([html.Th(""), *(html.Th(run.key, scope="col") for run in runs)]))


def _body(rows: Iterable[Sequence[str]]) -> Component:
    return html.Tbody(
        [html.Tr([html.Th(row[0], scope="row"), *map(html.Td, row[1:])]) for row in rows]
    )


def _quiet(text: str) -> Component:
    return html.P(text, className="quiet")


def _number_or_empty(value: float | None) -> str:
    return "" if value is None else _number(value)


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
