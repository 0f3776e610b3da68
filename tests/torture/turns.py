"""A search without Ray, whose trials take turns in its own process.

Journal, sampler, scheduler, trials and reports are those of every search. What Ray does, to find
cores and to start processes, is left out, so that a search takes a second and is always the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from slm_lab.runs.layout import RunLayout
from slm_lab.runs.search_journal import Journal
from slm_lab.search.plan import SearchPlan
from slm_lab.search.state import SearchState, TrialListener
from slm_lab.spec import Spec
from slm_lab.training.options import RunOptions


def search_in_turns(body: Callable[[], None]) -> Callable[[], None]:
    """The body of a victim that searches, with the trials in its own process."""

    def turns() -> None:
        from slm_lab.search import engine

        engine.run_trials = run_trials
        body()

    return turns


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
    """Do what `slm_lab.search.engine.run_trials` does."""
    from slm_lab.search.display import SearchDisplay
    from slm_lab.search.engine import AllTrialsFailed
    from slm_lab.search.sampler import make_sampler
    from slm_lab.search.scheduler import make_scheduler

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
    unfinished = state.unfinished()
    while not state.must_stop():
        trial = unfinished.pop(0) if unfinished else state.new_trial()
        if trial is None:
            break
        state.announce(trial)
        state.conclude(trial, _train(state, layout, options, trial))
    stop_file.unlink(missing_ok=True)
    if state.failure:
        raise AllTrialsFailed(state.failure)


def _train(
    state: SearchState, layout: RunLayout, options: RunOptions, trial: int
) -> dict[str, Any]:
    """Train a trial until it is done, stopped by the scheduler, or interrupted."""
    from slm_lab.search.rounds import TrialRounds

    record = state.journal.records[trial]
    rounds = TrialRounds(
        state.spec.with_values(record.values),
        layout,
        trial,
        replace(options, resume=True),
        rounds=state.plan.rounds(),
        rungs=state.plan.rungs(),
        floor=state.floor,
        should_stop=state.should_stop,
        seconds=record.seconds,
    )
    try:
        while True:
            this = rounds.advance()
            result = asdict(this) | {"failed": "", "node": ""}
            is_new = this.frame > record.frame
            state.report(trial, result)
            if this.done or this.interrupted:
                return result
            if is_new and state.scheduler.replay(trial, result):
                return result
    finally:
        rounds.close()
