"""What a spec asks of a search, and what keeps it from being searched."""

from __future__ import annotations

from typing import Any

import pytest

from slm_lab.search.plan import (
    SECONDS_TO_START,
    Halving,
    Speed,
    measure_speed,
    plan_search,
    search_seconds,
)
from slm_lab.spec import Spec, SpecError, spec_from_dict
from slm_lab.training.session import Session

SEARCH = {"agent.algorithm.gamma__uniform": [0.9, 0.99]}


@pytest.fixture
def searched(make_spec):
    def make(search: dict[str, Any] | None = None, **values: Any) -> Spec:
        tree = make_spec(**{"meta__max_trial": 4, **values}).to_dict()
        return spec_from_dict({**tree, "search": SEARCH if search is None else search}, "tiny")

    return make


def problems(spec: Spec) -> str:
    with pytest.raises(SpecError) as caught:
        plan_search(spec)
    return str(caught.value)


def test_a_trial_is_judged_at_its_rungs_and_reports_in_between(searched):
    spec = searched(
        env__max_frame=8000,
        meta__log_frequency=1000,
        meta__search_scheduler={"grace_period": 1500, "reduction_factor": 3},
    )
    plan = plan_search(spec)
    assert plan.halving is not None
    assert plan.halving.rungs(8000) == (1500, 4500)  # 13,500 would be after the end
    assert plan.rounds() == (1000, 1500, 2000, 3000, 4000, 4500, 5000, 6000, 7000, 8000)


def test_without_a_scheduler_nothing_stops_early(searched):
    plan = plan_search(searched(env__max_frame=200, meta__max_session=2))
    assert plan.halving is None
    assert plan.most_frames == plan.expected_frames == 4 * 2 * 200


def test_halving_trains_the_share_that_passes_each_rung():
    # Everybody to 100; a half from there to 200; a quarter from 200 to the end at 400.
    assert Halving(100, 2).expected_share(400) == (100 + 100 / 2 + 200 / 4) / 400


def test_everything_wrong_is_said_at_once(searched):
    spec = searched(
        search={},
        meta__max_trial=None,
        meta__search_scheduler={"grace_period": 10, "reduction_factor": 1, "factor": 3},
        meta__search_resources={"cpu": 0, "gpus": 1},
    )
    text = problems(spec)
    for line in (
        "search: missing",
        "meta.max_trial: missing",
        "meta.search_scheduler.factor: unknown key",
        "meta.search_scheduler.grace_period: found 10; expected frames, from meta.log_frequency",
        "meta.search_scheduler.reduction_factor: found 1; expected more than 1",
        "meta.search_resources.gpus: unknown resource. Did you mean `gpu`?",
        "meta.search_resources.cpu: found 0; expected more than 0",
    ):
        assert line in text


def test_a_grid_takes_its_number_of_trials_from_its_size(searched):
    search = {
        "agent.algorithm.gamma__choice": [0.9, 0.95, 0.99],
        "env.num_envs__randint": [1, 3],
    }
    spec = searched(search, meta__search_sampler="grid", meta__max_trial=None)
    assert plan_search(spec).max_trial == 6


def test_a_grid_over_a_continuous_axis_or_one_too_large_is_refused(searched):
    assert "search.agent.algorithm.gamma__uniform: has no grid" in problems(
        searched(meta__search_sampler="grid")
    )
    search = {"agent.algorithm.gamma__choice": [0.9, 0.91, 0.92, 0.93, 0.94]}
    assert "the grid has 5 points" in problems(searched(search, meta__search_sampler="grid"))


# Time


def test_the_time_counts_what_trials_take_to_begin_and_the_cores_that_idle_at_the_end(searched):
    """5 trials of 2 sessions of 200 frames: 2,000 / 100 s and 10 * 1 s of work on two cores, in
    three rounds, the last of which leaves a core idle: 3 / 2.5 of 15 s, after the start."""
    plan = plan_search(searched(env__max_frame=200, meta__max_session=2, meta__max_trial=5))
    assert search_seconds(plan, plan.most_frames, 2, Speed(100.0, 1.0)) == SECONDS_TO_START + 18.0
    # The graphs of the trials are drawn by one process, one after another.
    drawn = Speed(100.0, 1.0, seconds_to_draw=2.0)
    assert search_seconds(plan, plan.most_frames, 2, drawn) == SECONDS_TO_START + 28.0


def test_early_stopping_leaves_no_core_idle(searched):
    plan = plan_search(
        searched(
            env__max_frame=400,
            meta__max_trial=5,
            meta__search_scheduler={"grace_period": 100, "reduction_factor": 2},
        )
    )
    assert search_seconds(plan, 1_000, 2, Speed(100.0)) == SECONDS_TO_START + 5.0


def test_the_speed_is_that_of_a_trial_in_the_middle_once_it_learns(monkeypatch, tmp_path):
    """Acting at random, before a replay is full enough to learn from, is several times faster."""
    monkeypatch.chdir(tmp_path)
    seen: list[tuple[float, int]] = []

    class Watched(Session):
        def advance(self, until: int | None = None) -> bool:
            is_over = super().advance(until)
            gamma = self._spec.to_dict()["agent"]["algorithm"]["gamma"]
            seen.append((gamma, self._loop.clock.updates))
            return is_over

    monkeypatch.setattr("slm_lab.training.session.Session", Watched)
    algorithm = {"name": "SAC", "training_start_step": 100, "training_frequency": 2}
    tree = {
        "agent": {"algorithm": algorithm},
        "env": {"name": "CartPole-v1", "num_envs": 2, "max_frame": 5_000},
        "meta": {"compile": "off", "max_trial": 4, "log_frequency": 20},
        "search": {"agent.algorithm.gamma__uniform": [0.5, 0.7]},
    }
    speed = measure_speed(spec_from_dict(tree, "tiny"), seconds=0.05)
    (gamma, before), (_, after) = seen
    assert gamma == pytest.approx(0.6)
    assert 1 <= before < after
    assert speed.frames_per_second > 0
    assert speed.seconds_to_draw > 0
    assert list(tmp_path.iterdir()) == []
