"""Training in an env that gives NaN or an infinite reward names env, step and key."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest

from slm_lab.agent.learning.learner import DivergenceError
from slm_lab.api.run import SessionsFailed, run
from slm_lab.spec import load_spec
from slm_lab.spec.load import packaged_file
from slm_lab.training.options import RunOptions

BAD_STEP, BAD_ENV = 37, 1


class Faulty(gym.Env):
    """The second env of a batch gives a bad value at its 37th step. Episodes have 10 steps."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    made = 0

    def __init__(self, fault):
        self.fault, self.number = fault, Faulty.made
        Faulty.made += 1
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action):
        self.steps += 1
        obs, reward = self.np_random.uniform(-1, 1, 3).astype(np.float32), 1.0
        if self.steps == BAD_STEP and self.number == BAD_ENV:
            if self.fault == "obs":
                obs[2] = np.nan
            else:
                reward = np.inf
        return obs, reward, self.steps % 10 == 0, False, {}


@pytest.fixture(autouse=True)
def registered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Faulty, "made", 0)
    gym.register("NotFinite-v0", entry_point=lambda **kwargs: Faulty(**kwargs))
    yield
    gym.registry.pop("NotFinite-v0")


def train(spec_name: str, fault: str, mode: str = "train", *sets: str) -> str:
    """Train until it fails; returns why, without the exception's name."""
    tree = {
        "ppo": ["time_horizon=50", "minibatch_size=50", "training_epoch=1"],
        "sac": ["training_start_step=200", "training_frequency=2"],
        "reinforce": ["training_frequency=12"],
        "dqn": ["training_start_step=200"],
    }
    given = [f"agent.algorithm.{each}" for each in tree[spec_name.split("_")[0]]]
    spec = load_spec(
        str(packaged_file(spec_name)),
        spec_name,
        [
            *given,
            "env.name=NotFinite-v0",
            f"env.kwargs={{fault: {fault}}}",
            "env.num_envs=2",
            "env.max_frame=2000",
            "meta.max_session=1",
            "meta.compile=off",
            "meta.log_frequency=500",
            "meta.random_seed=0",
            *sets,
        ],
    )
    try:
        metrics = run(spec, mode, RunOptions(log_level="ERROR"))
    except SessionsFailed as error:
        return str(error)
    return metrics.failed[0]


@pytest.mark.parametrize("mode", ["train", "dev"])
@pytest.mark.parametrize(
    ("spec_name", "sets"),
    [
        ("ppo_cartpole", ()),
        ("ppo_cartpole", ("env.normalize_obs=true",)),
        ("sac_cartpole", ()),
        ("dqn_boltzmann_cartpole", ()),
    ],
)
def test_an_env_that_gives_nan_is_named_with_env_step_and_key(spec_name, sets, mode):
    reason = train(spec_name, "obs", mode, *sets)
    place = f"in env {BAD_ENV}, at step {BAD_STEP} of this session. A net"
    assert f"env.name: `NotFinite-v0` gave observation[2] = nan {place}" in reason
    assert ("Training diverged by it" in reason) is (mode == "train")
    assert "smaller learning rate" not in reason


@pytest.mark.parametrize("spec_name", ["ppo_cartpole", "sac_cartpole"])
def test_an_infinite_reward_is_named_too(spec_name):
    reason = train(spec_name, "reward")
    assert f"gave reward = inf in env {BAD_ENV}, at step {BAD_STEP} of this session" in reason


def test_episodes_laid_end_to_end_tell_that_it_was_the_env():
    reason = train("reinforce_cartpole", "obs", "train", "agent.memory.name=OnPolicyReplay")
    assert "`NotFinite-v0` gave observation[2] = nan in an episode that ended before, at" in reason


def test_a_divergence_that_is_the_learners_own_keeps_its_advice():
    error = DivergenceError(100, {"loss": math.nan}, {"entropy": 0.5})
    message = str(error)
    error.explain("")
    assert str(error) == message
    assert "Try a smaller learning rate" in message
