"""Score of a uniformly random policy in an env, from which the strength metrics count."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from time import monotonic

from slm_lab.env.make import make_env
from slm_lab.spec.env import EnvSpec

EPISODES = 100
PARALLEL = 10


@dataclass(frozen=True, slots=True)
class RandomBaseline:
    mean: float
    std: float
    episodes: int


def measure_random_policy(
    spec: EnvSpec, *, episodes: int = EPISODES, seconds: float | None = None, seed: int = 0
) -> RandomBaseline | None:
    """Mean raw return of `episodes` episodes with uniform actions.

    Each of a few envs plays its share of episodes to the end, because counting the episodes that
    end first would favour short ones. None when an env finishes no episode within `seconds`.
    """
    parallel = min(PARALLEL, episodes)
    share = -(-episodes // parallel)
    env = make_env(spec.model_copy(update={"num_envs": parallel}), seed=seed)
    returns: list[list[float]] = [[] for _ in range(parallel)]
    running = [0.0] * parallel
    deadline = None if seconds is None else monotonic() + seconds
    try:
        env.reset()
        while any(len(done) < share for done in returns):
            if deadline is not None and monotonic() > deadline:
                if not all(returns):
                    return None
                break
            step = env.step(env.sample_action())
            for slot in range(parallel):
                running[slot] += float(step.reward[slot])
                if step.episode_end[slot]:
                    returns[slot].append(running[slot])
                    running[slot] = 0.0
    finally:
        env.close()
    counted = [value for done in returns for value in done[:share]]
    return RandomBaseline(statistics.fmean(counted), statistics.pstdev(counted), len(counted))
