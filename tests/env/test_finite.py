"""NaN and infinite values of an env are named by env, step and key."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from slm_lab.env.finite import FiniteEnv, NonFiniteError, first_non_finite
from slm_lab.env.make import make_env
from slm_lab.env.space import obs_codec


def test_all_rows_finite_is_none():
    codec = obs_codec(gym.spaces.Box(-1, 1, (2,), np.float32))
    assert first_non_finite(codec, np.zeros((3, 2), np.float32), np.ones(3)) is None


def test_a_sum_that_overflows_is_no_fault():
    codec = obs_codec(gym.spaces.Box(-np.inf, np.inf, (2,), np.float32))
    assert first_non_finite(codec, np.full((3, 2), 3e38, np.float32)) is None


@pytest.mark.parametrize(("value", "shown"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_a_bad_number_is_named_by_its_place(value, shown):
    codec = obs_codec(gym.spaces.Box(-1, 1, (2, 2, 2), np.float32))
    rows = np.zeros((3, 2, 2, 2), np.float32)
    rows[2, 1, 0, 1] = value
    assert first_non_finite(codec, rows) == (2, f"observation[1, 0, 1] = {shown}")
    reward = np.array([0.0, value, 0.0])
    assert first_non_finite(codec, rows, reward) == (1, f"reward = {shown}")


def test_a_part_of_a_dict_is_named_by_its_key_also_beside_images():
    space = gym.spaces.Dict(
        camera=gym.spaces.Box(0, 255, (8, 8, 3), np.uint8),
        joints=gym.spaces.Box(-1, 1, (2,), np.float32),
    )
    codec = obs_codec(space)
    rows = np.zeros((2, *codec.shape), codec.dtype)
    for row, joint in zip(rows, (0.5, np.nan), strict=True):
        joints = np.array([0.0, joint], np.float32)
        codec.write({"camera": np.full((8, 8, 3), 255, np.uint8), "joints": joints}, row)
    assert first_non_finite(codec, rows) == (1, "observation `joints`[1] = nan")


class Nan(gym.Env):
    """Gives NaN at its 7th step, in the middle of its second episode of five steps."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        obs = np.array([0.0, np.nan if self.steps == 7 else 0.0], np.float32)
        return obs, 1.0, self.steps % 5 == 0, False, {}


def test_every_step_of_a_checked_env_is_looked_at(env_spec):
    gym.register("Nan-v0", entry_point=lambda **kwargs: Nan(**kwargs))
    try:
        env = FiniteEnv(make_env(env_spec("Nan-v0", num_envs=2), seed=0), "Nan-v0")
        env.reset()
        for _ in range(6):
            env.step(np.zeros(2, np.int64))
        with pytest.raises(NonFiniteError) as caught:
            env.step(np.zeros(2, np.int64))
    finally:
        gym.registry.pop("Nan-v0")
    assert str(caught.value).startswith(
        "env.name: `Nan-v0` gave observation[1] = nan in env 0, at step 7 of this session. A net"
    )
