"""Masks that envs offer become the last columns of their rows."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from loguru import logger

from slm_lab.env.action_mask import mask_method
from slm_lab.env.check import check_env, measure_random_policy
from slm_lab.env.error import EnvError
from slm_lab.env.make import make_env
from slm_lab.env.vector import GymnasiumVectorEnv
from slm_lab.spec.env import EnvSpec
from tests import masks
from tests.masks import CHOICES, LENGTH, MINES, WIDTH, Choices, Mines


@pytest.fixture(autouse=True)
def _envs():
    with masks.registered():
        yield


def env_spec(name=MINES, **keys):
    return EnvSpec.model_validate({"name": name, "num_envs": 3, "max_frame": 100, **keys})


class Counting(Mines):
    """Counts resets; what it shows depends on that count, not on a seed."""

    def __init__(self, source="none"):
        super().__init__(source)
        self.resets = 0

    def reset(self, **options):
        self.resets += 1
        return super().reset(**options)


@pytest.mark.parametrize("source", ["info", "method", "dict"])
def test_the_mask_of_each_source_comes_last(source):
    env: Any = make_env(env_spec(source=source), seed=0)
    assert env.spaces.mask == WIDTH
    assert env.spaces.obs_shape == (2 * WIDTH,)
    rows = env.reset().copy()
    for slot, single in enumerate(env._envs):
        np.testing.assert_array_equal(rows[slot, :WIDTH], single.unwrapped.numbers)
        np.testing.assert_array_equal(rows[slot, WIDTH:], single.unwrapped.allowed)
    step = env.step(env.sample_action())
    for slot, single in enumerate(env._envs):
        np.testing.assert_array_equal(step.obs[slot, WIDTH:], single.unwrapped.allowed)


def test_all_sources_tell_the_same():
    rows = []
    for source in ("info", "method", "dict"):
        env: Any = make_env(env_spec(source=source), seed=0)
        env.reset()
        rows.append([env.step(env.sample_action()).obs.copy() for _ in range(20)])
    np.testing.assert_array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(rows[0], rows[2])


def test_a_state_without_a_mask_allows_everything():
    env = make_env(env_spec(mixed=True), seed=0)
    env.reset()
    step = env.step(env.sample_action())
    np.testing.assert_array_equal(step.obs[:, WIDTH:], np.ones((3, WIDTH)))


def test_turned_off_the_env_is_played_as_if_it_had_no_mask():
    env = make_env(env_spec(action_mask=False), seed=0)
    assert (env.spaces.mask, env.spaces.obs_shape) == (0, (WIDTH,))
    parts = make_env(env_spec(source="dict", action_mask=False), seed=0)
    assert (parts.spaces.mask, parts.spaces.obs_shape) == (0, (2 * WIDTH,))


def test_an_env_without_a_mask_is_reset_no_more_often_than_before():
    single = Counting()
    env = GymnasiumVectorEnv([single], seed=0)
    first = env.reset().copy()
    assert single.resets == 1
    without = Counting()
    blind = GymnasiumVectorEnv([without], seed=0, action_mask=False)
    np.testing.assert_array_equal(blind.reset(), first)


@pytest.mark.parametrize("name", [MINES, CHOICES])
def test_random_actions_are_among_the_allowed_ones(name):
    baseline = measure_random_policy(env_spec(name), episodes=20)
    assert baseline is not None
    if name == CHOICES:
        assert baseline.mean == LENGTH
    assert baseline.mean > 0  # a single mine costs five


def test_random_actions_reach_every_allowed_one():
    env = make_env(env_spec(CHOICES), seed=0)
    env.reset()
    seen = {tuple(row) for _ in range(200) for row in _sample_and_step(env)}
    assert len(seen) == 6


def _sample_and_step(env):
    action = env.sample_action()
    env.step(action)
    return action.tolist()


@pytest.mark.parametrize("source", ["info", "method", "dict"])
def test_running_episodes_are_resumed_with_their_masks(source):
    env = make_env(env_spec(source=source), seed=0)
    env.reset()
    for _ in range(8):
        env.step(env.sample_action())
    resumed = make_env(env_spec(source=source), seed=0)
    resumed.load_state_dict(env.state_dict())
    assert resumed.restorable
    for _ in range(8):
        np.testing.assert_array_equal(
            env.step(env.sample_action()).obs, resumed.step(resumed.sample_action()).obs
        )


def test_masks_of_sub_actions_may_be_arrays_of_their_own():
    class Apart(Choices):
        def info(self):
            return {"action_mask": (self.allowed[:2], self.allowed[2:])}

    single = Apart()
    env = GymnasiumVectorEnv([single], seed=0)
    np.testing.assert_array_equal(env.reset()[0, WIDTH:], single.allowed)


def test_a_mask_of_another_size_is_refused_by_key():
    class Short(Mines):
        def info(self):
            return {"action_mask": self.allowed[:2]}

    env = GymnasiumVectorEnv([Short()], seed=0)
    with pytest.raises(EnvError, match=r"env.action_mask: .* 2 entries, expected 4"):
        env.reset()


@pytest.mark.parametrize("source", ["info", "method", "dict"])
@pytest.mark.parametrize(
    ("actions", "says"),
    [
        (spaces.Box(-1, 1, (2,), np.float32), "its actions are Box(-1.0, 1.0, (2,), float32)."),
        (spaces.MultiBinary(3), "MultiBinary(3). MultiDiscrete of twos says the same"),
    ],
)
def test_a_mask_that_the_actions_cannot_have_is_one_warning(source, actions, says):
    class Wheel(Mines):
        def __init__(self):
            super().__init__(source)
            self.action_space = actions

    lines: list[Any] = []
    sink = logger.add(lines.append, level="WARNING")
    env = GymnasiumVectorEnv([Wheel(), Wheel()], seed=0)
    logger.remove(sink)
    assert env.spaces.mask == 0
    (message,) = [line.record["message"] for line in lines]
    assert message.startswith("env.action_mask: ")
    assert says in message


def test_env_check_tells_of_the_mask():
    report = check_env(env_spec(source="dict"), frames=300)
    assert report.ok
    assert "action mask:  4 columns" in report.format()
    report = check_env(env_spec(), frames=300)
    assert "  observation: vector (4,) float32" in report.format()


def test_a_method_that_wants_arguments_is_no_source():
    class Taxi(Mines):
        def action_mask(self, state):
            return self.allowed

    assert mask_method(Taxi("none")) is None
    assert mask_method(gym.Wrapper(Mines("method"))) is not None
