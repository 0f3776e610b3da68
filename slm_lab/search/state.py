"""The state of a running search: journal, sampler and scheduler, kept in step with one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from slm_lab.runs.search_journal import Journal, Status, TrialRecord, TrialReport
from slm_lab.search.display import SearchDisplay
from slm_lab.search.plan import SearchPlan
from slm_lab.search.sampler import PointSampler
from slm_lab.search.space import values_at
from slm_lab.spec import Spec, SpecError

GIVE_UP_AFTER = 3  # trials that fail before any trial has a score: the rest would fail as well


class TrialListener(Protocol):
    """Told when trials start and end; `reporter.SearchReporter` is one."""

    def trial_started(self, record: TrialRecord, spec: Spec) -> None: ...
    def trial_ended(self, record: TrialRecord) -> None: ...


class ReplayableScheduler(Protocol):
    def replay(self, trial: int, result: Mapping[str, Any]) -> bool:
        """Process a report from the journal; True if the trial is stopped there."""


@dataclass(slots=True)
class SearchState:
    """Every event of a search passes through here, so that its owners agree on what happened."""

    spec: Spec
    plan: SearchPlan
    journal: Journal
    sampler: PointSampler
    scheduler: ReplayableScheduler
    display: SearchDisplay
    listener: TrialListener
    should_stop: Callable[[], bool]
    floor: float
    stop_file: Path
    failure: str = ""  # why the first trials all failed

    def __reduce__(self) -> tuple[type, tuple[str]]:
        # Tune pickles its callbacks for a restore that is never used, and they hold this state.
        return str, ("a search lives in one process",)

    def replay(self) -> None:
        """Bring a new sampler and a new scheduler to where the journal is."""
        records = self.journal.records
        for trial, record in records.items():
            self.sampler.replay(trial, record.point)
        for record in list(records.values()):
            overdue = False
            for report in record.reports:
                result = {"frame": report.frame, "score": report.score}
                overdue |= self.scheduler.replay(record.trial, result)
            if record.is_running and overdue:  # stopped, but killed before that was written
                self.end(record.trial, "stopped", record.score)
            elif not record.is_running:
                assert record.score is not None
                self.sampler.tell(record.trial, record.score)
        self.display.show(records)

    @property
    def has_work(self) -> bool:
        return bool(self.unfinished()) or len(self.journal.records) < self.plan.max_trial

    def unfinished(self) -> list[int]:
        return [trial for trial, record in self.journal.records.items() if record.is_running]

    def new_trial(self) -> int | None:
        """The index of the next trial, with its point drawn and journalled; None after the last."""
        trial = len(self.journal.records)
        if trial >= self.plan.max_trial:
            return None
        point = self.sampler.ask(trial)
        self.journal.start(trial, point, values_at(self.plan.space, point))
        return trial

    def announce(self, trial: int) -> None:
        record = self.journal.records[trial]
        try:
            spec = self.spec.with_values(record.values)
        except SpecError:
            return  # the trial itself fails with what is wrong with its values
        self.listener.trial_started(record, spec)
        self.display.show(self.journal.records)

    def report(self, trial: int, result: Mapping[str, Any]) -> None:
        if not (result["interrupted"] or result["failed"]):
            told = {name: result[name] for name in ("frame", "score", "seconds", "node")}
            self.journal.report(trial, TrialReport(**told))
            self.display.report(self.journal.records, trial)

    def conclude(self, trial: int, result: Mapping[str, Any] | None) -> None:
        """Record how a trial ended; without a result its process died."""
        if result is None:
            self.end(trial, "failed", self.floor, "its process died")
        elif result["failed"]:
            self.end(trial, "failed", self.floor, result["failed"])
        elif result["diverged"]:
            self.end(trial, "diverged", self.floor, result["diverged"])
        elif result["frame"] >= self.plan.max_frame:
            self.end(trial, "completed", result["score"])
        elif not result["interrupted"]:
            self.end(trial, "stopped", result["score"])

    def end(self, trial: int, status: Status, score: float | None, reason: str = "") -> None:
        final = self.floor if score is None else score
        self.journal.end(trial, status, final, reason)
        self.sampler.tell(trial, final)
        records = self.journal.records
        self.listener.trial_ended(records[trial])
        self.display.ended(records, trial)
        if all(record.status == "failed" or not record.reports for record in records.values()):
            failed = [record for record in records.values() if record.status == "failed"]
            if len(failed) >= min(GIVE_UP_AFTER, self.plan.max_trial):
                self.failure = failed[0].reason

    def must_stop(self) -> bool:
        """Whether the search has to end now; trials on any node learn it from the stop file."""
        stop = bool(self.failure) or self.should_stop()
        if stop and not self.stop_file.exists():
            self.stop_file.touch()
        return stop
