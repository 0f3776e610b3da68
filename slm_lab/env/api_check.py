"""Play with one env object and say in a line each what breaks Gymnasium's API, and how to mend it.

Nothing else looks at the env before: a wrapper or a batch would fail in code that is not its own.
"""

from __future__ import annotations

import math
import numbers
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from slm_lab.env.action_mask import sample_allowed

SLOW_RESET = 0.5  # seconds; a reset holds up the whole batch
RESET_API = "Write `def reset(self, *, seed=None, options=None)`, which returns `obs, info`."
STEP_API = "Return `obs, reward, terminated, truncated, info`"


class ApiProblem(Exception):
    """A fault with which an env cannot be played; the message is a line with the fix."""


class ApiCheck:
    """Plays an env; `doing` and `since` say which call is under way, if it never returns."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self._env = env
        self.notes: list[str] = []
        self.steps = 0
        self.doing, self.since = "making it", time.monotonic()

    def play(self, steps: int, until: float = math.inf) -> None:
        """Play until the time `until` at most; raises an ApiProblem."""
        for name in ("observation_space", "action_space"):
            space = getattr(self._env, name, None)
            if not isinstance(space, spaces.Space):
                raise ApiProblem(
                    f"{name}: found {_kind(space)}; expected one of gymnasium.spaces. Set it in "
                    "`__init__`."
                )
        self._env.action_space.seed(0)
        info, seconds = self._reset(seed=0), [time.monotonic() - self.since]
        for step in range(1, steps + 1):
            if time.monotonic() > until:
                break
            self.steps = step
            if self._step(step, info):
                info = self._reset()
                seconds.append(time.monotonic() - self.since)
        mean = sum(seconds) / len(seconds)
        if mean > SLOW_RESET:
            self.notes.append(
                f"reset: takes {mean:.1f} s, for which the other envs of the batch wait. Load and "
                "compile in `__init__`, or set env.backend to subprocess."
            )

    def _reset(self, **seed: Any) -> dict[str, Any]:
        result = self._call("reset", lambda: self._env.reset(**seed))
        is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        if not is_pair:
            raise ApiProblem(
                f"reset: gives {_kind(result)}, as in the old gym; expected (observation, info). "
                f"{RESET_API}"
            )
        self._look_at(result[0], "reset")
        info: dict[str, Any] = result[1]
        return info

    def _step(self, number: int, info: dict[str, Any]) -> bool:
        """Whether the episode ended."""
        action = sample_allowed(self._env, info)
        result = self._call(f"step {number}", lambda: self._env.step(action))
        if not isinstance(result, tuple) or len(result) != 5:
            raise ApiProblem(
                f"step: gives {_kind(result)}; expected 5 values. {STEP_API}: `terminated` where "
                "the task ended, `truncated` where a time limit cut it, which were `done` in the "
                "old gym."
            )
        obs, reward, terminated, truncated, given = result
        self._look_at(obs, f"step {number}")
        is_number = isinstance(reward, numbers.Real | np.number) or np.shape(reward) == ()
        if not is_number or isinstance(reward, str) or reward is None:
            raise ApiProblem(f"reward: step gives {_kind(reward)}; expected a number. {STEP_API}.")
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, bool | np.bool_ | int):
                raise ApiProblem(f"{name}: step gives {_kind(value)}; expected True or False.")
        info.clear()
        info.update(given if isinstance(given, dict) else {})
        return bool(terminated or truncated)

    def _call(self, name: str, call: Callable[[], Any]) -> Any:
        self.doing, self.since = name, time.monotonic()
        try:
            return call()
        except Exception as error:
            if isinstance(error, TypeError) and "seed" in str(error):
                raise ApiProblem(f"reset: takes no seed ({error}). {RESET_API}") from error
            raise ApiProblem(f"{name}: raised {where_raised(error)}. Mend it there.") from error

    def _look_at(self, obs: Any, name: str) -> None:
        for fault in _misfits(self._env.observation_space, obs, "observation"):
            raise ApiProblem(f"{name}: {fault} Change one of the two.")


def _misfits(space: spaces.Space[Any], obs: Any, key: str) -> Iterator[str]:
    """Where an observation has another form than its space; its values are checked elsewhere."""
    if isinstance(space, spaces.Dict):
        found = obs if isinstance(obs, dict) else None
        if found is None or space.keys() - found.keys():
            lacks = "is " + _kind(obs) if found is None else f"lacks {space.keys() - found.keys()}"
            yield f"{key} {lacks}; observation_space is a Dict of {', '.join(space.keys())}."
            return
        for name, part in space.items():
            yield from _misfits(part, found[name], f"{key} `{name}`")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(obs, tuple | list) or len(obs) != len(space.spaces):
            yield f"{key} is {_kind(obs)}; observation_space is a Tuple of {len(space.spaces)}."
            return
        for index, part in enumerate(space.spaces):
            yield from _misfits(part, obs[index], f"{key}[{index}]")
    elif space.shape is not None:
        try:
            array = np.asarray(obs)
        except ValueError:  # lists of several lengths
            array = np.empty((), object)
        if array.dtype.kind not in "biuf":
            yield f"{key} is {_kind(obs)}, no array of numbers; observation_space is {space}."
        elif array.shape != space.shape:
            yield f"{key} has the shape {array.shape}, observation_space says {space.shape}."


def _kind(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return f"`{value!r:.40}` ({type(value).__name__})"


def where_raised(error: BaseException) -> str:
    """`KeyError: 'x' (my_env.py:12)`: the innermost line that is not of a library."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not {"site-packages", "slm_lab"} & {*Path(f.filename).parts}]
    place = (own or list(frames))[-1:]
    at = f" ({Path(place[0].filename).name}:{place[0].lineno})" if place else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ") + at
