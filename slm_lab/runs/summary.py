"""One run folder at a glance: what the run is, how it stands and what it has scored.

Everything is read off files that a run writes anyway, so it also works for runs of other processes,
of other machines and of the original. Nothing is written. What a file says is never trusted with a
path or as a number, and no link in a run folder is followed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from slm_lab.runs import files, saved_spec
from slm_lab.runs.files import open_for_reading
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.resume import is_finished, was_killed
from slm_lab.runs.saved_run import MAX_METRICS_BYTES, TIMESTAMP, RunFolderError
from slm_lab.runs.search_journal import TrialRecord, read_records
from slm_lab.spec.catalog import target_score

Kind = Literal["trial", "search"]
Status = Literal["running", "done", "failed", "resumable"]
STATUSES: tuple[Status, ...] = ("running", "done", "failed", "resumable")

LONGEST_TEXT = 200
LOG_TAIL_BYTES = 256_000
ROW_BYTES = 4_096
MOST = 2**53  # no count of a run is larger

_LIFE_BEGINS = re.compile(r"\| (?:Running|Resuming) trial ")
_SESSION_ENDS = re.compile(r"\| Trial \d+ session (\d+) \| Session \d+ (failed: .*|done|stopped)")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run folder. `key` is its path below the data folder; numbers that are not known are None.

    `score` is `total_reward_ma`, the mean over sessions; for a search that of its best trial, which
    is `trial`. `target` is what a benchmark run in that env should reach. `frame` is the mean over
    the sessions that have begun. `reason` says why a run failed or what it has left to do.
    `updated` is when it last wrote something, in seconds since 1970.
    """

    key: str
    folder: Path
    name: str
    kind: Kind
    status: Status
    reason: str
    algorithm: str
    env: str
    score: float | None
    target: float | None
    frame: int
    max_frame: int | None
    sessions: int
    max_session: int
    trial: int
    trials: int
    max_trial: int | None
    seed: int | None
    git_sha: str
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
    max_session = _whole(meta.get("max_session")) or 1
    common = {
        "key": key,
        "folder": layout.predir,
        "name": layout.name,
        "kind": kind,
        "algorithm": _text(_block(agent, "algorithm").get("name")),
        "env": _text(env.get("name")),
        "target": target_score(_text(env.get("name")), env),
        "max_frame": _whole(env.get("max_frame")),
        "max_session": max_session,
        "seed": _whole(meta.get("random_seed")),
        "git_sha": _text(meta.get("git_sha")),
        "started": _started(layout),
        "updated": last_updated(layout),
    }
    if problem:
        status: Status = "running" if is_running else "failed"
        facts: dict[str, Any] = {"status": status, "reason": problem}
    elif kind == "search":
        facts = _search_facts(layout, _whole(meta.get("max_trial")), is_running=is_running)
    else:
        facts = _trial_facts(
            layout,
            max_session,
            is_running=is_running,
        )
    nothing = {
        "score": None,
        "frame": 0,
        "sessions": 0,
        "trial": 0,
        "trials": 1,
        "max_trial": None,
    }
    return RunSummary(**{**nothing, **common, **facts})


def unreadable(key: str, layout: RunLayout, error: Exception) -> RunSummary:
    return RunSummary(
        key=key,
        folder=layout.predir,
        name=layout.name,
        kind="trial",
        status="failed",
        reason=f"cannot be read: {error!r:.{LONGEST_TEXT}}",
        algorithm="",
        env="",
        score=None,
        target=None,
        frame=0,
        max_frame=None,
        sessions=0,
        max_session=1,
        trial=0,
        trials=1,
        max_trial=None,
        seed=None,
        git_sha="",
        started=_started(layout),
        updated=last_updated(layout),
    )


def session_indices(layout: RunLayout, trial: int) -> tuple[int, ...]:
    """Sessions of a trial with a table; none in a folder that has not got that far."""
    try:
        return layout.sessions(trial)
    except OSError:
        return ()


# How a trial stands


def _trial_facts(
    layout: RunLayout,
    max_session: int,
    *,
    is_running: bool,
) -> dict[str, Any]:
    sessions = session_indices(layout, 0)
    score, frame = _headline(layout, 0)
    if is_running or score is None:
        score, frame = _progress(layout, 0, sessions)
    status, reason = ("running", "")
    if not is_running:
        status, reason = _trial_status(layout, max_session)
    return {
        "status": status,
        "reason": reason,
        "score": score,
        "frame": frame,
        "sessions": len(sessions),
    }


def _trial_status(layout: RunLayout, max_session: int) -> tuple[Status, str]:
    """Of a trial that no process works on: what its checkpoints, notes and log say."""
    if not (layout.predir / "checkpoint").is_dir() and layout.trial_metrics_scalar(0).exists():
        return "done", ""  # by a version that kept no checkpoints, or the original
    # By what is on disk, however many sessions a spec from elsewhere asks for.
    begun = [s for s in _sessions_with_checkpoints(layout) if s < max_session]
    finished = {s for s in begun if is_finished(layout, 0, s)}
    is_trained = len(finished) >= max_session
    if is_trained and was_killed(layout, 0):
        return "resumable", "its metrics and graphs are left to write"
    if is_trained:
        return "done", ""
    ends = _session_ends(layout)
    for session in sorted({*begun, *ends} - finished):
        if layout.divergence_report(0, session).exists():
            return "failed", f"session {session} diverged"
        if ends.get(session, "").startswith("failed"):
            return "failed", f"session {session} {ends[session]}"
    left = f"{max_session - len(finished)} of {max_session} session(s) left to finish"
    return "resumable", left


def _sessions_with_checkpoints(layout: RunLayout) -> list[int]:
    pattern = re.compile(rf"{re.escape(layout.trial_name(0))}_s(\d{{1,6}})")
    try:
        names = os.listdir(layout.predir / "checkpoint")
    except OSError:
        return []
    return sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))


def _session_ends(layout: RunLayout) -> dict[int, str]:
    """How each session of the trial's latest start ended, by the trial's log."""
    ends: dict[int, str] = {}
    for line in tail(layout.log_path(0), layout.predir, LOG_TAIL_BYTES).splitlines():
        if _LIFE_BEGINS.search(line):
            ends.clear()
        elif match := _SESSION_ENDS.search(line):
            ends[int(match[1])] = match[2][:LONGEST_TEXT]
    return ends


def _headline(layout: RunLayout, trial: int) -> tuple[float | None, int]:
    """(score, frame) of the trial's metrics, once it has some."""
    content = read_json(layout.trial_metrics_scalar(trial), layout.predir)
    return real(content.get("total_reward_ma")), _whole(content.get("frame")) or 0


def _progress(layout: RunLayout, trial: int, sessions: tuple[int, ...]) -> tuple[float | None, int]:
    """(score, frame) of a trial on its way: means over the last rows of its tables."""
    rows = [last_row(layout, trial, session) for session in sessions]
    scores = [s for row in rows if (s := real(row.get("total_reward_ma"))) is not None]
    frames = [f for row in rows if (f := _whole(row.get("frame"))) is not None]
    score = sum(scores) / len(scores) if scores else None
    return score, int(sum(frames) / len(frames)) if frames else 0


# How a search stands


def _search_facts(layout: RunLayout, max_trial: int | None, *, is_running: bool) -> dict[str, Any]:
    records = search_records(layout)
    ended = [record for record in records.values() if not record.is_running]
    good = [
        record
        for record in ended
        if record.status in ("completed", "stopped") and record.score is not None
    ]
    best = max(good, key=lambda record: (record.score or 0.0, -record.trial), default=None)
    status: Status = "running"
    reason = ""
    if not is_running:
        if max_trial and len(ended) < max_trial:
            status, reason = "resumable", f"{max_trial - len(ended)} of {max_trial} trial(s) left"
        elif not good:
            status, reason = "failed", "no trial came to a score"
        else:
            status = "done"
    return {
        "status": status,
        "reason": reason,
        "score": best.score if best else None,
        "frame": best.frame if best else 0,
        "trial": best.trial if best else 0,
        "trials": len(ended),
        "max_trial": max_trial,
        "sessions": len(session_indices(layout, best.trial)) if best else 0,
    }


def search_records(layout: RunLayout) -> dict[int, TrialRecord]:
    """The trials of a search; none where the journal cannot be read."""
    try:
        records = read_records(layout.journal_path(), folder=layout.predir)
    except RunFolderError:
        return {}
    return {trial: record for trial, record in records.items() if _is_sane(record)}


def _is_sane(record: TrialRecord) -> bool:
    """Whether a record from elsewhere has the numbers that one of ours has."""
    scores = [record.final_score or 0.0, *(report.score for report in record.reports)]
    counts = [record.trial, *(report.frame for report in record.reports)]
    return (
        all(real(score) is not None for score in scores)
        and all(_whole(count) is not None for count in counts)
        and isinstance(record.values, dict)
    )


# Reading files that may be half written, damaged or somebody else's


def tail(path: Path, folder: Path, size: int) -> str:
    """The last whole lines of a text file in the run folder, at most `size` bytes of them."""
    try:
        with open_for_reading(folder, path) as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - size))
            text = file.read(size).decode("utf-8", errors="replace")
    except RunFolderError:
        return ""
    return text if length <= size else text.partition("\n")[2]


def last_row(layout: RunLayout, trial: int, session: int) -> dict[str, float]:
    """The latest row of the table that a session's score is read from: its evaluations', if any."""
    for mode in ("eval", "train"):
        path = layout.session_csv(trial, session, "eval" if mode == "eval" else "train")
        try:
            with open_for_reading(layout.predir, path) as file:
                columns = file.readline(ROW_BYTES).decode().strip().split(",")
        except ValueError:  # a RunFolderError, or no text
            continue
        text = tail(path, layout.predir, ROW_BYTES)
        cells = text[: text.rfind("\n") + 1].splitlines()[-1:] or [""]
        values = cells[0].split(",")
        if len(values) == len(columns) and values != columns:
            return {name: _number(value) for name, value in zip(columns, values, strict=True)}
    return {}


def read_json(path: Path, folder: Path) -> dict[str, Any]:
    """A small JSON file of a run; empty where there is none to read."""
    try:
        return files.read_json(folder, path, MAX_METRICS_BYTES)
    except RunFolderError:
        return {}


def read_spec_tree(layout: RunLayout, trial: int | None = None) -> dict[str, Any]:
    """A saved spec as plain data: a trial's, or the run's own; empty if it cannot be read."""
    return _spec_tree(layout, trial)[0]


def _spec_tree(layout: RunLayout, trial: int | None = None) -> tuple[dict[str, Any], str]:
    """(the spec as plain data, what is wrong with it)."""
    stems = [layout.name, f"{layout.name}_t0"]
    if trial is not None:
        stems.insert(0, f"{layout.name}_t{trial}")
    for stem in stems:
        for suffix in (".json", ".yaml", ".yml"):
            path = layout.predir / f"{stem}_spec{suffix}"
            if not os.path.lexists(path):
                continue
            try:
                return dict(saved_spec.read_spec_tree(layout.predir, path)), ""
            except RunFolderError as error:
                reason = str(error).removeprefix(f"{path}: ")
                return {}, f"{path.name} cannot be read: {reason[:LONGEST_TEXT]}"
    return {}, "its spec is gone"


# When a run last wrote something, and when it began


def moving_files(layout: RunLayout) -> list[Path]:
    """The tables of a run's sessions, which grow without a trace in their folder."""
    try:
        names = os.listdir(layout.predir / "info")
    except OSError:
        return []
    return [layout.predir / "info" / name for name in sorted(names) if name.endswith(".csv")]


def stamp(path: Path) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0)
    return status.st_mtime_ns, status.st_size


def last_updated(layout: RunLayout) -> float:
    paths = [layout.predir, layout.log_path(0), layout.journal_path(), *moving_files(layout)]
    return max(stamp(path)[0] for path in paths) / 1e9


def _started(layout: RunLayout) -> datetime:
    match = TIMESTAMP.search(layout.predir.name)
    if match:
        try:
            return datetime.strptime(match.group()[1:18], "%Y_%m_%d_%H%M%S")
        except ValueError:
            pass
    return datetime.fromtimestamp(stamp(layout.predir)[0] / 1e9)


def _block(tree: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A block of a spec; in files of SLM Lab v4 agents and envs are lists of one."""
    value = tree.get(name)
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return "" if value is None else str(value)[:LONGEST_TEXT]


def _whole(value: object) -> int | None:
    number = real(value)
    return int(number) if number is not None and 0 <= number <= MOST else None


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
