"""Run the trials of a search with Ray Tune, which finds cores, starts trials and delivers reports.

Tune's memory (which trials there are, what the scheduler has seen) is a copy of the journal. Its
own way to restore an experiment is not used: it loses the rungs of the scheduler, unpickles what it
finds, and may be seconds behind.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from slm_lab.runs.layout import RunLayout
from slm_lab.runs.own_modules import own_modules
from slm_lab.runs.search_journal import Status, TrialReport
from slm_lab.search import ray_setup
from slm_lab.search.display import SearchDisplay
from slm_lab.search.plan import SearchPlan
from slm_lab.search.ray_setup import Searcher, tune
from slm_lab.search.run import SearchReporter
from slm_lab.search.space import GridSampler, OptunaSampler, PointSampler, RandomSampler, values_at
from slm_lab.search.worker import SearchJob, TrialWorker
from slm_lab.spec import SpecError

GIVE_UP_AFTER = 3  # trials that fail before any trial has a score: the rest would fail as well
LOOK_SECONDS = 5.0  # between two looks at how many trials the nodes have room for
RESTARTS = 1  # of a trial whose process or node dies, from its checkpoint


class SearchState:
    """Journal, sampler and scheduler of a running search: every event passes through here, so that
    they and the reporter agree on what happened."""

    def __init__(
        self, plan: SearchPlan, reporter: SearchReporter, floor: float, stop: Callable[[], bool]
    ) -> None:
        self.plan, self.reporter, self.journal = plan, reporter, reporter.journal
        self.floor, self._should_stop = floor, stop
        self.stop_file = reporter.layout.search_dir() / "stop"
        assert reporter.spec.meta.random_seed is not None
        self.sampler = make_sampler(plan, reporter.spec.meta.random_seed)
        self.scheduler = make_scheduler(plan)
        self.display = SearchDisplay(plan)
        self.failure = ""  # why the first trials all failed

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
                if isinstance(self.scheduler, ReplayableAsha):
                    overdue |= self.scheduler.replay(record.trial, result)
            if record.is_running and overdue:  # stopped, but killed before that was written
                self.end(record.trial, "stopped", record.score)
            elif not record.is_running:
                assert record.score is not None
                self.sampler.tell(record.trial, record.score)
        self.display.show(records)

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
            spec = self.reporter.spec.with_values(record.values)
        except SpecError:
            return  # the trial itself fails with what is wrong with its values
        self.reporter.trial_started(record, spec)
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
        self.reporter.trial_ended(records[trial])
        self.display.ended(records, trial)
        if all(record.status == "failed" or not record.reports for record in records.values()):
            failed = [record for record in records.values() if record.status == "failed"]
            if len(failed) >= min(GIVE_UP_AFTER, self.plan.max_trial):
                self.failure = failed[0].reason

    def must_stop(self) -> bool:
        """Whether the search has to end now; trials on any node learn it from the stop file."""
        stop = bool(self.failure) or self._should_stop()
        if stop and not self.stop_file.exists():
            self.stop_file.touch()
        return stop


def run_trials(
    plan: SearchPlan, reporter: SearchReporter, floor: float, should_stop: Callable[[], bool]
) -> str:
    """Run every trial of the plan that the journal does not show as ended, until all are done or
    `should_stop` says so; another call continues. If the first trials all failed, returns why."""
    layout, options = reporter.layout, reporter.options
    ray_setup.check_local_fit(plan, options.ray_address)
    state = SearchState(plan, reporter, floor, should_stop)
    state.stop_file.unlink(missing_ok=True)
    state.replay()
    if not state.unfinished() and len(state.journal.records) >= plan.max_trial:
        return ""
    job = SearchJob(
        spec=reporter.spec,
        predir=str(layout.predir.resolve()),
        stop_file=str(state.stop_file.resolve()),
        options=options,
        rounds=plan.rounds(),
        rungs=plan.rungs(),
        floor=floor,
    )
    modules = own_modules(reporter.spec)
    with ray_setup.ray_ready(options.ray_address, layout.search_dir(), modules), state.display:
        tuner = _tuner(state, job, layout)
        with ray_setup.quiet():
            tuner.fit()
    state.stop_file.unlink(missing_ok=True)
    # Nothing reads Tune's own files: the journal has it all.
    shutil.rmtree(layout.search_dir() / "tune", ignore_errors=True)
    return state.failure


def _tuner(state: SearchState, job: SearchJob, layout: RunLayout) -> Any:
    worker = tune.with_parameters(TrialWorker, job=job)
    return tune.Tuner(
        tune.with_resources(worker, ray_setup.trial_resources(state.plan)),
        tune_config=tune.TuneConfig(
            search_alg=_TrialSource(state),
            scheduler=state.scheduler,
            num_samples=state.plan.max_trial,
            reuse_actors=True,  # a process imports torch once
            trial_name_creator=trial_name,
            trial_dirname_creator=trial_name,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(layout.search_dir().resolve()),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            failure_config=tune.FailureConfig(max_failures=RESTARTS),
            stop=_Stopper(state),
            callbacks=[_ReportCallback(state)],
            verbose=0,
        ),
    )


class _TrialSource(Searcher):  # type: ignore[misc]  # ray publishes no types
    """Gives Tune as many trials as run at once and one that waits, and hears that one is over.

    More would be drawn before the sampler has learned from those that run.
    """

    def __init__(self, state: SearchState) -> None:
        super().__init__(metric="score", mode="max")
        self._state = state
        self._unfinished = state.unfinished()
        self._trial_of: dict[str, int] = {}
        self._at_once, self._look_at = 0, -math.inf

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if time.monotonic() >= self._look_at:  # nodes come and go
            self._at_once = ray_setup.trials_at_once(self._state.plan)
            self._look_at = time.monotonic() + LOOK_SECONDS
        if len(self._trial_of) > self._at_once:
            return None
        trial = self._unfinished.pop(0) if self._unfinished else self._state.new_trial()
        if trial is None:
            return str(Searcher.FINISHED)
        self._trial_of[trial_id] = trial
        self._state.announce(trial)
        record = self._state.journal.records[trial]
        return {"trial": trial, "values": record.values, "seconds": record.seconds}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self._state.conclude(self._trial_of.pop(trial_id), None if error else result)

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the journal has it all."""


class _ReportCallback(tune.Callback):  # type: ignore[misc]
    def __init__(self, state: SearchState) -> None:
        self._state = state

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self._state.report(trial.config["trial"], result)


class _Stopper(tune.Stopper):  # type: ignore[misc]
    def __init__(self, state: SearchState) -> None:
        self._state = state

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._state.must_stop()


def make_sampler(plan: SearchPlan, seed: int) -> PointSampler:
    match plan.sampler:
        case "grid":
            return GridSampler(plan.space)
        case "random":
            return RandomSampler(plan.space, seed)
        case _:
            return OptunaSampler(plan.space, seed, plan.max_trial)


def make_scheduler(plan: SearchPlan) -> Any:
    """ASHA if the plan asks for it; else every trial runs to its end."""
    if plan.halving is None:
        return ray_setup.FIFOScheduler()
    return ReplayableAsha(
        time_attr="frame",
        metric="score",
        mode="max",
        max_t=plan.max_frame,
        grace_period=plan.halving.grace_period,
        reduction_factor=plan.halving.reduction_factor,
    )


def trial_name(trial: Any) -> str:
    return f"t{trial.config['trial']}"


class _AshaTrial(NamedTuple):
    """A trial as ASHA sees it. Tune draws new ids at each start; the rungs remember this one."""

    trial_id: str


class ReplayableAsha(ray_setup.ASHAScheduler):  # type: ignore[misc]  # ray publishes no types
    """Ray's ASHA, in which a trial keeps its id from one start of the search to the next."""

    def replay(self, trial: int, result: Mapping[str, Any]) -> bool:
        """Process a report from the journal; True if ASHA stops the trial there."""
        known = _AshaTrial(f"t{trial}")
        if known.trial_id not in self._trial_info:
            super().on_trial_add(None, known)
        return bool(super().on_trial_result(None, known, dict(result)) == self.STOP)

    def on_trial_add(self, controller: Any, trial: Any) -> None:
        if trial_name(trial) not in self._trial_info:
            super().on_trial_add(controller, _AshaTrial(trial_name(trial)))

    def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> Any:
        return super().on_trial_result(controller, _AshaTrial(trial_name(trial)), result)

    def on_trial_complete(self, controller: Any, trial: Any, result: dict[str, Any]) -> None:
        super().on_trial_complete(controller, _AshaTrial(trial_name(trial)), result)

    def on_trial_remove(self, controller: Any, trial: Any) -> None:
        super().on_trial_remove(controller, _AshaTrial(trial_name(trial)))
