"""Report of one run as one HTML file, which opens offline and loads nothing.

plotly.js is inlined (5 MB), figures are JSON that its script reads, videos are data. Every text of
the run is escaped, and the file's content security policy forbids loading anything.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from slm_lab.dashboard import curves, run_files
from slm_lab.dashboard.curves import RETURNS, THEMES, CurveStore, Trace, figure
from slm_lab.error import LabError
from slm_lab.runs.catalog import read_run
from slm_lab.runs.files import read_bytes, write_atomic
from slm_lab.runs.glossary import label, meaning
from slm_lab.runs.summary import RunSummary
from slm_lab.spec.run_folder import RunFolderError

MOST_TRIALS_DRAWN = 8
MOST_VIDEO_BYTES = 30_000_000  # of all videos: a file that can still be mailed


class ReportError(LabError):
    """The report cannot be written as asked."""


def write_report(folder: str | Path, out: Path | None = None) -> Path:
    """Write the report of a run folder; beside its specs if no file is given."""
    run = read_run(folder)
    path = out or run.folder / f"{run.name}_report.html"
    text = report_page(run)
    try:
        write_atomic(path.parent, path, text)
    except OSError as error:
        raise ReportError(f"-o: {path} cannot be written ({error.strerror}).") from None
    return path


def report_page(run: RunSummary) -> str:
    """The whole page as text."""
    store = CurveStore()
    figures = _figures(run, store)
    commit = [("slm_lab commit", run.git_sha)] if run.git_sha else []
    packages = [*commit, *run_files.versions(run).items()]
    places = (
        _section(_safe(title), f"<div class='figure' data-figure='{i}'></div>")
        for i, (title, _) in enumerate(figures)
    )
    parts = [
        f"<h1>{_safe(run.name)}</h1>",
        f"<p class='quiet'>{_safe(run.algorithm)} on {_safe(run.env)} · {_safe(run.key)}</p>",
        _summary(run),
        f"<div class='figures'>{''.join(places)}</div>",
        _rows(run),
        _profile(run),
        _videos(run),
        _section("Spec", _table(("key", "value"), run_files.spec_leaves(run).items(), "mono")),
        _section("Versions", _table(("package", "version"), packages, "mono")),
        _glossary(run, store),
    ]
    # A browser ends a script at the first `</script`, wherever it stands: no `<` goes in.
    data = json.dumps([drawn for _, drawn in figures]).replace("<", "\\u003c")
    return _PAGE.format(
        title=_safe(run.name),
        style=_beside("report.css"),
        body="\n".join(part for part in parts if part),
        plotly=get_plotlyjs(),
        data=data,
        script=_beside("report.js"),
    )


def _summary(run: RunSummary) -> str:
    scores = {"last_100_return": run.last_100, "total_reward_ma": run.score}
    scores |= {"evaluated": run.evaluated}
    known = {k: score for k, score in scores.items() if score is not None or k == "total_reward_ma"}
    cards = [
        *(
            (label(name), "none yet" if score is None else f"{score:,.2f}")
            for name, score in known.items()
        ),
        ("target", "none" if run.target is None else f"{run.target:g}"),
        ("status", run.status),
        ("frames", f"{run.frame:,}"),
        ("sessions", run_files.sessions_in_words(run)),
        ("seed", "none" if run.seed is None else str(run.seed)),
        ("started", run.started.strftime("%Y-%m-%d %H:%M")),
        *(
            (label(name), f"{value:.4g}")
            for name, value in run_files.trial_metrics(run).items()
            if name not in ("frame", *scores)
        ),
    ]
    if run.kind == "search":
        cards.insert(0, ("trials", f"{run.trials}, best is {run.trial}"))
    cells = (f"<div><dt>{_safe(name)}</dt><dd>{_safe(value)}</dd></div>" for name, value in cards)
    note = f"<p class='quiet'>{_safe(run.reason)}</p>" if run.reason else ""
    help = "<p class='quiet'><a href='#glossary'>What these numbers mean</a></p>"
    return f"<dl class='cards'>{''.join(cells)}</dl>{note}{help}"


def _figures(run: RunSummary, store: CurveStore) -> list[tuple[str, dict[str, Any]]]:
    """(title, figure) of every quantity of which the run has a curve."""
    theme = THEMES["light"]
    if run.kind == "search":
        best = [record.trial for record in run_files.trials_by_score(run)[:MOST_TRIALS_DRAWN]]
        traces = [
            Trace(f"trial {trial}", store.curve(run, RETURNS[0], trial=trial), place)
            for place, trial in enumerate(best)
        ]
        drawn = [trace for trace in traces if not trace.curve.is_empty]
        if not drawn:
            return []
        content = figure(drawn, y=RETURNS[0], x="frame", theme=theme, target=run.target)
        return [(f"Returns of the {len(drawn)} best trials", content)]
    wanted: list[tuple[str, curves.Axis]] = [(RETURNS[0], "frame"), (RETURNS[0], "wall_t")]
    wanted += [(column, "frame") for column in store.columns(run) if column != RETURNS[0]]
    found = []
    for y, x in wanted:
        curve = store.curve(run, y, x)
        if curve.is_empty:
            continue
        title = f"{label(y)} against {'frames' if x == 'frame' else 'wall time'}"
        trace = store.trace(run, y, x, label=run.name, place=0)
        target = run.target if y in RETURNS else None
        content = figure([trace], y=y, x=x, theme=theme, with_sessions=True, target=target)
        found.append((title, content))
    return found


def _rows(run: RunSummary) -> str:
    """The trials of a search, or the sessions of a trial."""
    if run.kind == "search":
        return _section("Trials", _table(*run_files.trial_table(run, "{:.2f}".format)))
    head, rows = run_files.session_table(run, "{:.4g}".format)
    return _section("Sessions", _table(head, rows)) if rows else ""


def _profile(run: RunSummary) -> str:
    found = run_files.profiles(run).items()
    rows = [(session, *(f"{share:.0%}" for share in shares.values())) for session, shares in found]
    table = _table(("session", *run_files.PHASES), rows)
    return _section("Where the time went", table) if rows else ""


def _glossary(run: RunSummary, store: CurveStore) -> str:
    """The meaning of what the report shows; all columns and metrics are in docs/GLOSSARY.md."""
    names = dict.fromkeys([*store.columns(run), *run_files.trial_metrics(run), "evaluated"])
    rows = [(label(name), name, meaning(name)) for name in names if meaning(name)]
    table = _table(("", "name in the files", "meaning"), rows)
    more = "<p class='quiet'>All columns and metrics: docs/GLOSSARY.md of SLM Lab.</p>"
    return f"<div id='glossary'>{_section('Glossary', table + more)}</div>"


def _videos(run: RunSummary) -> str:
    parts, bytes_left = [], MOST_VIDEO_BYTES
    for path in run_files.videos(run):
        name, size = _safe(path.name), path.lstat().st_size
        if size > bytes_left:
            parts.append(f"<p class='quiet'>{name} is too large to be put in ({size:,} bytes).</p>")
            continue
        try:
            content = read_bytes(run.folder, path, bytes_left)
        except RunFolderError as error:
            reason = str(error).removeprefix(f"{path}: ")
            parts.append(f"<p class='quiet'>{name} is not put in: {_safe(reason)}</p>")
            continue
        bytes_left -= len(content)
        kind = run_files.VIDEO_TYPES[path.suffix]
        source = f"data:{kind};base64,{base64.b64encode(content).decode()}"
        player = f"<video src='{source}' controls muted></video>"
        if kind.startswith("image/"):
            player = f"<img src='{source}' alt='{name}'>"
        parts.append(f"<figure>{player}<figcaption>{name}</figcaption></figure>")
    return _section("Videos", f"<div class='videos'>{''.join(parts)}</div>") if parts else ""


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"


def _table(head: Sequence[object], rows: Iterable[Sequence[object]], name: str = "") -> str:
    top = "".join(f"<th scope='col'>{_safe(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{_safe(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f"<div class='wide'><table class='{name}'><thead><tr>{top}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _beside(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _safe(text: object) -> str:
    return html.escape(str(text), quote=True)


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; media-src data:; \
base-uri 'none'; form-action 'none'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
<script>{plotly}</script>
<script id="figures" type="application/json">{data}</script>
<script>{script}</script>
</body>
</html>
"""
