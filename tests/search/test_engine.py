"""Sampler and scheduler rebuilt from the journal; no Ray is started here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="the extra `search` is not installed")

from slm_lab.runs.layout import RunLayout
from slm_lab.runs.search_journal import TrialRecord, TrialReport
from slm_lab.search import ray_setup
from slm_lab.search.engine import ReplayableAsha, SearchState, _TrialSource
from slm_lab.search.plan import plan_search
from slm_lab.search.run import SearchReporter
from slm_lab.spec import Spec, spec_from_dict
from slm_lab.training.options import RunOptions

FLOOR = -5.0


@dataclass(frozen=True)
class StandIn:
    """A trial as Tune hands it over, with an id of its own."""

    trial_id: str
    config: dict[str, Any]


class Heard(SearchReporter):
    """Keeps what a reporter is told, and writes nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.told: list[tuple[int, str]] = []

    def trial_started(self, record: TrialRecord, spec: Spec) -> None: ...

    def trial_ended(self, record: TrialRecord) -> None:
        self.told.append((record.trial, record.status))


def asha() -> Any:
    kinds = {"time_attr": "frame", "metric": "score", "mode": "max"}
    return ReplayableAsha(**kinds, max_t=400, grace_period=100, reduction_factor=2)


def decide(scheduler: Any, trial: int, frame: int, score: float) -> str:
    """The decision on a report, by a trial that Tune has given a fresh id."""
    stand_in = StandIn(f"id{trial}{frame}", {"trial": trial})
    scheduler.on_trial_add(None, stand_in)
    return str(scheduler.on_trial_result(None, stand_in, {"frame": frame, "score": score}))


def test_a_rung_remembers_a_trial_under_its_own_number():
    scheduler = asha()
    assert decide(scheduler, 0, 100, 50.0) == "CONTINUE"
    assert decide(scheduler, 0, 150, 1.0) == "CONTINUE", "it has passed this rung already"
    assert decide(scheduler, 1, 100, 40.0) == "STOP", "below the median of what passed"


def test_a_scheduler_that_has_seen_the_past_again_decides_as_the_first_one():
    past = [(0, 100, 50.0), (1, 100, 40.0), (2, 100, 60.0), (0, 200, 70.0)]
    next_reports = [(2, 200, 65.0), (3, 100, 45.0), (4, 100, 55.0), (0, 400, 90.0)]
    first, rebuilt = asha(), asha()
    for report in past:
        decide(first, *report)
    for trial, frame, score in past:
        rebuilt.replay(trial, {"frame": frame, "score": score})
    decisions = [decide(first, *report) for report in next_reports]
    assert decisions == [decide(rebuilt, *report) for report in next_reports]
    assert decisions == ["STOP", "STOP", "CONTINUE", "STOP"]  # the last is at its end


@pytest.fixture
def make_search(make_spec, tmp_path: Path):
    def make(**values: Any) -> SearchState:
        defaults = {
            "env__max_frame": 400,
            "meta__max_trial": 6,
            "meta__random_seed": 1,
            "meta__search_scheduler": {"grace_period": 100, "reduction_factor": 2},
        }
        tree = make_spec(**{**defaults, **values}).to_dict()
        tree["search"] = {"agent.algorithm.gamma__uniform": [0.9, 0.99]}
        spec = spec_from_dict(tree, "tiny")
        plan = plan_search(spec)
        reporter = Heard(spec, RunLayout(tmp_path, spec.name), "", RunOptions())
        return SearchState(plan, reporter, FLOOR, lambda: False)

    return make


def result(frame: int, score: float, **changes: Any) -> dict[str, Any]:
    told = {"frame": frame, "score": score, "seconds": 1.0, "node": "n"}
    return told | {"diverged": "", "failed": "", "interrupted": False} | changes


def test_a_search_read_again_goes_on_with_the_unfinished_and_then_with_the_next(make_search):
    first = make_search()
    first.replay()
    for trial in range(3):
        assert first.new_trial() == trial
        first.report(trial, result(100, 10.0 * trial))
    first.conclude(0, result(400, 30.0))
    again = make_search()
    again.replay()
    assert again.unfinished() == [1, 2]
    assert again.new_trial() == 3
    assert first.new_trial() == 3
    assert again.journal.records[3].values == first.journal.records[3].values


def test_as_many_trials_as_run_at_once_are_drawn_and_one_that_waits(make_search, monkeypatch):
    """So all processes start together, and the sampler draws no further ahead than it must."""
    monkeypatch.setattr(ray_setup, "trials_at_once", lambda plan: 2)
    state = make_search()
    state.replay()
    source: Any = _TrialSource(state)
    drawn = [source.suggest(name) for name in "abcd"]
    assert [None if each is None else each["trial"] for each in drawn] == [0, 1, 2, None]
    source.on_trial_complete("b", result(400, 12.0))
    assert source.suggest("d")["trial"] == 3
    assert source.suggest("e") is None


def test_trials_are_counted_by_the_room_of_each_node(make_search, monkeypatch):
    def room(plan, *nodes):
        alive = [{"Alive": True, "Resources": node} for node in nodes]
        gone = {"Alive": False, "Resources": {"CPU": 64}}
        monkeypatch.setattr(ray_setup.ray, "nodes", lambda: [*alive, gone])
        return ray_setup.trials_at_once(plan)

    plan = make_search(meta__search_resources={"cpu": 2, "gpu": 0.5}).plan
    assert room(plan, {"CPU": 3}, {"CPU": 5}) == 1 + 2, "no GPU anywhere: none is asked for"
    assert room(plan, {"CPU": 8, "GPU": 1}, {"CPU": 8}) == 2
    assert room(plan, {"CPU": 1}) == 1


@pytest.mark.parametrize(
    ("told", "status", "score"),
    [
        (result(400, 12.0), "completed", 12.0),
        (result(100, 12.0), "stopped", 12.0),
        (result(100, FLOOR, diverged="loss = inf"), "diverged", FLOOR),
        (result(0, FLOOR, failed="no such env"), "failed", FLOOR),
        (None, "failed", FLOOR),
    ],
)
def test_how_a_trial_ended_is_read_from_its_last_report(make_search, told, status, score):
    search = make_search()
    search.replay()
    search.new_trial()
    search.conclude(0, told)
    record = search.journal.records[0]
    assert (record.status, record.score) == (status, score)
    assert search.reporter.told == [(0, status)]


def test_a_trial_that_was_interrupted_is_left_to_be_continued(make_search):
    search = make_search()
    search.replay()
    search.new_trial()
    cut_short = result(70, 1.0, interrupted=True)
    search.report(0, cut_short)
    search.conclude(0, cut_short)
    assert search.unfinished() == [0]
    assert search.journal.records[0].reports == []


def test_a_trial_that_was_to_be_stopped_when_the_search_was_killed_is_stopped_now(make_search):
    first = make_search()
    first.replay()
    for trial, score in ((0, 50.0), (1, 10.0)):
        first.new_trial()
        first.journal.report(trial, TrialReport(100, score, 1.0))
    again = make_search()
    again.replay()
    assert again.reporter.told == [(1, "stopped")]
    assert again.unfinished() == [0]


def test_a_search_whose_first_trials_all_fail_gives_up(make_search):
    search = make_search()
    search.replay()
    for _ in range(3):
        assert not search.must_stop()
        trial = search.new_trial()
        search.conclude(trial, result(0, FLOOR, failed="no such env"))
    assert search.failure == "no such env"
    assert search.must_stop()
    assert search.stop_file.exists()
