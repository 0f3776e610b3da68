"""Read what the page and the report show of a run besides its curves.

Sizes are bounded, and no file is trusted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slm_lab.runs.checkpoint_manifest import CheckpointError, read_manifest
from slm_lab.runs.files import plain_files, read_json_or_empty, read_tail
from slm_lab.runs.resume import spec_keys
from slm_lab.runs.summary import RunSummary, real, search_records, trial_spec_tree

PHASES = ("env", "act", "learn", "other")
VIDEO_TYPES = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}
LOG_BYTES = 200_000
LOG_LINES = 500
LONGEST_VALUE = 500

# As training/console.py writes it: time: env 31 % · act 22 % · learn 41 % · other 6 %
_PROGRESS = re.compile(r"\| Trial \d+ session (\d+) \| frame ")
_PROFILE = re.compile(r"time: " + " · ".join(rf"{phase} (\d+) %" for phase in PHASES))


@dataclass(frozen=True, slots=True)
class SessionProfile:
    """Where a session's time went: shares of env, act, learn and other, from 0 to 1."""

    session: int
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Table:
    """A table as text: the head, and rows of as many cells."""

    head: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class TrialScore:
    """One trial of a search."""

    trial: int
    status: str
    score: float | None
    frame: int
    values: Mapping[str, str]


def spec_leaves(run: RunSummary) -> dict[str, str]:
    """The spec as dotted keys and JSON values, in its own order; of a search, its best trial's."""
    trial = run.trial if run.kind == "search" else None
    leaves = spec_keys(trial_spec_tree(run.layout, trial))
    return {key: _shown(value) for key, value in leaves}


def trial_metrics(run: RunSummary) -> dict[str, float]:
    """The headline numbers of the trial; of a search, its best trial's."""
    return _numbers(read_json_or_empty(run.folder, run.layout.trial_metrics_scalar(run.trial)))


def session_metrics(run: RunSummary) -> dict[int, dict[str, float]]:
    """The headline numbers of each session."""
    layout, trial = run.layout, run.trial
    paths = {s: layout.session_metrics_scalar(trial, s, "eval") for s in layout.sessions(trial)}
    return {s: _numbers(read_json_or_empty(run.folder, path)) for s, path in paths.items()}


def trial_scores(run: RunSummary) -> list[TrialScore]:
    """The trials of a search, the best first."""
    rows = [
        TrialScore(
            trial=record.trial,
            status=record.status,
            score=record.score,
            frame=record.frame,
            values={str(key): _shown(value) for key, value in record.values.items()},
        )
        for record in search_records(run.layout).values()
    ]
    return sorted(rows, key=lambda row: -(row.score if row.score is not None else float("-inf")))


def session_table(run: RunSummary, number: Callable[[float], str]) -> Table:
    """The headline numbers of the sessions that have some; `number` formats a cell."""
    found = {session: values for session, values in session_metrics(run).items() if values}
    names = dict.fromkeys(name for values in found.values() for name in values)
    rows = [
        (str(session), *(number(values[name]) if name in values else "" for name in names))
        for session, values in found.items()
    ]
    return Table(("session", *map(words, names)), rows)


def trial_table(run: RunSummary, number: Callable[[float], str]) -> Table:
    """The trials of a search with their values, the best first; `number` formats a score."""
    scores = trial_scores(run)
    keys = dict.fromkeys(key for row in scores for key in row.values)
    rows = [
        (
            str(row.trial),
            "" if row.score is None else number(row.score),
            row.status,
            f"{row.frame:,}",
            *(row.values.get(key, "") for key in keys),
        )
        for row in scores
    ]
    return Table(("trial", "score", "status", "frames", *keys), rows)


def words(name: str) -> str:
    return name.replace("_", " ")


def profiles(run: RunSummary) -> list[SessionProfile]:
    """The latest time profile of each session.

    A session logs its profile at its end. Until then the trial's log has it, if there is one.
    """
    layout, sessions = run.layout, run.layout.sessions(run.trial)
    found: dict[int, Mapping[str, float]] = {}
    for line in read_tail(run.folder, layout.log_path(run.trial), LOG_BYTES).splitlines():
        told = _PROGRESS.search(line)
        if told and (match := _PROFILE.search(line)):
            found[int(told[1])] = _shares(match)
    for session in sessions:
        text = read_tail(run.folder, layout.log_path(run.trial, session), LOG_BYTES)
        for match in _PROFILE.finditer(text):
            found[session] = _shares(match)
    return [SessionProfile(session, found[session]) for session in sessions if session in found]


def _shares(match: re.Match[str]) -> dict[str, float]:
    return {phase: int(share) / 100 for phase, share in zip(PHASES, match.groups(), strict=True)}


def operators(run: RunSummary, most: int = 15) -> list[tuple[str, float]]:
    """(operator, microseconds) of a run with --profile, the slowest first."""
    content = read_json_or_empty(run.folder, run.folder / "profiler" / "profiler_summary.json")
    rows = content.get("operators")
    named = [
        (str(row.get("name"))[:LONGEST_VALUE], number)
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict) and (number := real(row.get("self_cpu_us"))) is not None
    ]
    return sorted(named, key=lambda row: -row[1])[:most]


def log_names(run: RunSummary) -> list[str]:
    """Log files of the run, the trial's before its sessions'."""
    paths = plain_files(run.folder, run.layout.log_dir())
    names = (path.name for path in paths if path.suffix == ".log")
    return sorted(names, key=lambda name: (len(name), name))


def log_text(run: RunSummary, name: str) -> str:
    """The last lines of a log file."""
    if name not in log_names(run):
        return ""
    lines = read_tail(run.folder, run.layout.log_dir() / name, LOG_BYTES).splitlines()
    return "\n".join(lines[-LOG_LINES:])


def videos(run: RunSummary) -> list[Path]:
    """Video files of the run, by name."""
    paths = plain_files(run.folder, run.folder / "video")
    return [path for path in paths if path.suffix in VIDEO_TYPES]


def versions(run: RunSummary) -> dict[str, str]:
    """Versions of the packages that the run was trained with, by its checkpoint."""
    for session in run.layout.sessions(run.trial):
        for kind in ("last", "last-1"):
            try:
                checkpoint = run.layout.checkpoint_dir(run.trial, session) / kind
                return dict(read_manifest(checkpoint, run_dir=run.folder).versions)
            except CheckpointError:
                continue
    return {}


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]} …"


def _numbers(content: Mapping[str, Any]) -> dict[str, float]:
    return {
        str(name): number
        for name, value in content.items()
        if (number := real(value, finite=False)) is not None
    }
