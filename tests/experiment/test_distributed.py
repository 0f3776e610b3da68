"""Workers that train one set of nets: turns at the shared state, and trials of such workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.learner import State
from slm_lab.agent.make import make_agent
from slm_lab.analysis.tables import read_session
from slm_lab.experiment.distributed import Exchange, SharedAlgorithm
from slm_lab.experiment.layout import RunLayout
from slm_lab.experiment.local_sessions import concurrency
from slm_lab.experiment.options import RunOptions
from slm_lab.experiment.trial import run_sessions
from slm_lab.experiment.workers import SharedNets, shared_nets, worker_spec
from slm_lab.spec import SpecError, load_spec, spec_from_dict
from slm_lab.types import Spaces, Transition

A3C = "benchmark/a3c/a3c_gae_cartpole.yaml"


def small_state(weights: float, *, square: float = 0.0) -> State:
    """A net of three weights with one slot of its optimiser and a counter."""
    return {
        "net": torch.full((3,), weights),
        "net.slot.square": torch.full((3,), square),
        "net.buffer.count": torch.tensor(0),
    }


@pytest.fixture
def meeting(make_spec) -> Iterator[Any]:
    """meeting("synced") -> the shared nets of two workers."""
    opened = []

    def open_one(mode: str) -> SharedNets:
        context = shared_nets(make_spec(meta__distributed=mode, meta__max_session=2))
        opened.append(context)
        shared = context.__enter__()
        assert shared is not None
        return shared

    yield open_one
    for context in opened:
        context.__exit__(None, None, None)


def test_all_workers_start_from_the_nets_of_the_first(meeting):
    shared = meeting("synced")
    first, second = small_state(1.0), small_state(2.0)
    Exchange(shared, first)
    Exchange(shared, second)
    assert second["net"].tolist() == first["net"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("mode", ["synced", "shared"])
def test_what_one_worker_learned_the_next_learns_from(meeting, mode):
    shared = meeting(mode)
    mine, yours = small_state(0.0), small_state(0.0)
    my, your = Exchange(shared, mine), Exchange(shared, yours)
    with my.turn():
        mine["net"] += 1
        mine["net.buffer.count"] += 1
    with your.turn():
        assert yours["net"].tolist() == [1.0, 1.0, 1.0]
        yours["net"] += 2
        yours["net.buffer.count"] += 1
    with my.turn():
        assert mine["net"].tolist() == [3.0, 3.0, 3.0]
        assert mine["net.buffer.count"].item() == 2


def test_synced_workers_wait_for_their_turn(meeting):
    shared = meeting("synced")
    exchange = Exchange(shared, small_state(0.0))
    with exchange.turn():
        assert not shared.lock.acquire(block=False)
    assert shared.lock.acquire(block=False)


def test_a_turn_that_fails_frees_the_nets_and_leaves_them_as_they_were(meeting):
    shared = meeting("synced")
    mine, yours = small_state(0.0), small_state(0.0)
    my, your = Exchange(shared, mine), Exchange(shared, yours)
    with pytest.raises(ZeroDivisionError), my.turn():
        mine["net"] += 1 / 0
    with your.turn():
        assert yours["net"].tolist() == [0.0, 0.0, 0.0]


def test_a_turn_that_never_comes_is_an_error_and_not_a_hanging(meeting, monkeypatch):
    monkeypatch.setattr("slm_lab.experiment.distributed.LONGEST_TURN_SECONDS", 0.01)
    shared = meeting("synced")
    exchange = Exchange(shared, small_state(0.0))
    shared.lock.acquire()  # as a worker that was killed holds it
    with pytest.raises(RuntimeError, match="another worker died"), exchange.turn():
        pass


def test_interleaved_updates_of_shared_weights_both_count(meeting):
    shared = meeting("shared")
    mine, yours = small_state(0.0, square=1.0), small_state(0.0, square=1.0)
    my, your = Exchange(shared, mine), Exchange(shared, yours)
    with my.turn():
        mine["net"] += 1
        mine["net.slot.square"].fill_(0.3)
        with your.turn():
            yours["net"] += 2
            yours["net.slot.square"].fill_(0.2)
    assert mine["net"].tolist() == [3.0, 3.0, 3.0]
    # Added up, the two changes would have made it negative.
    assert mine["net.slot.square"].tolist() == pytest.approx([0.3, 0.3, 0.3])


def test_the_meeting_place_is_gone_afterwards(make_spec):
    with shared_nets(make_spec(meta__distributed="synced", meta__max_session=2)) as shared:
        assert shared is not None
        assert Path(shared.path).exists()
    assert not Path(shared.path).exists()
    for alone in ({}, {"meta__distributed": "synced"}):
        with shared_nets(make_spec(**alone)) as shared:
            assert shared is None


def test_a_worker_has_its_part_of_the_frames_and_whole_schedules():
    spec = load_spec(A3C)
    part = worker_spec(spec.with_values({"env.max_frame": 200_001}))
    assert part.env.max_frame == 100_001
    assert part.agent.net.lr_scheduler_spec == spec.agent.net.lr_scheduler_spec
    tree = {
        "agent": {"algorithm": {"name": "DQN"}},
        "env": {"name": "CartPole-v1", "max_frame": 20_000},
        "meta": {"distributed": "synced", "max_session": 2},
    }
    explored: Any = worker_spec(spec_from_dict(tree)).agent.algorithm
    assert explored.explore_var_spec.end_step == 4000


def test_all_workers_run_at_once_even_on_few_cores(make_spec, monkeypatch):
    monkeypatch.setattr("slm_lab.experiment.local_sessions.available_cores", lambda: 1)
    assert concurrency(make_spec(meta__distributed="shared", meta__max_session=3)) == 3


def test_schedules_count_the_frames_of_all_workers(make_spec, meeting):
    decay = {"name": "linear_decay", "start_val": 1.0, "end_val": 0.0, "end_step": 100}
    spec = make_spec(
        "ActorCritic",
        agent__algorithm__entropy_coef_spec=decay,
        agent__net__optim_spec__lr=0.01,
        agent__net__lr_scheduler_spec={"name": "LinearToZero", "frame": 100},
    )
    agent = make_agent(spec, Spaces((1,), "float32", "discrete", (2,)), seed=0)
    agent.algorithm = SharedAlgorithm(agent.algorithm, meeting("synced"))

    def update(frame: int) -> Mapping[str, float]:
        obs = np.zeros((2, 1), np.float32)
        nothing, never = np.zeros(2, np.float32), np.zeros(2, bool)
        while not agent.ready:
            agent.observe(obs, agent.act(obs), Transition(obs, obs, nothing, never, never, never))
        return agent.update(frame).values

    # 25 frames here and about as many at the other worker: half-way down.
    assert update(25)["entropy_coef"] == pytest.approx(0.5)
    # A learning rate falls from the first update on: 50 of 100 frames since then.
    assert update(50)["lr"] == pytest.approx(0.005)


def test_a_value_scale_of_each_worker_is_refused(make_spec):
    with pytest.raises(SpecError, match="normalize_v_targets"):
        make_spec(agent__algorithm__normalize_v_targets=True, meta__distributed="shared")


@pytest.mark.parametrize("mode", ["synced", "shared"])
@pytest.mark.slow
def test_each_of_two_workers_plays_half_of_the_frames(make_spec, tmp_path, mode):
    spec = make_spec(meta__distributed=mode, meta__max_session=2, env__max_frame=8000)
    layout = RunLayout.create(spec.name, "now", tmp_path)
    end = run_sessions(spec, layout, 0, RunOptions(mode="train"))
    assert end.failed == {}
    frames = [read_session(layout.session_csv(0, s, "train"))["frame"].iloc[-1] for s in (0, 1)]
    assert frames == [4000, 4000]


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.asynchronous
def test_a3c_with_two_workers_solves_cartpole(tmp_path):
    spec = load_spec(A3C).with_values({"meta.random_seed": 1, "meta.compile": "off"})
    layout = RunLayout.create(spec.name, "now", tmp_path)
    assert run_sessions(spec, layout, 0, RunOptions(mode="train")).failed == {}
    for session in (0, 1):
        curve = read_session(layout.session_csv(0, session, "train"))
        assert curve["total_reward"].iloc[-1] > 400  # of the last hundred episodes
