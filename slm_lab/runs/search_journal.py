"""Journal of a search: one JSON line per event, written as it happens.

The journal is the whole state of a search. Replaying it rebuilds the sampler and the scheduler, so
a search that was killed at any instant resumes exactly, and nothing on disk is ever unpickled.

    {"event": "start", "trial": 3, "point": {...}, "values": {...}}
    {"event": "report", "trial": 3, "frame": 5000, "score": 87.2, "seconds": 4.1, "node": "9f3a..."}
    {"event": "end", "trial": 3, "status": "stopped", "score": 87.2, "reason": ""}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from slm_lab.runs.files import make_folder, open_for_append, read_text, write_atomic
from slm_lab.spec.run_folder import RunFolderError

MAX_JOURNAL_BYTES = 64_000_000

Point = dict[str, float]  # path -> coordinate: in [0, 1), or the index of an option

Status = Literal["running", "completed", "stopped", "diverged", "failed"]


@dataclass(frozen=True, slots=True)
class TrialReport:
    """The mean over a trial's sessions; `seconds` it has trained, on the machine `node`."""

    frame: int
    score: float
    seconds: float
    node: str = ""


@dataclass(slots=True)
class TrialRecord:
    """One trial in the journal. Only the journal changes it."""

    trial: int
    point: Point
    values: dict[str, Any]
    status: Status = "running"
    reports: list[TrialReport] = field(default_factory=list)
    final_score: float | None = None
    reason: str = ""

    @property
    def is_running(self) -> bool:
        return self.status == "running"

    @property
    def frame(self) -> int:
        return self.reports[-1].frame if self.reports else 0

    @property
    def seconds(self) -> float:
        return self.reports[-1].seconds if self.reports else 0.0

    @property
    def score(self) -> float | None:
        """The final score, else that of the last report; None before the first report."""
        if self.final_score is not None:
            return self.final_score
        return self.reports[-1].score if self.reports else None


class Journal:
    """Owns the records of the trials and the file that holds the same."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = path.parents[1]  # the run folder
        self.records: dict[int, TrialRecord] = {}
        make_folder(self._folder, path.parent)
        if path.exists():
            text = read_text(self._folder, path, MAX_JOURNAL_BYTES)
            whole = text[: text.rfind("\n") + 1]
            if whole != text:  # a kill cut the last line short
                write_atomic(self._folder, path, whole)
            self.records = _replay(whole, path)

    def start(self, trial: int, point: Mapping[str, float], values: Mapping[str, Any]) -> None:
        self._write(event="start", trial=trial, point=dict(point), values=dict(values))

    def report(self, trial: int, report: TrialReport) -> None:
        """Add a report; those that a trial repeats from its checkpoint on count once."""
        if report.frame > self.records[trial].frame:
            self._write(event="report", trial=trial, **asdict(report))

    def end(self, trial: int, status: Status, score: float, reason: str = "") -> None:
        self._write(event="end", trial=trial, status=status, score=score, reason=reason)

    def _write(self, **event: Any) -> None:
        assert math.isfinite(event.get("score", 0.0)), "a trial's score is finite"
        with open_for_append(self._folder, self.path) as file:
            file.write((json.dumps(event) + "\n").encode())
        _apply(self.records, event)


def best_first(records: Mapping[int, TrialRecord]) -> list[TrialRecord]:
    """Trials that have ended and can be run again, the highest score first."""
    fit = [r for r in records.values() if r.status in ("completed", "stopped")]
    ended = [(-r.score, r.trial) for r in fit if r.score is not None]
    return [records[trial] for _, trial in sorted(ended)]


def read_records(path: Path) -> dict[int, TrialRecord]:
    """Read the trials of a journal that another process may be writing to."""
    text = read_text(path.parents[1], path, MAX_JOURNAL_BYTES)
    return _replay(text[: text.rfind("\n") + 1], path)


def _replay(text: str, path: Path) -> dict[int, TrialRecord]:
    records: dict[int, TrialRecord] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            _apply(records, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RunFolderError(
                f"{path}: line {number} is no event of a search ({error!r:.100}). Restore the file "
                "from a copy, or start another search."
            ) from None
    return records


def _apply(records: dict[int, TrialRecord], event: Mapping[str, Any]) -> None:
    trial = event["trial"]
    match event["event"]:
        case "start":
            records[trial] = TrialRecord(trial, event["point"], event["values"])
        case "report":
            told = event["frame"], event["score"], event["seconds"], event.get("node", "")
            records[trial].reports.append(TrialReport(*told))
        case "end":
            record = records[trial]
            record.status, record.final_score = event["status"], event["score"]
            record.reason = event["reason"]
