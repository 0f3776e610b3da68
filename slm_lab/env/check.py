"""Checks of an env before training, for `slm-lab env check`, and the score of random actions.

Gymnasium's own checker runs first. Then come rollouts through the back-end, bounds, episode
endings, repeatability under a seed and exact resume.
"""

from __future__ import annotations

import math
import re
import statistics
import time
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from slm_lab.env.action_mask import sample_allowed
from slm_lab.env.make import make_env
from slm_lab.env.registry import find_registered, make_gymnasium_env
from slm_lab.env.vector import VectorEnv
from slm_lab.spec.env import EnvSpec
from slm_lab.types import Spaces, on_host

EPISODES, PARALLEL = 100, 10  # of the score of random actions
SHORT_STEPS = 200  # enough to cross a few resets of a short episode, quick even for slow envs


@dataclass(frozen=True)
class EnvReport:
    """Findings on an env. `problems` will hurt training; `notes` are worth knowing."""

    name: str
    backend: str
    num_envs: int
    spaces: Spaces
    frames: int
    frames_per_second: float
    episodes: int
    mean_return: float
    mean_length: float
    restorable: bool
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems

    def format(self) -> str:
        unbounded = "" if self.spaces.action_bounded else ", unbounded"
        means = f", mean return {self.mean_return:.4g}, mean length {self.mean_length:.4g}"
        rows = {
            "env": f"{self.name} x {self.num_envs} ({self.backend})",
            "observation": f"{self.spaces.obs_shape} {self.spaces.obs_dtype}",
            **self._parts(),
            "action": f"{self.spaces.action_type} {self.spaces.action_sizes}{unbounded}",
            "speed": f"{self.frames_per_second:,.0f} frames/s (random actions, no agent)",
            "episodes": f"{self.episodes} in {self.frames} frames{means if self.episodes else ''}",
            "exact resume": "yes" if self.restorable else "no",
        }
        width = max(14, *(len(key) + 2 for key in rows))  # the names of parts may be long
        lines = [f"{key + ':':<{width}}{value}" for key, value in rows.items()]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"problem: {problem}" for problem in self.problems]
        count = len(self.problems)
        lines.append("ok" if self.ok else f"{count} problem{'s' * (count > 1)} found")
        return "\n".join(lines)

    def _parts(self) -> dict[str, str]:
        """What each part of an observation became, and how large a mask of actions is."""
        kinds = {True: "image", False: "vector"}
        rows = {
            f"  {part.name}": f"{kinds[part.is_image]} {part.shape} {part.dtype}"
            for part in self.spaces.parts
        }
        if self.spaces.mask:
            rows["action mask"] = f"{self.spaces.mask} columns, one per action"
        return rows


def check_env(spec: EnvSpec | str, *, frames: int = 10_000, seed: int = 0) -> EnvReport:
    """Try an env by spec or by id. Raises `EnvError` when it cannot be made at all."""
    if isinstance(spec, str):
        spec = EnvSpec.model_validate({"name": spec, "num_envs": 4, "max_frame": frames})
    env = make_env(spec, seed=seed)
    seconds, problems, notes = random_rollout(env, frames)
    played = max(1, frames // env.num_envs) * env.num_envs
    if env.backend in ("gymnasium", "subprocess"):
        found, noted = check_single_env(spec)
        problems += found
        notes += noted
    problems += check_repeatable(spec, seed)
    restorable = env.restorable
    if restorable and not resumes_exactly(spec, seed):
        restorable = False
        problems.append(
            "resume: a saved episode, replayed, gives other observations. Draw all randomness "
            "from `self.np_random`, and let no state survive `reset`."
        )
    env.close()
    return EnvReport(
        name=spec.name,
        backend=env.backend,
        num_envs=env.num_envs,
        spaces=env.spaces,
        frames=played,
        frames_per_second=played / seconds,
        episodes=env.episodes.count,
        mean_return=_mean(env.episodes.returns),
        mean_length=_mean(env.episodes.lengths),
        restorable=restorable,
        problems=tuple(problems),
        notes=tuple(notes),
    )


def random_rollout(env: VectorEnv, frames: int) -> tuple[float, list[str], list[str]]:
    """Play random actions for about `frames` frames and check every observation and reward.

    Returns the seconds spent in `step`, the problems and the notes.
    """
    bad_obs = bad_reward = terminations = endings = 0
    seconds = 0.0
    env.reset()
    steps = max(1, frames // env.num_envs)
    for _ in range(steps):
        action = env.sample_action()
        began = time.perf_counter()
        step = env.step(action)
        seconds += time.perf_counter() - began
        bad_obs += not np.isfinite(on_host(step.next_obs)).all()
        bad_reward += not np.isfinite(step.reward).all()
        terminations += int(step.terminated.sum())
        endings += int(step.episode_end.sum())

    problems, notes = [], []
    if bad_obs:
        problems.append(f"observations: NaN or infinite in {bad_obs} of {steps} steps.")
    if bad_reward:
        problems.append(f"reward: NaN or infinite in {bad_reward} of {steps} steps.")
    if endings == 0:
        problems.append(
            f"episodes: none ended in {steps} steps of {env.num_envs} envs, so there is no return "
            "to report. Set env.max_t to a time limit, or check more frames."
        )
    elif terminations == 0:
        notes.append("episodes: always truncated, never terminated, under random actions.")
    return seconds, problems, notes


def check_single_env(spec: EnvSpec) -> tuple[list[str], list[str]]:
    """Problems and notes of one env object: Gymnasium's errors and warnings, and the bounds."""
    env = make_gymnasium_env(spec, find_registered(spec))
    problems: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            gymnasium_check_env(env.unwrapped, skip_render_check=True)
        except Exception as error:  # it asserts, raises, and lets the env's own errors through
            problems.append(f"gymnasium: {error}")
        problems += check_bounds(env)
    env.close()
    notes = dict.fromkeys(f"gymnasium: {_plain(str(warning.message))}" for warning in caught)
    return problems, list(notes)


def check_bounds(env: gym.Env[Any, Any]) -> list[str]:
    """Observations must lie in the box the env declares; every bad index is listed."""
    box = env.observation_space
    if not isinstance(box, spaces.Box):
        return []
    outside = np.zeros(box.shape, bool)
    env.action_space.seed(0)
    obs, info = env.reset(seed=0)
    for _ in range(SHORT_STEPS):
        outside |= (obs < box.low) | (obs > box.high)
        obs, _, terminated, truncated, info = env.step(sample_allowed(env, info))
        if terminated or truncated:
            # The final observation may leave the box; often the episode ends for that reason.
            obs, info = env.reset()
    where = [tuple(index) for index in np.argwhere(outside).tolist()]
    return [f"observations: outside the bounds of observation_space at {where}."] if where else []


def check_repeatable(spec: EnvSpec, seed: int) -> list[str]:
    """The same seed and the same actions must give the same rollout."""
    if np.array_equal(_trace(make_env(spec, seed=seed)), _trace(make_env(spec, seed=seed))):
        return []
    return [
        "seed: two envs with the same seed and actions diverge. Call "
        "`super().reset(seed=seed)` in `reset`, and draw all randomness from `self.np_random`."
    ]


def resumes_exactly(spec: EnvSpec, seed: int) -> bool:
    """Save in mid-course, load into a new env, and compare what follows."""
    env, resumed = make_env(spec, seed=seed), make_env(spec, seed=seed)
    _trace(env, close=False)
    resumed.load_state_dict(env.state_dict())
    return resumed.restorable and np.array_equal(_trace(env), _trace(resumed))


def _trace(env: VectorEnv, *, close: bool = True) -> np.ndarray:
    """Observations, rewards and endings of the next `SHORT_STEPS` random steps, a row per step."""
    if env.episodes.running_length() == 0 and env.episodes.count == 0:
        env.reset()
    rows = []
    for _ in range(SHORT_STEPS):
        step = env.step(env.sample_action())
        seen = on_host(step.next_obs).ravel(), on_host(step.obs).ravel()
        rows.append(np.concatenate([*seen, step.reward, step.terminated]))
    if close:
        env.close()
    trace: np.ndarray = np.nan_to_num(np.stack(rows))  # NaN, reported elsewhere, equals nothing
    return trace


def _mean(values: Collection[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _plain(message: str) -> str:
    """A warning without terminal colours and Gymnasium's own prefix."""
    return re.sub(r"\x1b\[\d*m", "", message).removeprefix("WARN: ").strip()


@dataclass(frozen=True, slots=True)
class RandomBaseline:
    """Score of a uniformly random policy in an env, from which the strength metrics count."""

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
    deadline = None if seconds is None else time.monotonic() + seconds
    try:
        env.reset()
        while any(len(done) < share for done in returns):
            if deadline is not None and time.monotonic() > deadline:
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
