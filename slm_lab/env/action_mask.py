"""Action masks that single envs offer: which actions are allowed in the present state.

A mask has one entry per action, not zero where the action is allowed; for MultiDiscrete actions
those of all sub-actions, one after the other or each in an array of its own. It comes from

    a key `action_mask` of a Dict observation, or
    a method `action_masks()` or `action_mask()` of the env or a wrapper, or
    `info["action_mask"]` of `reset` and `step`

in this order. Where the env gives none, or allows no action, all are allowed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from loguru import logger

from slm_lab.env.space import ACTION_MASK, MaskCodec, action_codec

METHODS = ("action_masks", "action_mask")
Env = gym.Env[Any, Any]
Reset = tuple[Any, dict[str, Any]]


def mask_size(space: spaces.Space[Any]) -> int:
    """Entries of a mask of the actions of a space; 0 if it cannot have one."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return int(space.nvec.sum())
    return 0


class MaskedObs(gym.Wrapper[Any, Any, Any, Any]):
    """Observes the mask of an env, under the key `action_mask`, beside what the env shows."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        seen, mask = env.observation_space, spaces.MultiBinary(mask_size(env.action_space))
        self._is_dict = isinstance(seen, spaces.Dict)
        parts = dict(seen.items()) if isinstance(seen, spaces.Dict) else {"observation": seen}
        self.observation_space = spaces.Dict(parts | {ACTION_MASK: mask})
        self._method = mask_method(env)

    def reset(self, **options: Any) -> Reset:
        return self.with_mask(*self.env.reset(**options))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self.with_mask(obs, info)[0], reward, terminated, truncated, info

    def with_mask(self, obs: Any, info: dict[str, Any]) -> Reset:
        mask = self._method() if self._method else info.get(ACTION_MASK)
        parts = obs if self._is_dict else {"observation": obs}
        return {**parts, ACTION_MASK: mask}, info


def mask_method(env: Env) -> Callable[[], Any] | None:
    """The method of an env, or of a wrapper around it, that tells the mask."""
    for name in METHODS:
        method = env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
        if callable(method) and _takes_nothing(method):
            found: Callable[[], Any] = method
            return found
    return None


def _takes_nothing(method: Callable[..., Any]) -> bool:
    """Whether a method can be called as it is; that of Taxi, for one, wants a state."""
    try:
        inspect.signature(method).bind()
    except (TypeError, ValueError):
        return False
    return True


def sample_allowed(env: Env, info: dict[str, Any]) -> Any:
    """A random action of the env's own action space, which its mask allows if it offers one."""
    space, method = env.action_space, mask_method(env)
    size, mask = mask_size(space), method() if method else info.get(ACTION_MASK)
    if size == 0 or mask is None:
        return space.sample()
    row, codec = np.zeros((1, size)), action_codec(space)
    MaskCodec(size).write(mask, row[0])
    return codec.decode(codec.sample_allowed(space.np_random, row))[0]


def observe_masks(envs: list[Env], seed: int) -> tuple[list[Env], int, Reset | None]:
    """The envs with their masks observed; columns of the mask; the first env's first reset.

    Only a reset shows whether there is a mask in `info`. It is handed on, so that an env without a
    mask is reset no more often than it would be otherwise.
    """
    space, size = envs[0].observation_space, mask_size(envs[0].action_space)
    if isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces:
        if size == 0:
            _warn("a key of its observations", envs[0])
        return envs, size, None
    if mask_method(envs[0]) is not None:
        if size == 0:
            _warn("a method", envs[0])
            return envs, 0, None
        return [MaskedObs(env) for env in envs], size, None
    first = envs[0].reset(seed=seed)
    if ACTION_MASK not in first[1]:
        return envs, 0, first
    if size == 0:
        _warn("info", envs[0])
        return envs, 0, first
    masked = [MaskedObs(env) for env in envs]
    return list(masked), size, masked[0].with_mask(*first)


def _warn(source: str, env: Env) -> None:
    fix = ""
    if isinstance(env.action_space, spaces.MultiBinary):
        fix = " MultiDiscrete of twos says the same, with two entries of the mask for each."
    logger.warning(
        f"env.action_mask: the env offers an action mask ({source}), which is not used: masks are "
        f"for Discrete and MultiDiscrete actions, and its actions are {env.action_space}.{fix}"
    )
