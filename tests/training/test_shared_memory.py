"""Whole sessions on MuJoCo Playground in memory that torch and JAX share (`env.dlpack`).

Four envs each, so that one compiled program serves the whole file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from slm_lab.playback.export import export_policy
from slm_lab.playback.saved_agent import load_agent
from slm_lab.runs.find import open_run
from slm_lab.runs.layout import RunLayout
from slm_lab.spec import Spec
from slm_lab.training.loop import play
from slm_lab.training.options import RunOptions
from slm_lab.training.session import Session

pytest.importorskip("mujoco_playground")

# JAX, flax and their kin warn about each other's deprecations while they load and compile.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ENV = {"env__backend": "playground", "env__num_envs": 4, "env__max_t": 25}
ALGORITHMS = [
    "Random",
    "REINFORCE",
    "A2C",
    "PPO",
    "SIL",
    "PPO-SIL",
    "SAC",
    "CrossQ",
    "recurrent PPO",
]


@pytest.fixture
def on_jax(every_spec: Callable[..., Spec]) -> Callable[..., Spec]:
    def make(algorithm: str, *, dlpack: bool, **values: Any) -> Spec:
        values = {**ENV, "env__kwargs": {"dlpack": dlpack}, **values}
        return every_spec(algorithm, "playground/CartpoleBalance", **values)

    return make


def train(spec: Spec, folder: Path, *pauses: int) -> RunLayout:
    """A finished session that was left and taken up again at these frames."""
    layout = RunLayout.create(spec.name, f"{len(pauses)} pauses", folder)
    for i, until in enumerate([*pauses, spec.env.max_frame]):
        options = RunOptions(mode="train", resume=i > 0)
        session = Session(spec, layout, 0, 0, options)
        assert session.advance(until) == (i == len(pauses))
        session.close()
    return layout


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_sharing_memory_changes_no_number(tmp_path, algorithm, on_jax, same_run):
    """Resumed in mid-episode, and in the middle of a rollout, on the way."""
    shared, copied = (on_jax(algorithm, dlpack=dlpack) for dlpack in (True, False))
    same_run(train(shared, tmp_path, 148), train(copied, tmp_path))


def test_nor_does_it_over_many_updates_with_statistics_and_evaluations(tmp_path, on_jax, same_run):
    keys = {
        "env__max_frame": 4000,
        "env__normalize_obs": True,
        "env__normalize_reward": True,
        "meta__rigorous_eval": 1,
        "meta__eval_frequency": 1000,
        "meta__log_frequency": 500,
    }
    shared, copied = (on_jax("PPO", dlpack=dlpack, **keys) for dlpack in (True, False))
    same_run(train(shared, tmp_path, 2020), train(copied, tmp_path))


def test_what_was_trained_so_is_played_and_exported(on_jax, train_folder):
    folder = train_folder(on_jax("PPO", dlpack=True, env__normalize_obs=True))
    agent, env = load_agent(folder, num_envs=4)
    assert isinstance(env.reset(), torch.Tensor)
    assert play(agent, env, 4).lengths == (25, 25, 25, 25)
    assert export_policy(open_run(folder), 0).is_file()  # verified on the way
