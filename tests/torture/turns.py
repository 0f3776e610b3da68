"""A search without Ray, whose trials take turns in its own process.

Journal, sampler, scheduler, trials and reports are those of every search. What Ray does, to find
cores and to start processes, is left out, so that a search takes a second and is always the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from slm_lab.search.plan import SearchPlan
from slm_lab.search.run import SearchReporter

if TYPE_CHECKING:
    from slm_lab.search.engine import SearchState


def search_in_turns(body: Callable[[], None]) -> Callable[[], None]:
    """The body of a victim that searches, with the trials in its own process."""

    def turns() -> None:
        from slm_lab.search import engine

        engine.run_trials = run_trials
        body()

    return turns


def run_trials(
    plan: SearchPlan, reporter: SearchReporter, floor: float, should_stop: Callable[[], bool]
) -> str:
    """Do what `slm_lab.search.engine.run_trials` does."""
    from slm_lab.search.engine import SearchState

    state = SearchState(plan, reporter, floor, should_stop)
    state.stop_file.unlink(missing_ok=True)
    state.replay()
    unfinished = state.unfinished()
    while not state.must_stop():
        trial = unfinished.pop(0) if unfinished else state.new_trial()
        if trial is None:
            break
        state.announce(trial)
        state.conclude(trial, _train(state, trial, should_stop))
    state.stop_file.unlink(missing_ok=True)
    return state.failure


def _train(state: SearchState, trial: int, should_stop: Callable[[], bool]) -> dict[str, Any]:
    """Train a trial until it is done, stopped by the scheduler, or interrupted."""
    from slm_lab.search.engine import ReplayableAsha
    from slm_lab.search.worker import SearchJob, TrialRounds

    record, layout = state.journal.records[trial], state.reporter.layout
    job = SearchJob(
        spec=state.reporter.spec.with_values(record.values),
        predir=str(layout.predir.resolve()),
        stop_file=str(state.stop_file.resolve()),
        options=replace(state.reporter.options, resume=True),
        rounds=state.plan.rounds(),
        rungs=state.plan.rungs(),
        floor=state.floor,
    )
    rounds = TrialRounds(job, layout, trial, should_stop, record.seconds)
    try:
        while True:
            this = rounds.advance()
            result = asdict(this) | {"failed": "", "node": ""}
            is_new = this.frame > record.frame
            state.report(trial, result)
            if this.done or this.interrupted:
                return result
            asha = state.scheduler
            if is_new and isinstance(asha, ReplayableAsha) and asha.replay(trial, result):
                return result
    finally:
        rounds.close()
