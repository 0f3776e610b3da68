"""Status of each row of the manifest, from its result and the run folders of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from slm_lab.analysis.tables import read_session
from slm_lab.benchmark.ledger import attempts, read_ledger
from slm_lab.benchmark.manifest import Row
from slm_lab.benchmark.result import CollectedResult, is_derived, read_result
from slm_lab.benchmark.seeds import changed_keys, fingerprint
from slm_lab.error import LabError
from slm_lab.runs.find import open_run, stamped_folders
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.lock import is_held
from slm_lab.runs.provenance import read_run_records
from slm_lab.runs.resume import spec_differences, unfinished_sessions
from slm_lab.spec import Spec


class RowStatus(StrEnum):
    done = "done"  # its result is kept, and of the spec as it is today
    trained = "trained"  # its runs are finished, the result is not kept yet
    running = "running"  # a process holds a folder
    interrupted = "interrupted"  # a run can go on from its checkpoints
    failed = "failed"  # its last run ended with errors
    partial = "partial"  # a result is kept, of fewer sessions than the row asks for
    stale = "stale"  # a result is kept, but of another spec, or of a seed that was picked by hand
    missing = "missing"
    skipped = "skipped"  # the manifest says why


OPEN = (
    RowStatus.missing,
    RowStatus.stale,
    RowStatus.partial,
    RowStatus.interrupted,
    RowStatus.trained,
)


@dataclass(frozen=True, slots=True)
class TrialState:
    """Where a trial stands, by its newest run folder; `progress` is the share of its frames."""

    status: RowStatus
    layout: RunLayout | None = None
    progress: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RowState:
    """Where a row stands. `attempts` counts those of all specs it had, `trials` are those of
    today's spec."""

    row: Row
    status: RowStatus
    kept: CollectedResult | None = None
    trials: tuple[TrialState, ...] = ()
    attempts: int = 0
    reason: str = ""

    @property
    def progress(self) -> float:
        """Share of the frames of all trials that have been trained."""
        if self.status is RowStatus.done:
            return 1.0
        return sum(trial.progress for trial in self.trials) / max(1, len(self.trials))

    @property
    def folders(self) -> list[Path]:
        return [trial.layout.predir for trial in self.trials if trial.layout is not None]


def row_state(row: Row, results_dir: Path, data_dir: Path) -> RowState:
    """The state of a running process, else of a result of today's spec, else of the runs."""
    folder = results_dir / row.id
    kept, tried = read_result(folder), len(attempts(read_ledger(folder)))
    candidates = [
        path
        for path, name in stamped_folders(data_dir).items()  # the newest first
        if name == row.spec_name or name.startswith(f"{row.spec_name}_")
    ]
    if kept is None and not candidates:  # nothing to compare with, so the spec is not read
        status = RowStatus.skipped if row.skip else RowStatus.missing
        return RowState(row, status, attempts=tried, reason=row.skip)
    trials = tuple(_trial_state(row.spec(trial), candidates) for trial in range(row.trials))
    by_status = {trial.status: trial for trial in reversed(trials)}  # the first one of each
    lacking, reason = _shortfall(row, kept)
    is_running, is_begun = RowStatus.running in by_status, set(by_status) != {RowStatus.missing}
    if not is_running and (lacking in (RowStatus.done, RowStatus.skipped) or not is_begun):
        return RowState(row, lacking, kept, trials, tried, reason)
    order = (RowStatus.running, RowStatus.failed, RowStatus.interrupted, RowStatus.missing)
    status = next((each for each in order if each in by_status), RowStatus.trained)
    reason = by_status[status].reason
    if status is RowStatus.missing:  # one trial is trained, another not begun
        status = RowStatus.interrupted
    return RowState(row, status, kept, trials, tried, reason)


def _shortfall(row: Row, kept: CollectedResult | None) -> tuple[RowStatus, str]:
    """What a kept result lacks, if anything."""
    if kept is None:
        return (RowStatus.skipped, row.skip) if row.skip else (RowStatus.missing, "")
    today, result = row.spec(), kept.result
    if fingerprint(today) != result.fingerprint:
        return RowStatus.stale, f"other {', '.join(changed_keys(today, kept.spec))} today"
    if not is_derived(result):
        return RowStatus.stale, f"seed {result.trials[0].seed} was picked by hand"
    if (found := len(result.scores)) < row.sessions:
        return RowStatus.partial, f"{found} of {row.sessions} sessions"
    return RowStatus.done, ""


def _trial_state(spec: Spec, folders: Sequence[Path]) -> TrialState:
    runs = list(_runs(spec, folders))
    for layout in runs:
        if is_held(layout.run_lock(), folder=layout.predir):
            return TrialState(RowStatus.running, layout, _progress(spec, layout))
    if not runs:
        return TrialState(RowStatus.missing)
    status, reason = _status(spec, runs[0])
    return TrialState(status, runs[0], _progress(spec, runs[0]), reason)


def _status(spec: Spec, layout: RunLayout) -> tuple[RowStatus, str]:
    left = unfinished_sessions(spec, layout, 0)
    for session in range(spec.meta.max_session):
        if layout.divergence_report(0, session).exists():
            return RowStatus.failed, f"session {session} diverged"
    if not left and layout.trial_metrics(0).exists():
        return RowStatus.trained, ""
    records = read_run_records(layout.trial_provenance(0), folder=layout.predir)
    if records and records[-1].end.startswith("failed"):
        return RowStatus.failed, records[-1].end.removeprefix("failed: ")
    return RowStatus.interrupted, ""


def _runs(spec: Spec, folders: Sequence[Path]) -> Iterator[RunLayout]:
    """The run folders that trained exactly this spec."""
    for folder in folders:
        try:
            run = open_run(folder, trial=0)
        except LabError:
            continue
        is_search = run.layout.search_dir().exists()
        if run.layout.name == spec.name and not is_search and not spec_differences(spec, run.spec):
            yield run.layout


def _progress(spec: Spec, layout: RunLayout) -> float:
    """Share of the frames that have been trained, by the tables of the sessions."""
    frames = 0.0
    for session in layout.sessions(0):
        try:
            table = read_session(layout.session_csv(0, session, "train"), folder=layout.predir)
        except ValueError:  # not a row yet
            continue
        frames += 0.0 if table.empty else float(table["frame"].iloc[-1])
    return min(1.0, frames / (spec.env.max_frame * spec.meta.max_session))
