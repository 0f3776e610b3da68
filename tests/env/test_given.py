"""Envs given in Python: what a spec says of them, and that it makes them."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TimeAwareObservation, TransformReward

from slm_lab.env.error import EnvError
from slm_lab.env.given import env_block, give_again
from slm_lab.env.make import make_env
from slm_lab.spec.env import EnvSpec


class Steps(gym.Env[Any, Any]):
    """Pays its number at every step."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, pays: float = 1.0) -> None:
        self.pays = pays

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(3, np.float32), self.pays, False, False, {}


@pytest.fixture(autouse=True)
def clean_registry():
    before = dict(gym.registry)
    yield
    gym.registry.clear()
    gym.registry.update(before)


def rewards(block: dict[str, Any]) -> list[float]:
    env = make_env(EnvSpec(**block, max_frame=1, num_envs=2), seed=0)
    env.reset()
    found: list[float] = env.step(env.sample_action()).reward.tolist()
    env.close()
    return found


def test_a_name_and_a_block_stay_as_they_are():
    assert env_block("CartPole-v1") == {"name": "CartPole-v1"}
    assert env_block({"num_envs": 3}) == {"num_envs": 3}


def test_an_instance_of_a_registered_env_is_its_id_arguments_and_wrappers():
    given = gym.make("Pendulum-v1", g=5.0, max_episode_steps=33, render_mode="rgb_array")
    name = "gymnasium.wrappers.stateful_observation:TimeAwareObservation"
    expected = {"name": "Pendulum-v1", "g": 5.0, "max_t": 33}
    assert env_block(given) == expected
    wrapped = env_block(TimeAwareObservation(given))
    assert wrapped["wrappers"][0]["name"] == name
    assert len(rewards(wrapped)) == 2


@pytest.mark.parametrize(
    ("env", "pays"),
    [
        (Steps(3.0), 3.0),
        (lambda: Steps(4.0), 4.0),
        (functools.partial(Steps, 5.0), 5.0),
        ({"name": lambda pays: Steps(pays), "pays": 6.0}, 6.0),
        (TransformReward(gym.make("CartPole-v1"), lambda reward: 7 * float(reward)), 7.0),
    ],
)
def test_other_objects_are_registered_under_a_name_of_this_process(env, pays):
    if isinstance(env, dict):
        gym.registry.pop("python/Steps", None)
        env = {**env, "name": functools.partial(Steps)}
    block = env_block(env)
    assert block["name"].startswith("python/")
    assert rewards(block) == [pays, pays]


@pytest.fixture
def module(monkeypatch, tmp_path):
    (tmp_path / "given_envs.py").write_text(
        "from os import system\n"
        "from tests.env.test_given import Steps as Base\n"
        "class Mine(Base): pass\n"
        "def make_mine(pays=2.0): return Mine(pays)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import given_envs  # type: ignore[import-not-found]

    yield given_envs
    del sys.modules["given_envs"]


def test_an_instance_is_taken_as_it_is_when_it_is_given():
    given = Steps(2.0)
    block = env_block(given)
    given.pays = 7.0
    assert rewards(block) == [2.0, 2.0]


def test_what_a_module_has_is_named_and_every_process_finds_it(module: ModuleType):
    assert env_block(module.make_mine) == {"name": "given_envs:make_mine"}
    assert env_block(module.Mine) == {"name": "given_envs:Mine"}
    assert rewards({"name": "given_envs:make_mine"}) == [2.0, 2.0]
    assert rewards({"name": "given_envs:make_mine", "pays": 9.0}) == [9.0, 9.0]


def test_a_function_that_a_module_only_imports_makes_no_env(module: ModuleType):
    with pytest.raises(EnvError, match="`system` is not registered"):
        rewards({"name": "given_envs:system", "command": "echo no"})


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (3, "expected a name, a gymnasium.Env, or a function"),
        (int, "expected a name, a gymnasium.Env, or a function"),
        (lambda: 3, "made 3; expected a gymnasium.Env"),
        (gym.make_vec("CartPole-v1", 2), "Give a single env"),
    ],
)
def test_what_is_no_env_is_refused(env, says):
    with pytest.raises(EnvError, match=says):
        env_block(env)


def test_an_instance_that_cannot_be_copied_is_refused_with_the_fix():
    env: Any = Steps()
    env.held = (step for step in [1])
    with pytest.raises(EnvError, match=r"cannot be copied.*Give a function that makes it"):
        env_block(env)


def test_in_another_process_the_message_says_what_to_do_and_giving_it_again_helps():
    with pytest.raises(EnvError, match="existed in that process alone: give it again"):
        rewards({"name": "python/Gone"})
    give_again("python/Gone", lambda: Steps(8.0))
    assert rewards({"name": "python/Gone"}) == [8.0, 8.0]
    with pytest.raises(EnvError, match="Leave env out"):
        give_again("CartPole-v1", Steps)
