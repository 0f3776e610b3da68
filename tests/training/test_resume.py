"""Stopped and resumed, a session gives what it would have given in one go, bit for bit."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest

from slm_lab.analysis.tables import read_session
from slm_lab.runs.layout import RunLayout
from slm_lab.spec import Spec
from slm_lab.training.options import RunOptions
from slm_lab.training.session import Session

FRAMES = 320
ALGORITHMS = [
    "Random",
    "REINFORCE",
    "SARSA",
    "A2C",
    "PPO",
    "SIL",
    "PPO-SIL",
    "DQN",
    "DDQN+PER",
    "SAC",
    "CrossQ",
    "TD3",
    "TQC",
]
RECURRENT = ["recurrent PPO", "recurrent DDQN+PER"]
DISCRETE_ONLY = ("SARSA", "DQN", "DDQN+PER")
CONTINUOUS_ONLY = ("TD3", "TQC")

# env -> is discrete
ENVS = {
    "CartPole-v1": True,
    "Pendulum-v1": False,
    "LunarLander-v3": True,
    "HalfCheetah-v5": False,
    "probe/RepeatPrevious-v0": True,
}


def session(spec: Spec, layout: RunLayout, *, resume: bool = False) -> Session:
    return Session(spec, layout, 0, 0, RunOptions(mode="train", resume=resume))


def in_one_go(spec: Spec, folder: Path) -> RunLayout:
    layout = RunLayout.create(spec.name, "whole", folder)
    assert session(spec, layout).run()
    return layout


def in_pieces(spec: Spec, folder: Path, *stops: int) -> RunLayout:
    layout = RunLayout.create(spec.name, "pieces", folder)
    for i, stop in enumerate(stops):
        piece = session(spec, layout, resume=i > 0)
        assert not piece.advance(stop)
        piece.close()
    assert session(spec, layout, resume=True).run()
    return layout


@pytest.mark.parametrize("algorithm", ALGORITHMS + RECURRENT)
def test_a_resumed_session_is_the_uninterrupted_one(tmp_path, algorithm, every_spec, same_run):
    spec = every_spec(algorithm)
    same_run(in_pieces(spec, tmp_path, 146), in_one_go(spec, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        (algorithm, env)
        for algorithm in ALGORITHMS
        for env, is_discrete in ENVS.items()
        if env != "CartPole-v1"
        and algorithm not in (CONTINUOUS_ONLY if is_discrete else DISCRETE_ONLY)
    ],
)
def test_a_resumed_session_is_the_uninterrupted_one_on_other_envs(
    tmp_path, algorithm, env, every_spec, same_run
):
    spec = every_spec(algorithm, env)
    same_run(in_pieces(spec, tmp_path, 74, 190), in_one_go(spec, tmp_path))


@pytest.mark.parametrize("algorithm", ["PPO", "SAC", "REINFORCE"])
def test_statistics_frame_stacks_and_evaluations_go_on_too(
    tmp_path, algorithm, every_spec, same_run
):
    spec = every_spec(
        algorithm,
        env__normalize_obs=True,
        env__normalize_reward=True,
        env__frame_stack=2,
        env__frame_op="concat",
        meta__rigorous_eval=1,
        meta__eval_frequency=100,
    )
    same_run(in_pieces(spec, tmp_path, 30, 146, 148), in_one_go(spec, tmp_path))


def test_a_session_interrupted_after_every_few_frames_is_the_same(tmp_path, every_spec, same_run):
    spec = every_spec("DDQN+PER")
    stops = range(10, FRAMES, 30)
    same_run(in_pieces(spec, tmp_path, *stops), in_one_go(spec, tmp_path))


def test_the_cut_is_nowhere_special(tmp_path, every_spec, same_run):
    """At frame 0, at a row of the curve, right after an update, one step before the end."""
    spec = every_spec("PPO")
    whole = in_one_go(spec, tmp_path)
    for stop in (0, 50, 24, FRAMES - 2):
        same_run(in_pieces(spec, tmp_path / str(stop), stop), whole)


# What cannot be restored


def test_an_env_that_cannot_be_restored_begins_new_episodes_and_joins_nothing(tmp_path, every_spec):
    pytest.importorskip("envpool")
    spec = every_spec("PPO", env__backend="envpool")
    layout = RunLayout.create(spec.name, "pool", tmp_path)
    first = session(spec, layout)
    assert not first.advance(6)  # three steps of two envs
    state = copy.deepcopy(first.state_dict())
    first.close()
    second = session(spec, layout, resume=True)
    resumed = second.state_dict()["experience"]["memory"]
    assert state["experience"]["memory"]["rows"]["truncated"].any().item() is False
    assert resumed["rows"]["truncated"][-1].tolist() == [True, True]
    np.testing.assert_array_equal(resumed["final"]["obs"].numpy(), state["loop"]["obs"])
    assert not np.array_equal(second.state_dict()["loop"]["obs"], state["loop"]["obs"])
    assert second.run()
    frames = read_session(layout.session_csv(0, 0, "train"))["frame"].tolist()
    assert frames == [50, 100, 150, 200, 250, 300, 320]


def test_the_rows_of_a_replay_are_cut_for_good(tmp_path, every_spec):
    """The newest rows were on disk already: a second resume must see the cut too."""
    pytest.importorskip("envpool")
    spec = every_spec("DDQN+PER", env__backend="envpool")
    layout = RunLayout.create(spec.name, "pool", tmp_path)
    for stop in (60, 64, 68, 72):  # 30, 32, 34, 36 rows: the third links to those of the first
        piece = session(spec, layout, resume=stop > 60)
        assert not piece.advance(stop)
        piece.close()
    ring = session(spec, layout, resume=True).state_dict()["experience"]["replay"]["ring"]
    assert ring.columns["ended"][[29, 31, 33, 35]].all()
