"""Status of each row of the manifest, from its result and the run folders of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from slm_lab.analysis.tables import read_session
from slm_lab.benchmark.manifest import Row
from slm_lab.benchmark.result import CollectedResult, read_result
from slm_lab.error import LabError
from slm_lab.runs.find import open_run, stamped_folders
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.lock import is_held
from slm_lab.runs.provenance import read_run_records
from slm_lab.runs.resume import spec_differences, unfinished_sessions
from slm_lab.spec import Spec


class RowStatus(StrEnum):
    done = "done"  # its result is kept, and of the spec as it is today
    trained = "trained"  # the run is finished, its result is not kept yet
    running = "running"  # a process holds its folder
    interrupted = "interrupted"  # a run can go on from its checkpoints
    failed = "failed"  # its last run ended with errors
    stale = "stale"  # a result is kept, but of another spec
    missing = "missing"
    skipped = "skipped"  # the manifest says why


OPEN = (RowStatus.missing, RowStatus.stale, RowStatus.interrupted, RowStatus.trained)


@dataclass(frozen=True, slots=True)
class RowState:
    """`folder` is the run that the status is about; `progress` the share of frames trained."""

    row: Row
    status: RowStatus
    kept: CollectedResult | None = None
    folder: Path | None = None
    progress: float = 0.0
    reason: str = ""


def row_state(row: Row, results_dir: Path, data_dir: Path) -> RowState:
    """The state of a running process, else of a result of today's spec, else of the newest run."""
    kept = read_result(results_dir / row.id)
    unknown = RowState(row, RowStatus.skipped if row.skip else RowStatus.missing, reason=row.skip)
    candidates = [
        path
        for path, name in stamped_folders(data_dir).items()  # the newest first
        if name == row.spec_name or name.startswith(f"{row.spec_name}_")
    ]
    if kept is None and not candidates:  # nothing to compare with, so the spec is not read
        return unknown
    spec = row.spec()
    runs = list(_runs(spec, candidates))
    for layout in runs:
        if is_held(layout.run_lock(), folder=layout.predir):
            progress = _progress(spec, layout)
            return RowState(row, RowStatus.running, kept, layout.predir, progress)
    changes = spec_differences(spec, kept.spec) if kept else []
    if kept is not None and not changes:
        return RowState(row, RowStatus.done, kept, progress=1.0)
    if runs:
        status, reason = _status(spec, runs[0])
        return RowState(row, status, kept, runs[0].predir, _progress(spec, runs[0]), reason)
    if kept is not None:
        changed = ", ".join(problem.path for problem in changes)
        return RowState(row, RowStatus.stale, kept, reason=f"other {changed} today")
    return unknown


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
