"""The probes give what their docstrings promise."""

import gymnasium as gym
import numpy as np
import pytest

from slm_lab.env import check_env, make_env
from slm_lab.env.probe import PROBES


def episode(env, policy):
    """[(obs, reward)] of one episode, and how it ended."""
    obs, _ = env.reset()
    steps = []
    while True:
        next_obs, reward, terminated, truncated, _ = env.step(policy(obs))
        steps.append((float(obs[0]), reward))
        if terminated or truncated:
            return steps, terminated, truncated
        obs = next_obs


@pytest.fixture
def probe():
    def make(name, **kwargs):
        env = gym.make(f"probe/{name}-v0", **kwargs)
        env.reset(seed=0)
        return env

    return make


@pytest.mark.parametrize("cls", PROBES)
def test_every_probe_is_registered_documented_and_sound(cls):
    report = check_env(f"probe/{cls.__name__}-v0", frames=400)
    assert report.ok, report.format()
    assert report.restorable
    assert cls.__doc__
    assert "Answer" in cls.__doc__


def test_constant_reward(probe):
    assert episode(probe("ConstantReward"), lambda obs: 0) == ([(0.0, 1.0)], True, False)


def test_obs_reward_pays_the_observation(probe):
    env = probe("ObsReward")
    seen = {episode(env, lambda obs: 0)[0][0] for _ in range(30)}
    assert seen == {(1.0, 1.0), (-1.0, -1.0)}


def test_delayed_reward_pays_on_the_second_step(probe):
    assert episode(probe("DelayedReward"), lambda obs: 0)[0] == [(0.0, 0.0), (1.0, 1.0)]


def test_action_matters(probe):
    env = probe("ActionMatters")
    assert [episode(env, lambda obs, a=a: a)[0][0][1] for a in (0, 1)] == [-1, 1]


def test_action_and_obs_pays_the_matching_action(probe):
    env = probe("ActionAndObs")
    assert {episode(env, lambda obs: int(obs[0] > 0))[0][0][1] for _ in range(20)} == {1.0}
    assert {episode(env, lambda obs: int(obs[0] < 0))[0][0][1] for _ in range(20)} == {-1.0}
    assert {episode(env, lambda obs: 1)[0][0][1] for _ in range(20)} == {1.0, -1.0}


def test_continuous_action_is_a_parabola_around_its_target(probe):
    env = probe("ContinuousAction")
    rewards = [episode(env, lambda obs, a=a: np.array([a]))[0][0][1] for a in (-0.5, 0.5, 1.0)]
    assert rewards == [-1.0, 0.0, -0.25]


@pytest.mark.parametrize(
    ("name", "actions"),
    [
        ("MultiDiscreteAction", {(1, 2): 1.0, (1, 0): 0.5, (0, 0): 0.0}),
        ("MultiBinaryAction", {(1, 0): 1.0, (1, 1): 0.5, (0, 1): 0.0}),
    ],
)
def test_each_right_sub_action_pays_a_half(probe, name, actions):
    env = probe(name)
    for action, reward in actions.items():
        assert episode(env, lambda obs, a=action: np.array(a))[0][0][1] == reward


def test_truncated_and_terminated_differ_in_the_ending(probe):
    steps, terminated, truncated = episode(probe("Truncated", length=3), lambda obs: 0)
    assert (steps, terminated, truncated) == ([(0.0, 1.0)] * 3, False, True)
    steps, terminated, truncated = episode(probe("Terminated", length=4), lambda obs: 0)
    assert steps == [(1.0, 1.0), (0.75, 1.0), (0.5, 1.0), (0.25, 1.0)]
    assert (terminated, truncated) == (True, False)


def test_repeat_previous_needs_memory(probe):
    env = probe("RepeatPrevious", length=6)

    class Remembering:
        previous = 0.0

        def __call__(self, obs):
            action, self.previous = int(self.previous > 0), float(obs[0])
            return action

    for _ in range(10):
        assert sum(reward for _, reward in episode(env, Remembering())[0]) == 5
    returns = [sum(r for _, r in episode(env, lambda obs: int(obs[0] > 0))[0]) for _ in range(500)]
    assert abs(np.mean(returns)) < 0.5


def test_recall_first_pays_for_what_was_shown_first(probe):
    env = probe("RecallFirst", length=4)

    class Remembering:
        first = None

        def __call__(self, obs):
            self.first = float(obs[0]) if self.first is None else self.first
            return int(self.first > 0)

    for _ in range(10):
        steps, terminated, _ = episode(env, Remembering())
        assert [reward for _, reward in steps] == [0.0, 0.0, 0.0, 1.0]
        assert abs(steps[0][0]) == 1.0
        assert [obs for obs, _ in steps[1:]] == [0.0, 0.0, 0.0]
        assert terminated
    assert {episode(env, lambda obs: 1)[0][-1][1] for _ in range(20)} == {1.0, -1.0}


def test_probes_take_kwargs_from_the_spec(env_spec):
    env = make_env(env_spec("probe/Truncated-v0", length=2), seed=0)
    env.reset()
    assert [bool(env.step(np.zeros(1, np.int64)).truncated[0]) for _ in range(4)] == [
        False, True, False, True,
    ]  # fmt: skip
