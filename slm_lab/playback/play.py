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
    after_step: Callable[[], None] | None = None,
) -> Episodes:
    """Play exactly `episodes`, from a fresh reset.

    The number of episodes per env is fixed before the first step: counting whichever episodes end
    first would favour short ones. With `explore`, actions are drawn as at the end of training.
    """
    slots = range(env.num_envs)
    shares = [len(range(slot, episodes, env.num_envs)) for slot in slots]
    returns: list[list[float]] = [[] for _ in slots]
    lengths: list[list[int]] = [[] for _ in slots]
    running, steps = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)
    obs = env.reset()
    recurrent_state = agent.initial_recurrent_state(env.num_envs)
    unfinished = episodes
    while unfinished:
        action = agent.act(
            obs, frame=AFTER_TRAINING, explore=explore, recurrent_state=recurrent_state
        )
        transition = env.step(agent.env_action(action))
        agent.advance(recurrent_state, transition)
        obs = transition.obs
        running += transition.reward
        steps += 1
        for slot in np.flatnonzero(transition.episode_end):
            if len(returns[slot]) < shares[slot]:
                returns[slot].append(float(running[slot]))
                lengths[slot].append(int(steps[slot]))
                unfinished -= 1
            running[slot] = steps[slot] = 0
        if after_step is not None:
            after_step()
    order = [(number % env.num_envs, number // env.num_envs) for number in range(episodes)]
    return Episodes(
        tuple(returns[slot][turn] for slot, turn in order),
        tuple(lengths[slot][turn] for slot, turn in order),
    )
