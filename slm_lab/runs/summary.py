"""Summarise one run folder: what the run is, its status and its score.

Everything is read off files that a run writes anyway, so it also works for runs of other processes,
of other machines and of the original. Nothing is written. No path and no number is taken from a
file unchecked, and no link in a run folder is followed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from slm_lab.runs.files import open_for_reading, read_json_or_empty, read_spec_tree, read_tail
from slm_lab.runs.find import SPEC_SUFFIXES, STAMP
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.resume import is_finished, stop_reasons, was_killed
from slm_lab.runs.search_journal import TrialRecord, best_first, read_records
from slm_lab.spec.catalog import target_score
from slm_lab.spec.run_folder import RunFolderError, listed

Kind = Literal["trial", "search"]
Status = Literal["running", "done", "failed", "resumable"]
STATUSES: tuple[Status, ...] = ("running", "done", "failed", "resumable")

LONGEST_TEXT = 200
LOG_TAIL_BYTES = 256_000
ROW_BYTES = 4_096
LARGEST_COUNT = 2**53

_TRIAL_BEGINS = re.compile(r"\| (?:Running|Resuming) trial ")
_SESSION_ENDS = re.compile(r"\| Trial \d+ session (\d+) \| Session \d+ (failed: .*|done|stopped)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run folder. `key` is its path below the data folder; an unknown number is None.

    `score` is `total_reward_ma`, the mean over sessions; for a search that of its best trial, which
    is `trial`. `target` is what a benchmark run in that env should reach. `frame` is the mean over
    the sessions that have begun. `reason` says why a run failed, what it has left to do, or why
    callbacks ended it. `updated` is when it last wrote something, in seconds since 1970.
    """

    key: str
    folder: Path
    name: str
    kind: Kind = "trial"
    status: Status
    reason: str = ""
    algorithm: str = ""
    env: str = ""
    score: float | None = None
    target: float | None = None
    frame: int = 0
    max_frame: int | None = None
    sessions: int = 0
    max_session: int = 1
    trial: int = 0
    trials: int = 1
    max_trial: int | None = None
    seed: int | None = None
    git_sha: str = ""
    started: datetime
    updated: float

    @property
    def layout(self) -> RunLayout:
        return RunLayout(self.folder, self.name)

    @property
    def progress(self) -> float | None:
        """Share of the budget that is used, from 0 to 1."""
        if self.kind == "search":
            return min(1.0, self.trials / self.max_trial) if self.max_trial else None
        if not self.max_frame:
            return None
        return min(1.0, self.frame * self.sessions / (self.max_frame * max(self.max_session, 1)))

    def matches(self, pattern: str) -> bool:
        """Whether every word of the pattern is part of the run's folder, algorithm, env, status."""
        text = f"{self.key} {self.algorithm} {self.env} {self.status} {self.kind}".lower()
        return all(word in text for word in pattern.lower().split())


def summarize(key: str, layout: RunLayout, *, is_running: bool) -> RunSummary:
    """Read a run folder, whatever state it is in."""
    tree, problem = _spec_tree(layout)
    agent, env, meta = (_block(tree, name) for name in ("agent", "env", "meta"))
    kind: Kind = "search" if layout.journal_path().is_file() else "trial"
    max_session = _count(meta.get("max_session")) or 1
    facts: dict[str, Any]
    if problem:
        facts = {"status": "running" if is_running else "failed", "reason": problem}
    elif kind == "search":
        facts = _search_facts(layout, _count(meta.get("max_trial")), is_running=is_running)
    else:
        earlier = _earlier_specs(meta)
        facts = _trial_facts(layout, max_session, earlier, is_running=is_running)
    return RunSummary(
        key=key,
        folder=layout.predir,
        name=layout.name,
        kind=kind,
        algorithm=_text(_block(agent, "algorithm").get("name")),
        env=_text(env.get("name")),
        target=target_score(_text(env.get("name")), env),
        max_frame=_count(env.get("max_frame")),
        max_session=max_session,
        seed=_count(meta.get("random_seed")),
        git_sha=_text(meta.get("git_sha")),
        started=_started(layout),
        updated=last_updated(layout),
        **facts,
    )


def unreadable(key: str, layout: RunLayout, error: Exception) -> RunSummary:
    """Summary of a folder that cannot be read, with the reason."""
    return RunSummary(
        key=key,
        folder=layout.predir,
        name=layout.name,
        status="failed",
        reason=f"cannot be read: {error!r:.{LONGEST_TEXT}}",
        started=_started(layout),
        updated=last_updated(layout),
    )


# Status of a trial


def _trial_facts(
    layout: RunLayout, max_session: int, earlier: Collection[str], *, is_running: bool
) -> dict[str, Any]:
    sessions = layout.sessions(0)
    headline = read_json_or_empty(layout.predir, layout.trial_metrics_scalar(0))
    score, frame = real(headline.get("total_reward_ma")), _count(headline.get("frame")) or 0
    if is_running or score is None:
        score, frame = _progress(layout, sessions)
    status, reason = ("running", "") if is_running else _trial_status(layout, max_session, earlier)
    state = {"status": status, "reason": reason}
    return state | {"score": score, "frame": frame, "sessions": len(sessions)}


def _trial_status(
    layout: RunLayout, max_session: int, earlier: Collection[str]
) -> tuple[Status, str]:
    """Status of a trial without a process, by its checkpoints, reports and log."""
    if not (layout.predir / "checkpoint").is_dir() and layout.trial_metrics_scalar(0).exists():
        return "done", ""  # by a version that kept no checkpoints, or the original
    # By what is on disk, however many sessions a spec from elsewhere asks for.
    pattern = re.compile(rf"{re.escape(layout.trial_name(0))}_s(\d{{1,6}})")
    folders = (pattern.fullmatch(path.name) for path in listed(layout.predir / "checkpoint"))
    begun = [s for match in folders if match and (s := int(match[1])) < max_session]
    finished = {s for s in begun if is_finished(layout, 0, s, earlier)}
    if len(finished) >= max_session:
        if was_killed(layout, 0):
            return "resumable", "its metrics and graphs are left to write"
        return "done", describe_stops(stop_reasons(layout, 0, sorted(finished)), max_session)
    ends = _session_ends(layout)
    for session in sorted({*begun, *ends} - finished):
        if layout.divergence_report(0, session).exists():
            return "failed", f"session {session} diverged"
        if ends.get(session, "").startswith("failed"):
            return "failed", f"session {session} {ends[session]}"
    left = f"{max_session - len(finished)} of {max_session} session(s) left to finish"
    return "resumable", left


def describe_stops(reasons: Mapping[int, str], max_session: int) -> str:
    """Why callbacks ended sessions, in one line."""
    if max_session == 1:
        return "".join(reasons.values())[:LONGEST_TEXT]
    return "; ".join(f"session {s}: {why}" for s, why in reasons.items())[:LONGEST_TEXT]


def _session_ends(layout: RunLayout) -> dict[int, str]:
    """How each session of the trial's latest start ended, by the trial's log."""
    ends: dict[int, str] = {}
    for line in read_tail(layout.predir, layout.log_path(0), LOG_TAIL_BYTES).splitlines():
        if _TRIAL_BEGINS.search(line):
            ends.clear()
        elif match := _SESSION_ENDS.search(line):
            ends[int(match[1])] = match[2][:LONGEST_TEXT]
    return ends


def _progress(layout: RunLayout, sessions: tuple[int, ...]) -> tuple[float | None, int]:
    """(score, frame) of a trial on its way: means over the last rows of its tables."""
    rows = [_last_row(layout, session) for session in sessions]
    scores = [s for row in rows if (s := real(row.get("total_reward_ma"))) is not None]
    frames = [f for row in rows if (f := _count(row.get("frame"))) is not None]
    score = sum(scores) / len(scores) if scores else None
    return score, int(sum(frames) / len(frames)) if frames else 0


def _last_row(layout: RunLayout, session: int) -> dict[str, float]:
    """The latest row of the table that a session is scored by: its evaluations', if any."""
    for path in (layout.session_csv(0, session, "eval"), layout.session_csv(0, session, "train")):
        try:
            with open_for_reading(layout.predir, path) as file:
                columns = file.readline(ROW_BYTES).decode().strip().split(",")
        except ValueError:  # a RunFolderError, or no text
            continue
        text = read_tail(layout.predir, path, ROW_BYTES)
        cells = text[: text.rfind("\n") + 1].splitlines()[-1:] or [""]
        values = cells[0].split(",")
        if len(values) == len(columns) and values != columns:
            return {name: _number(value) for name, value in zip(columns, values, strict=True)}
    return {}


# Status of a search


def _search_facts(layout: RunLayout, max_trial: int | None, *, is_running: bool) -> dict[str, Any]:
    records = search_records(layout)
    ended = sum(not record.is_running for record in records.values())
    best = next(iter(best_first(records)), None)
    status, reason = "done", ""
    if is_running:
        status = "running"
    elif max_trial and ended < max_trial:
        status, reason = "resumable", f"{max_trial - ended} of {max_trial} trial(s) left"
    elif best is None:
        status, reason = "failed", "no trial came to a score"
    facts = {"status": status, "reason": reason, "trials": ended, "max_trial": max_trial}
    if best is None:
        return facts
    return facts | {
        "score": best.score,
        "frame": best.frame,
        "trial": best.trial,
        "sessions": len(layout.sessions(best.trial)),
    }


def search_records(layout: RunLayout) -> dict[int, TrialRecord]:
    """The trials of a search; none if the journal cannot be read."""
    try:
        records = read_records(layout.journal_path())
    except RunFolderError:
        return {}
    return {trial: record for trial, record in records.items() if _is_sane(record)}


def _is_sane(record: TrialRecord) -> bool:
    """Whether a record from elsewhere has the numbers that one of ours has."""
    scores = [record.final_score or 0.0, *(report.score for report in record.reports)]
    counts = [record.trial, *(report.frame for report in record.reports)]
    return (
        all(real(score) is not None for score in scores)
        and all(_count(count) is not None for count in counts)
        and isinstance(record.values, dict)
    )


# The saved spec


def trial_spec_tree(layout: RunLayout, trial: int | None = None) -> dict[str, Any]:
    """A saved spec as plain data: a trial's, or the run's own; empty if it cannot be read."""
    return _spec_tree(layout, trial)[0]


def _spec_tree(layout: RunLayout, trial: int | None = None) -> tuple[dict[str, Any], str]:
    """(the spec as plain data, why it cannot be read)."""
    own, first = layout.spec_path(), layout.trial_spec_path(0)
    candidates = (own, first) if trial is None else (layout.trial_spec_path(trial), own, first)
    for candidate in candidates:
        for path in map(candidate.with_suffix, SPEC_SUFFIXES):
            if not os.path.lexists(path):
                continue
            try:
                return dict(read_spec_tree(layout.predir, path)), ""
            except RunFolderError as error:
                reason = str(error).removeprefix(f"{path}: ")
                return {}, f"{path.name} cannot be read: {reason[:LONGEST_TEXT]}"
    return {}, "its spec is gone"


# Times of a run


def moving_files(layout: RunLayout) -> list[Path]:
    """The tables of a run's sessions, whose growth does not change the time of their folder."""
    return [path for path in listed(layout.predir / "info") if path.name.endswith(".csv")]


def stamp(path: Path) -> tuple[int, int]:
    """(time of change, size) of a file; zeros if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0)
    return status.st_mtime_ns, status.st_size


def last_updated(layout: RunLayout) -> float:
    paths = [layout.predir, layout.log_path(0), layout.journal_path(), *moving_files(layout)]
    return max(stamp(path)[0] for path in paths) / 1e9


def _started(layout: RunLayout) -> datetime:
    if match := STAMP.search(layout.predir.name):
        with suppress(ValueError):
            return datetime.strptime(match.group()[1:18], "%Y_%m_%d_%H%M%S")
    return datetime.fromtimestamp(stamp(layout.predir)[0] / 1e9)


def _block(tree: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A block of a spec; in files of SLM Lab v4 agents and envs are lists of one."""
    value = tree.get(name)
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, dict) else {}


def _earlier_specs(meta: Mapping[str, Any]) -> list[str]:
    """Fingerprints of the specs that a run had before it was extended; see runs/extend.py."""
    given = meta.get("extended")
    entries = given if isinstance(given, list) else []
    return [_text(each.get("spec_sha256")) for each in entries if isinstance(each, dict)]


def _text(value: object) -> str:
    return "" if value is None else str(value)[:LONGEST_TEXT]


def _count(value: object) -> int | None:
    number = real(value)
    return int(number) if number is not None and 0 <= number <= LARGEST_COUNT else None


def real(value: object, *, finite: bool = True) -> float | None:
    """A number as a float; None if it is none, too large for one, or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) or not finite else None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
