"""What the page and the report show of runs besides their curves.

Sizes are bounded, and no file is trusted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slm_lab.runs.files import plain_files, read_json_or_empty, read_tail
from slm_lab.runs.glossary import label
from slm_lab.runs.resume import last_manifest, spec_keys
from slm_lab.runs.search_journal import TrialRecord
from slm_lab.runs.summary import (
    RunSummary,
    last_row,
    moving_files,
    real,
    search_records,
    stamp,
    trial_spec_tree,
)
from slm_lab.spec.algorithm import algorithm_label

# Of the last row of a session, in this order.
LATEST = ("frame", "last_100_return", "total_reward_ma", "last_100_length", "fps", "wall_t")
PHASES = ("env", "act", "learn", "other")
VIDEO_TYPES = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}
LOG_BYTES = 200_000
LOG_LINES = 500
LONGEST_VALUE = 500
# Keys that differ between any two runs and shape neither.
RUN_KEYS = frozenset(
    {"name", "meta.experiment_ts", "meta.predir", "meta.git_sha", "meta.prepath", "meta.trial"}
)

# As training/console.py writes it: time: env 31 % · act 22 % · learn 41 % · other 6 %
_PROGRESS = re.compile(r"\| Trial \d+ session (\d+) \| frame ")
_PROFILE = re.compile(r"time: " + " · ".join(rf"{phase} (?P<{phase}>\d+) %" for phase in PHASES))

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]  # the head, and rows of as many cells


# Specs


def spec_leaves(run: RunSummary) -> dict[str, str]:
    """The spec as dotted keys and JSON values, in its own order; of a search, its best trial's."""
    trial = run.trial if run.kind == "search" else None
    leaves = spec_keys(trial_spec_tree(run.layout, trial))
    return {key: _shown(value) for key, value in leaves}


def spec_diff(specs: Sequence[Mapping[str, str]]) -> dict[str, tuple[str | None, ...]]:
    """Every key with its value in each spec, None where a spec does not have it."""
    keys = dict.fromkeys(key for spec in specs for key in spec)
    return {key: tuple(spec.get(key) for spec in specs) for key in keys}


# Scores


def trial_metrics(run: RunSummary) -> dict[str, float]:
    """The metrics of the trial, of a search its best trial's; empty while it goes on."""
    if not _is_analysed(run):
        return {}
    return _numbers(read_json_or_empty(run.folder, run.layout.trial_metrics_scalar(run.trial)))


def sessions_in_words(run: RunSummary) -> str:
    """How many sessions are finished and, where it is more, how many have begun."""
    begun = f", {run.sessions} begun" if run.sessions > run.finished else ""
    return f"{run.finished} of {run.max_session} finished{begun}"


def session_table(run: RunSummary, number: Callable[[float], str]) -> Table:
    """A column for each session: its latest numbers, and its metrics once the trial is analysed;
    `number` formats a cell."""
    layout, trial = run.layout, run.trial
    found = {}
    for session in layout.sessions(trial):
        row = last_row(layout, trial, session, "train")
        values = {name: row[name] for name in LATEST if name in row}
        if _is_analysed(run):
            evaluated = layout.session_metrics_scalar(trial, session, "eval")
            trained = layout.session_metrics_scalar(trial, session, "train")
            path = evaluated if evaluated.exists() else trained
            values |= _numbers(read_json_or_empty(run.folder, path))
        if values:
            found[session] = values
    names = dict.fromkeys(name for values in found.values() for name in values)
    rows = [
        (label(name), *(_cell(name, values, number) for values in found.values())) for name in names
    ]
    return ("session", *map(str, found)), rows


def _cell(name: str, values: Mapping[str, float], number: Callable[[float], str]) -> str:
    value = values.get(name, math.nan)
    if name == "frame" and math.isfinite(value):
        return f"{value:,.0f}"
    return number(value) if name in values else ""


def _is_analysed(run: RunSummary) -> bool:
    """Whether the metrics on disk are those of the tables beside them. A trial that goes on after
    its end has those of that end, until it ends again."""
    if run.kind == "search" or run.status == "done":
        return True
    tables = [stamp(path)[0] for path in moving_files(run.layout)]
    return run.status != "running" and stamp(run.layout.trial_metrics_scalar(run.trial))[0] >= max(
        tables, default=0
    )


def trials_by_score(run: RunSummary) -> list[TrialRecord]:
    """The trials of a search, the best first."""
    return sorted(search_records(run.layout).values(), key=_score_or_worst, reverse=True)


def trial_table(run: RunSummary, number: Callable[[float], str]) -> Table:
    """The trials of a search with their values, the best first; `number` formats a score."""
    trials = trials_by_score(run)
    keys = dict.fromkeys(key for trial in trials for key in trial.values)
    rows = [
        (
            str(trial.trial),
            "" if trial.score is None else number(trial.score),
            trial.status,
            f"{trial.frame:,}",
            *(_short(trial.values[key]) if key in trial.values else "" for key in keys),
        )
        for trial in trials
    ]
    last = [key.rpartition(".")[2] for key in keys]
    short = [name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)]
    return ("trial", "score", "status", "frames", *short), rows


def benchmark_rows(runs: Iterable[RunSummary]) -> list[dict[str, Any]]:
    """A row for each env with a target and algorithm that was run there, by env and score.

    A search is left out: the highest of many scores is no result.
    """
    groups: dict[tuple[str, str, float], list[RunSummary]] = {}
    for run in runs:
        if run.target is not None and run.kind == "trial":
            groups.setdefault((run.env, run.algorithm, run.target), []).append(run)
    rows = []
    for (env, algorithm, target), members in groups.items():
        best = max(members, key=_score_or_worst)
        gap = None if best.score is None else best.score - target
        row = {
            "env": env,
            "algorithm": algorithm_label(algorithm),
            "score": best.score,
            "target": target,
        }
        row |= {"gap": gap, "reached": "no score", "runs": len(members), "key": best.key}
        row |= {"sessions": best.finished, "frame": best.frame}
        if gap is not None:
            row["reached"] = "reached" if gap >= 0 else "below"
        rows.append((env, -_score_or_worst(best), algorithm, row))
    return [row for *_, row in sorted(rows, key=lambda each: each[:3])]


def _score_or_worst(run: RunSummary | TrialRecord) -> float:
    return -math.inf if run.score is None else run.score


# Where the time went


def profiles(run: RunSummary) -> dict[int, dict[str, float]]:
    """Shares of env, act, learn and other, from 0 to 1, by the latest profile of each session.

    A session logs its profile at its end. Until then the trial's log has it, if there is one.
    """
    layout, sessions = run.layout, run.layout.sessions(run.trial)
    found: dict[int, re.Match[str]] = {}
    for line in read_tail(run.folder, layout.log_path(run.trial), LOG_BYTES).splitlines():
        if "| Resuming trial " in line:
            found.clear()  # what follows is of the training that goes on
        told = _PROGRESS.search(line)
        if told and (match := _PROFILE.search(line)):
            found[int(told[1])] = match
    for session in sessions:
        text = read_tail(run.folder, layout.log_path(run.trial, session), LOG_BYTES)
        ended = None
        for line in text.splitlines():
            if "goes on from frame" in line:
                ended = None
            ended = _PROFILE.search(line) or ended
        if ended:
            found[session] = ended
    return {
        session: {phase: int(share) / 100 for phase, share in found[session].groupdict().items()}
        for session in sessions
        if session in found
    }


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


# Logs, videos, versions


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
    sessions = run.layout.sessions(run.trial)
    manifests = (last_manifest(run.layout, run.trial, session) for session in sessions)
    return next((dict(manifest.versions) for manifest in manifests if manifest), {})


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]} …"


def _short(value: object) -> str:
    """A value in a table of trials: four digits of a fraction."""
    return f"{value:.4g}" if isinstance(value, float) else _shown(value)


def _numbers(content: Mapping[str, Any]) -> dict[str, float]:
    numbers = ((str(name), real(value, finite=False)) for name, value in content.items())
    return {name: number for name, number in numbers if number is not None}
