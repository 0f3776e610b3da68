"""Summarise one run folder: what the run is, its status and its score.

Everything is read off files that a run writes anyway, so it also works for runs of other processes,
of other machines and of the original. Nothing is written. No path and no number is taken from a
file unchecked, and no link in a run folder is followed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from slm_lab.runs.files import open_for_reading, read_json_or_empty, read_spec_tree, read_tail
from slm_lab.runs.find import SPEC_SUFFIXES, STAMP
from slm_lab.runs.layout import Mode, RunLayout
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
    is `trial`. `last_100` is the mean return of the last 100 training episodes, `evaluated` that of
    episodes played apart from training, where there were any. `target` is what a benchmark run in
    that env should reach. `frame` is the mean over the sessions that have begun, which are
    `sessions`; `finished` of them used up their budget or were ended by a callback. `reason` says
    why a run failed, what it has left to do, or why callbacks ended it. `updated` is when it last
    wrote something, in seconds since 1970.
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
    last_100: float | None = None
    evaluated: float | None = None
    target: float | None = None
    frame: int = 0
    max_frame: int | None = None
    sessions: int = 0
    finished: int = 0
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
        """Whether every word of the pattern is part of the run's folder, algorithm, env, status;
        `*` and `?` work."""
        text = f"{self.key} {self.algorithm} {self.env} {self.status} {self.kind}".lower()
        return all(fnmatchcase(text, f"*{word}*") for word in pattern.lower().split())


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
    trial = facts.get("trial", 0)
    is_rigorous = bool(meta.get("rigorous_eval"))
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
        evaluated=_evaluated(layout, trial, facts["status"], is_rigorous=is_rigorous),
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
    begun = _begun(layout, max_session)
    finished = {s for s in begun if is_finished(layout, 0, s, earlier)}
    status, reason = "running", ""
    if not is_running:
        status, reason = _trial_status(layout, max_session, begun, finished)
    # The metrics of a trial that went on are those of its former end.
    headline = read_json_or_empty(layout.predir, layout.trial_metrics_scalar(0))
    score, frame = real(headline.get("total_reward_ma")), _count(headline.get("frame")) or 0
    last_100 = real(headline.get("last_100_return"))
    if status != "done" or score is None:
        score, frame, last_100 = _progress(layout, sessions)
    is_old = status == "done" and not begun  # by a version that kept no checkpoints
    return {
        "status": status,
        "reason": reason,
        "score": score,
        "last_100": last_100,
        "frame": frame,
        "sessions": len(sessions),
        "finished": len(sessions) if is_old else len(finished),
    }


def _begun(layout: RunLayout, max_session: int) -> set[int]:
    """Sessions with a checkpoint on disk, however many a spec from elsewhere asks for."""
    pattern = re.compile(rf"{re.escape(layout.trial_name(0))}_s(\d{{1,6}})")
    folders = (pattern.fullmatch(path.name) for path in listed(layout.predir / "checkpoint"))
    return {s for match in folders if match and (s := int(match[1])) < max_session}


def _trial_status(
    layout: RunLayout, max_session: int, begun: set[int], finished: set[int]
) -> tuple[Status, str]:
    """Status of a trial without a process, by its checkpoints, reports and log."""
    if not (layout.predir / "checkpoint").is_dir() and layout.trial_metrics_scalar(0).exists():
        return "done", ""  # by a version that kept no checkpoints, or the original
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


def _progress(
    layout: RunLayout, sessions: tuple[int, ...]
) -> tuple[float | None, int, float | None]:
    """(score, frame, return of the last 100 episodes) of a trial on its way: means over the last
    rows of its tables."""
    trained = [last_row(layout, 0, session, "train") for session in sessions]
    played = [last_row(layout, 0, session, "eval") for session in sessions]
    scored = [own or row for own, row in zip(played, trained, strict=True)]
    frame = _mean(row.get("frame") for row in trained)
    last_100 = _mean(row.get("last_100_return") for row in trained)
    return _mean(row.get("total_reward_ma") for row in scored), int(frame or 0), last_100


def _mean(values: Iterable[object]) -> float | None:
    """Mean of the numbers among the values; None if there is none."""
    known = [number for value in values if (number := real(value)) is not None]
    return sum(known) / len(known) if known else None


def _evaluated(layout: RunLayout, trial: int, status: Status, *, is_rigorous: bool) -> float | None:
    """Mean return over episodes apart from training, if any were played since the last training.

    With `meta.rigorous_eval` a table named eval holds such; else it is a copy of the training's.
    """
    done = layout.trial_metrics_scalar(trial)
    trained = max(
        stamp(path)[0] for path in ([done] if status == "done" else moving_files(layout) or [done])
    )
    for best in (True, False):
        path = layout.trial_evaluation(trial, best=best, sampled=False)
        if stamp(path)[0] >= trained and path.is_file():
            content = read_json_or_empty(layout.predir, path)
            return real(content.get("mean"))
    sessions = layout.sessions(trial) if is_rigorous else ()
    rows = (last_row(layout, trial, session, "eval") for session in sessions)
    return _mean(row.get("total_reward") for row in rows)


def last_row(layout: RunLayout, trial: int, session: int, mode: Mode) -> dict[str, float]:
    """The latest complete row of a session's table; empty before the first."""
    path = layout.session_csv(trial, session, mode)
    try:
        with open_for_reading(layout.predir, path) as file:
            columns = file.readline(ROW_BYTES).decode().strip().split(",")
    except ValueError:  # a RunFolderError, or no text
        return {}
    text = read_tail(layout.predir, path, ROW_BYTES)
    cells = text[: text.rfind("\n") + 1].splitlines()[-1:] or [""]
    values = cells[0].split(",")
    if len(values) != len(columns) or values == columns:
        return {}
    return {name: _number(value) for name, value in zip(columns, values, strict=True)}


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
    headline = read_json_or_empty(layout.predir, layout.trial_metrics_scalar(best.trial))
    return facts | {
        "score": best.score,
        "last_100": real(headline.get("last_100_return")),
        "frame": best.frame,
        "trial": best.trial,
        "sessions": len(layout.sessions(best.trial)),
        "finished": len(layout.sessions(best.trial)),  # a trial has a place once it has ended
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
