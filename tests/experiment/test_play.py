"""Exactly N episodes, none favoured for being short."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from slm_lab.agent.make import make_agent
from slm_lab.env.vector import GymnasiumVectorEnv
from slm_lab.experiment.play import Episodes, play
from slm_lab.spec import spec_from_dict


class FixedLength(gym.Env[np.ndarray, Any]):
    """Episodes of one length, each step worth that much; odd lengths terminate, even truncate."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int) -> None:
        self.length, self.elapsed = length, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.elapsed = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.elapsed += 1
        ends, is_odd = self.elapsed == self.length, self.length % 2 == 1
        return np.zeros(1, np.float32), self.length, ends and is_odd, ends and not is_odd, {}


def play_in(lengths: list[int], episodes: int, **options: Any) -> Episodes:
    tree = {
        "agent": {"name": "Random", "algorithm": {"name": "Random"}},
        "env": {"name": "any", "num_envs": len(lengths), "max_frame": 1},
        "meta": {"log_frequency": 1},
    }
    env = GymnasiumVectorEnv([FixedLength(length) for length in lengths], seed=0)
    agent = make_agent(spec_from_dict(tree, "random"), env.spaces, seed=0, learns=False)
    return play(agent, env, episodes, **options)


@pytest.mark.parametrize("episodes", [3, 4, 5, 9])
def test_every_env_plays_its_share_however_long_its_episodes_are(episodes):
    played = play_in([1, 5, 2], episodes)
    # In turn: env 0, 1, 2, 0, 1, ... A return is length x reward = length squared.
    assert list(played.lengths) == ([1, 5, 2] * 3)[:episodes]
    assert list(played.returns) == ([1, 25, 4] * 3)[:episodes]


def test_of_more_envs_than_episodes_the_first_play_one_each():
    assert play_in([4, 3, 1, 1], 2).lengths == (4, 3)


def test_a_watcher_sees_every_step():
    steps: list[int] = []
    play_in([3], 2, after_step=lambda: steps.append(1))
    assert len(steps) == 6
