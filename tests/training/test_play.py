"""Exactly N episodes, none favoured for being short."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from slm_lab.agent.agent import make_agent
from slm_lab.env.make import make_env
from slm_lab.env.vector import GymnasiumVectorEnv
from slm_lab.spec import spec_from_dict
from slm_lab.training.loop import Episodes, evaluate, play
from tests.lives import LosesLives

RANDOM = {"name": "Random", "algorithm": {"name": "Random"}}


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


def play_in(
    lengths: list[int], episodes: int, *, life: int | None = None, **options: Any
) -> Episodes:
    """With `life` a game loses one every so many steps."""
    tree = {
        "agent": RANDOM,
        "env": {"name": "any", "num_envs": len(lengths), "max_frame": 1},
        "meta": {"log_frequency": 1},
    }
    env: Any = GymnasiumVectorEnv([FixedLength(length) for length in lengths], seed=0)
    if life is not None:
        env = LosesLives(env, life)
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


def test_an_episode_is_a_whole_game_however_many_lives_are_lost_in_it():
    played = play_in([1, 5, 2], 5, life=2)
    assert played.lengths == (1, 5, 2, 1, 5)
    assert played.returns == (1, 25, 4, 1, 25)


@pytest.mark.parametrize(
    "scored", [lambda agent, env: play(agent, env, 2), evaluate], ids=["play", "evaluate"]
)
def test_a_game_of_breakout_scores_the_same_whether_lost_lives_are_told_or_not(scored):
    """The flag is for learning: under the same random actions the game itself does not change."""

    def score(**keys: Any) -> Any:
        env = {"name": "ALE/Breakout-v5", "num_envs": 2, "max_frame": 1, **keys}
        spec = spec_from_dict({"agent": RANDOM, "env": env, "meta": {"log_frequency": 1}}, "random")
        games = make_env(spec.env, seed=0)
        return scored(make_agent(spec, games.spaces, seed=0, learns=False), games)

    assert score(life_loss_info=True) == score()


def test_a_watcher_sees_every_step():
    steps: list[int] = []
    play_in([3], 2, watchers=[lambda: steps.append(1)])
    assert len(steps) == 6
