"""Envs that show an image and a vector, of which neither tells enough alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SIGNS, STEER = "parts/Signs-v0", "parts/Steer-v0"


class Signs(gym.Env[Any, Any]):
    """The image is bright on its left or right half, the vector tells whether to go there or to
    the other side; right earns 1. Either part alone leaves a coin to toss: 4 of 8. `hidden` is a
    part that is not shown; with `masks` one useless action of three is forbidden at a time.
    """

    length = 8

    def __init__(self, hidden: str = "", masks: bool = False, side: int = 32) -> None:
        self.side, self.masks = side, masks
        self.shown = shown = dict[str, spaces.Space[Any]]()
        shown |= {
            "camera": spaces.Box(0, 255, (side, side, 1), np.uint8),
            "sensors": spaces.Dict({"goal": spaces.Box(-1, 1, (2,), np.float32)}),
        }
        shown.pop(hidden, None)
        self.observation_space = spaces.Dict(shown)
        self.action_space: spaces.Space[Any] = spaces.Discrete(3 if masks else 2)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.draw()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward = self.reward(action)
        obs, info = self.draw()
        return obs, reward, False, self.steps >= self.length, info

    def reward(self, action: Any) -> float:
        return float(action == self.answer)

    def draw(self) -> tuple[Any, dict[str, Any]]:
        is_right, flips = self.np_random.integers(2, size=2)
        self.answer = int(is_right) ^ int(flips)
        image = self.np_random.integers(0, 60, (self.side, self.side, 1), np.uint8)
        half = slice(self.side // 2, None) if is_right else slice(self.side // 2)
        image[:, half] += 150
        goal = np.array([flips * 2 - 1, 0.5], np.float32)
        shown = {"camera": image, "sensors": {"goal": goal}}
        info = {"action_mask": np.array([1, 1, 0], np.int8)} if self.masks else {}
        return {key: shown[key] for key in self.shown}, info


class Steer(Signs):
    """The same with a continuous action, whose sign is the side."""

    def __init__(self, hidden: str = "", side: int = 32) -> None:
        super().__init__(hidden, side=side)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reward(self, action: Any) -> float:
        return float((action[0] > 0) == self.answer)


@contextmanager
def registered() -> Iterator[None]:
    envs: dict[str, Any] = {SIGNS: Signs, STEER: Steer}
    for name, env in envs.items():
        gym.register(name, entry_point=env)
    yield
    for name in envs:
        del gym.registry[name]
