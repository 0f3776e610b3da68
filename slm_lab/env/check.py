"""Checks of an env before training, for `slm-lab env check`, and the score of random actions.

One env object is played first, because a batch of faulty ones fails in code that is not theirs.
Then come Gymnasium's own checker, bounds, a rollout through the back-end, repeatability under a
seed and exact resume. After a time limit the report says what was not checked.
"""

from __future__ import annotations

import math
import re
import signal
import statistics
import threading
import time
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from slm_lab.env.action_mask import sample_allowed
from slm_lab.env.api_check import ApiCheck, ApiProblem, where_raised
from slm_lab.env.error import EnvError
from slm_lab.env.finite import FIX, first_non_finite
from slm_lab.env.make import choose_backend, make_env
from slm_lab.env.registry import find_registered, make_gymnasium_env
from slm_lab.env.vector import VectorEnv
from slm_lab.error import LabError
from slm_lab.spec.env import EnvSpec
from slm_lab.types import Spaces, on_host

EPISODES, PARALLEL = 100, 10  # of the score of random actions
FIRST_STEPS = 20
SHORT_STEPS = 200  # enough to cross a few resets of a short episode, quick even for slow envs


@dataclass(frozen=True)
class EnvReport:
    """Findings on an env. `problems` will hurt training; `notes` are worth knowing. An env that
    cannot be played has no spaces, and no numbers."""

    name: str
    backend: str
    num_envs: int
    spaces: Spaces | None = None
    frames: int = 0
    frames_per_second: float = 0.0
    episodes: int = 0
    mean_return: float = math.nan
    mean_length: float = math.nan
    restorable: bool | None = None
    is_cut: bool = False  # by the time limit
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems

    def format(self) -> str:
        rows = {"env": f"{self.name} x {self.num_envs} ({self.backend})", **self._spaces()}
        if self.frames:
            means = f", mean return {self.mean_return:.4g}, mean length {self.mean_length:.4g}"
            rows["speed"] = f"{self.frames_per_second:,.0f} frames/s (random actions, no agent)"
            shown = means if self.episodes else ""
            rows["episodes"] = f"{self.episodes} in {self.frames} frames{shown}"
        if self.restorable is not None:
            rows["exact resume"] = "yes" if self.restorable else "no"
        width = max(14, *(len(key) + 2 for key in rows))  # the names of parts may be long
        lines = [f"{key + ':':<{width}}{value}" for key, value in rows.items()]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"problem: {problem}" for problem in self.problems]
        count = len(self.problems)
        so_far = ", as far as it was checked" * self.is_cut
        lines.append(f"ok{so_far}" if self.ok else f"{count} problem{'s' * (count > 1)} found")
        return "\n".join(lines)

    def _spaces(self) -> dict[str, str]:
        """What each part of an observation became, and how large a mask of actions is."""
        if self.spaces is None:
            return {}
        unbounded = "" if self.spaces.action_bounded else ", unbounded"
        kinds = {True: "image", False: "vector"}
        rows = {"observation": f"{self.spaces.obs_shape} {self.spaces.obs_dtype}"}
        rows |= {
            f"  {part.name}": f"{kinds[part.is_image]} {part.shape} {part.dtype}"
            for part in self.spaces.parts
        }
        if self.spaces.mask:
            rows["action mask"] = f"{self.spaces.mask} columns, one per action"
        rows["action"] = f"{self.spaces.action_type} {self.spaces.action_sizes}{unbounded}"
        return rows


class TimeUp(BaseException):
    """The time of a check is over. No `except Exception` of an env catches it."""


def check_env(
    spec: EnvSpec | str, *, frames: int = 10_000, seed: int = 0, seconds: float | None = None
) -> EnvReport:
    """Try an env by spec or by id, for `seconds` at most; a rollout takes a third of them.

    Raises `EnvError` when it cannot be made at all.
    """
    if isinstance(spec, str):
        spec = EnvSpec.model_validate({"name": spec, "num_envs": 4, "max_frame": frames})
    check = _Check(spec, frames, seed, math.inf if seconds is None else seconds)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with time_limit(seconds):
                check.run()
        except TimeUp:
            check.cut_short()
        finally:
            check.close()
    told = (_plain(str(warning.message)) for warning in caught)
    check.notes = once_of_a_kind([*check.notes, *told])
    return check.report()


class _Check:
    """A check under way: what has been found, and what is being done."""

    def __init__(self, spec: EnvSpec, frames: int, seed: int, seconds: float) -> None:
        self.spec, self._frames, self._seed, self._seconds = spec, frames, seed, seconds
        self._until = time.monotonic() + seconds
        self._backend = choose_backend(spec)
        self._env: VectorEnv | None = None
        self._api: ApiCheck | None = None
        self._facts: dict[str, Any] = {}
        self._steps, self._is_cut = 0, False
        self._problems: list[str] = []
        self.notes: list[str] = []
        self._left = ["the API", "bounds", "a rollout", "seed", "resume"]

    def run(self) -> None:
        try:
            if self._backend in ("gymnasium", "subprocess") and not self._check_one():
                return
            self._left = self._left[-3:]
            self._check_batch()
        except LabError:
            raise
        except Exception as error:
            self._problems.append(f"env: raised {where_raised(error)}. Mend it there.")

    def _check_one(self) -> bool:
        """Play one env object; returns whether it can be played at all."""
        registered = find_registered(self.spec)
        try:
            env = make_gymnasium_env(self.spec, registered)
        except LabError:
            raise
        except Exception as error:
            raise EnvError(
                f"env.name: `{self.spec.name}` cannot be made: it raised {where_raised(error)}. "
                "Mend it there, or give what it needs as env.kwargs."
            ) from error
        try:
            until = time.monotonic() + self._seconds / 4
            # Wrappers fail in code of their own, so the env without them comes first.
            for layer, steps in ((env.unwrapped, FIRST_STEPS), (env, SHORT_STEPS)):
                api = self._api = ApiCheck(layer)
                api.play(steps, until)
                self._steps += api.steps
            self.notes += api.notes
            self._api = None
            self._left.pop(0)
            found, noted = check_single_env(env, time.monotonic() + self._seconds / 4)
            self._problems += found
            self.notes += noted
        except ApiProblem as problem:
            self._problems.append(str(problem))
            self._api = None
            return False
        finally:
            env.close()
        return True

    def _check_batch(self) -> None:
        env = self._env = make_env(self.spec, seed=self._seed)
        until = time.monotonic() + self._seconds / 3
        self._facts["spaces"] = env.spaces
        seconds, played, problems, notes = random_rollout(env, self._frames, until)
        self._left.pop(0)
        self._problems += problems
        self.notes += notes
        restorable = env.restorable
        self._facts |= {
            "frames": played,
            "frames_per_second": played / seconds,
            "episodes": env.episodes.count,
            "mean_return": _mean(env.episodes.returns),
            "mean_length": _mean(env.episodes.lengths),
        }
        if 10 * SHORT_STEPS * env.num_envs * seconds / played > self._until - time.monotonic():
            raise TimeUp
        self._problems += check_repeatable(self.spec, self._seed)
        self._left.pop(0)
        if restorable and not resumes_exactly(self.spec, self._seed):
            restorable = False
            self._problems.append(
                "resume: a saved episode, replayed, gives other observations. Draw all randomness "
                "from `self.np_random`, and let no state survive `reset`."
            )
        self._facts["restorable"] = restorable

    def cut_short(self) -> None:
        """The time is over: a call that never returned is a problem, too little time is none."""
        if self._api is not None:
            taken = time.monotonic() - self._api.since
            if taken > self._seconds / 3:
                self._problems.append(
                    f"{self._api.doing}: had not returned after {taken:.1f} s. Give it more with "
                    "--seconds, or make it faster: load and compile in `__init__`."
                )
                return
        steps = self._steps + self._facts.get("frames", 0)
        left = ", ".join(self._left)
        self.notes.append(
            f"time: stopped after {self._seconds:g} s, in which it took {steps} steps; not "
            f"checked: {left}. --seconds gives more."
        )
        self._is_cut = True

    def close(self) -> None:
        if self._env is not None:
            with suppress(Exception):  # it was interrupted, perhaps within a step
                self._env.close()

    def report(self) -> EnvReport:
        return EnvReport(
            self.spec.name,
            self._backend,
            self.spec.num_envs,
            is_cut=self._is_cut,
            problems=tuple(self._problems),
            notes=tuple(self.notes),
            **self._facts,
        )


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise TimeUp here when the time is over, also within a call that sleeps or computes in
    Python; without a limit, outside the main thread and on Windows, never."""
    is_main = threading.current_thread() is threading.main_thread()
    if seconds is None or not is_main or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(_signum: int, _frame: object) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def random_rollout(
    env: VectorEnv, frames: int, until: float = math.inf
) -> tuple[float, int, list[str], list[str]]:
    """Play random actions for about `frames` frames and check every observation and reward.

    It ends early at the time `until`. Returns the seconds spent in `step`, the frames played, the
    problems and the notes.
    """
    bad: dict[str, list[str]] = {"observations": [], "reward": []}
    terminations = endings = 0
    seconds = 0.0
    env.reset()
    for number in range(1, max(1, frames // env.num_envs) + 1):
        action = env.sample_action()
        began = time.perf_counter()
        step = env.step(action)
        seconds += time.perf_counter() - began
        for name, given in (
            ("observations", {"obs": step.next_obs}),
            ("reward", {"reward": step.reward}),
        ):
            if (found := first_non_finite(env.codecs.obs, **given)) is not None:
                bad[name].append(f"{found[1]} in env {found[0]} at step {number}")
        terminations += int(step.terminated.sum())
        endings += int(step.episode_end.sum())
        if time.monotonic() > until:
            break

    problems, notes = [], []
    for name, places in bad.items():
        if places:
            where = f"in {len(places)} of {number} steps, first {places[0]}"
            problems.append(f"{name}: NaN or infinite {where}. {FIX}")
    if endings == 0:
        problems.append(
            f"episodes: none ended in {number} steps of {env.num_envs} envs, so there is no return "
            "to report. Set env.max_t to a time limit, or check more frames."
        )
    elif terminations == 0:
        notes.append("episodes: always truncated, never terminated, under random actions.")
    return seconds, number * env.num_envs, problems, notes


def check_single_env(
    env: gym.Env[Any, Any], until: float = math.inf
) -> tuple[list[str], list[str]]:
    """Problems and notes of one env object: Gymnasium's errors and warnings, and the bounds."""
    problems: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            gymnasium_check_env(env.unwrapped, skip_render_check=True)
        except Exception as error:  # it asserts, raises, and lets the env's own errors through
            problems.append(f"gymnasium: {_plain(str(error))}{_wrong_type(env.unwrapped)}")
        problems += check_bounds(env, until)
    return problems, once_of_a_kind(f"gymnasium: {_plain(str(each.message))}" for each in caught)


def _wrong_type(env: gym.Env[Any, Any]) -> str:
    """Why Gymnasium finds an observation outside of its box where every number is inside."""
    with suppress(Exception):  # of the env's own code, which another problem tells
        box, obs = env.observation_space, np.asarray(env.reset(seed=0)[0])
        if isinstance(box, spaces.Box) and not np.can_cast(obs.dtype, box.dtype):
            return f" It is {obs.dtype}: return np.array(..., np.{box.dtype}), as the space says."
    return ""


def once_of_a_kind(texts: Iterable[str]) -> list[str]:
    """The first of those texts that differ in numbers and names of methods alone."""
    kinds: dict[str, str] = {}
    for text in texts:
        kind = re.sub(r"`[^`]*`|-?\d[\d.e+-]*", "#", text).removeprefix("gymnasium: ")
        kinds.setdefault(kind, text)
    return list(kinds.values())


def check_bounds(env: gym.Env[Any, Any], until: float = math.inf) -> list[str]:
    """Observations must lie in the box the env declares; every bad index is listed."""
    box = env.observation_space
    if not isinstance(box, spaces.Box):
        return []
    outside = np.zeros(box.shape, bool)
    env.action_space.seed(0)
    obs, info = env.reset(seed=0)
    for _ in range(SHORT_STEPS):
        if time.monotonic() > until:
            break
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
    """A warning in one line, without terminal colours and Gymnasium's own prefix."""
    return " ".join(re.sub(r"\x1b\[\d*m", "", message).removeprefix("WARN: ").split())


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
