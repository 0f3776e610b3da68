"""Play whole episodes with an agent that acts and does not learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from slm_lab.agent.agent import Agent
from slm_lab.env.vector import VectorEnv

PARALLEL = 16  # envs at once: acting costs about the same for a few rows as for one
AFTER_TRAINING = 2**62  # a frame at which every schedule, such as that of epsilon, has ended


@dataclass(frozen=True, slots=True)
class Episodes:
    """Raw returns and lengths in steps, one of each per episode."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]


def play(
    agent: Agent,
    env: VectorEnv,
    episodes: int,
    *,
    explore: bool = False,
    after_step: Callable[[], None] = lambda: None,
) -> Episodes:
    """Play exactly `episodes`, from a fresh reset.

    Env 0 plays episodes 0, num_envs, ...: which env plays how many is fixed before the first step,
    as counting whichever end first would favour short ones. With `explore`, actions are drawn as
    at the end of training.
    """
    returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    number = np.arange(env.num_envs)  # of the episode that each env plays
    running, steps = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)
    obs = env.reset()
    recurrent_state = agent.initial_recurrent_state(env.num_envs)  # apart from that of training
    while number.min() < episodes:
        action = agent.act(
            obs, frame=AFTER_TRAINING, explore=explore, recurrent_state=recurrent_state
        )
        transition = env.step(agent.env_action(action))
        agent.advance(recurrent_state, transition)
        obs = transition.obs
        running += transition.reward
        steps += 1
        for slot in np.flatnonzero(transition.episode_end):
            if number[slot] < episodes:
                returns[number[slot]], lengths[number[slot]] = running[slot], steps[slot]
            number[slot] += env.num_envs
            running[slot] = steps[slot] = 0
        after_step()
    return Episodes(tuple(returns.tolist()), tuple(lengths.tolist()))


def evaluate(agent: Agent, env: VectorEnv) -> float:
    """Mean return of one episode per env, acting greedily."""
    return float(np.mean(play(agent, env, env.num_envs).returns))
