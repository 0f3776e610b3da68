"""Run the trials of a search with Ray Tune, which finds cores, starts trials and delivers reports.

Tune's memory (which trials there are, what the scheduler has seen) is a copy of the journal. Its
own way to restore an experiment is not used: it loses the rungs of the scheduler, unpickles what it
finds, and may be seconds behind.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from slm_lab.runs.layout import RunLayout
from slm_lab.runs.search_journal import Journal
from slm_lab.search.display import SearchDisplay
from slm_lab.search.plan import SearchPlan
from slm_lab.search.ray_setup import (
    Searcher,
    check_local_fit,
    quiet,
    ray_ready,
    trial_resources,
    tune,
)
from slm_lab.search.sampler import make_sampler
from slm_lab.search.scheduler import make_scheduler, trial_name
from slm_lab.search.state import SearchState, TrialListener
from slm_lab.search.worker import SearchJob, TrialWorker
from slm_lab.spec import Spec
from slm_lab.training.options import RunOptions

RESTARTS = 1  # of a trial whose process or node dies, from its checkpoint


class AllTrialsFailed(RuntimeError):
    """The first trials all failed."""


def run_trials(
    spec: Spec,
    plan: SearchPlan,
    layout: RunLayout,
    journal: Journal,
    options: RunOptions,
    *,
    floor: float,
    listener: TrialListener,
    should_stop: Callable[[], bool],
) -> None:
    """Run every trial of the plan that the journal does not show as ended.

    Returns when all are done or `should_stop` says so. Unfinished trials are then on disk, and
    another call continues them.
    """
    check_local_fit(plan, options.ray_address)
    stop_file = layout.search_dir() / "stop"
    stop_file.unlink(missing_ok=True)
    assert spec.meta.random_seed is not None
    state = SearchState(
        spec,
        plan,
        journal,
        make_sampler(plan, spec.meta.random_seed),
        make_scheduler(plan),
        SearchDisplay(plan),
        listener,
        should_stop,
        floor,
        stop_file,
    )
    state.replay()
    if not state.has_work:
        return
    job = SearchJob(
        spec=spec,
        predir=str(layout.predir.resolve()),
        stop_file=str(stop_file.resolve()),
        options=options,
        rounds=plan.rounds(),
        rungs=plan.rungs(),
        floor=floor,
    )
    with ray_ready(options.ray_address, layout.search_dir()), state.display:
        tuner = _tuner(state, job, layout)
        with quiet():
            tuner.fit()
    stop_file.unlink(missing_ok=True)
    # Nothing reads Tune's own files: the journal has it all.
    shutil.rmtree(layout.search_dir() / "tune", ignore_errors=True)
    if state.failure:
        raise AllTrialsFailed(state.failure)


def _tuner(state: SearchState, job: SearchJob, layout: RunLayout) -> Any:
    worker = tune.with_parameters(TrialWorker, job=job)
    return tune.Tuner(
        tune.with_resources(worker, trial_resources(state.plan)),
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
    """Gives Tune the next trial, and hears from it that one is over."""

    def __init__(self, state: SearchState) -> None:
        super().__init__(metric="score", mode="max")
        self._state = state
        self._unfinished = state.unfinished()
        self._trial_of: dict[str, int] = {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
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
        self._state.conclude(self._trial_of[trial_id], None if error else result)

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the journal has it."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing: the journal has it."""


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
