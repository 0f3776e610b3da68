"""A game with an action mask, in which every forbidden action ends the game at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Source = Literal["info", "method", "dict", "none"]
LENGTH, WIDTH = 6, 4
MINES, CHOICES = "masks/Mines-v0", "masks/Choices-v0"


class Mines(gym.Env[Any, Any]):
    """Four actions, some of them mines. A mine costs 5 and ends the game; of the others the one
    with the largest number earns 1 and the rest 0. The numbers that are seen do not tell where the
    mines are. With `mixed` every second state has no mine and no mask.
    """

    def __init__(self, source: Source = "info", mixed: bool = False) -> None:
        self.source, self.mixed = source, mixed
        self.action_space: spaces.Space[Any] = spaces.Discrete(WIDTH)
        self.seen = spaces.Box(0, 1, (WIDTH,), np.float32)
        self.observation_space: spaces.Space[Any] = self.seen
        if source == "dict":
            mask = spaces.Box(0, 1, (self.mask_size,), np.int8)
            self.observation_space = spaces.Dict({"action_mask": mask, "seen": self.seen})
        if source == "method":
            self.action_masks = lambda: self.allowed.copy()
        self.steps = 0

    mask_size = WIDTH

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.draw()
        return self.observe(), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward, is_mine = self.outcome(action)
        self.draw()
        if is_mine:
            self.allowed[:] = False  # nothing is allowed once a game is over
        return self.observe(), reward, is_mine, self.steps >= LENGTH and not is_mine, self.info()

    def outcome(self, action: Any) -> tuple[float, bool]:
        if not self.allowed[action]:
            return -5.0, True
        best = np.where(self.allowed, self.numbers, -1).argmax()
        return float(action == best), False

    def draw(self) -> None:
        self.numbers = self.np_random.random(WIDTH, np.float32)
        self.allowed = self.np_random.random(self.mask_size) < 0.4
        self.allowed[self.np_random.integers(WIDTH)] = True
        if self.mixed and self.steps % 2:
            self.allowed[:] = True

    def observe(self) -> Any:
        if self.source == "dict":
            return {"action_mask": self.allowed.astype(np.int8), "seen": self.numbers}
        return self.numbers

    def info(self) -> dict[str, Any]:
        is_told = self.source == "info" and not (self.mixed and self.steps % 2)
        return {"action_mask": self.allowed.astype(np.int8)} if is_told else {}


class Choices(Mines):
    """Two sub-actions of two and three choices; a mine among either ends the game."""

    mask_size = 5

    def __init__(self, source: Source = "info") -> None:
        super().__init__(source)
        self.action_space = spaces.MultiDiscrete([2, 3])

    def outcome(self, action: Any) -> tuple[float, bool]:
        is_mine = not (self.allowed[action[0]] and self.allowed[2 + action[1]])
        return (-5.0, True) if is_mine else (1.0, False)

    def draw(self) -> None:
        self.numbers = self.np_random.random(WIDTH, np.float32)
        self.allowed = self.np_random.random(5) < 0.4
        self.allowed[[self.np_random.integers(2), 2 + self.np_random.integers(3)]] = True


@contextmanager
def registered() -> Iterator[None]:
    envs: dict[str, Any] = {MINES: Mines, CHOICES: Choices}
    for name, env in envs.items():
        gym.register(name, entry_point=env)
    yield
    for name in envs:
        del gym.registry[name]
