"""Episode returns, counted on raw rewards."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

WINDOW = 100


class EpisodeStats:
    """Returns and lengths of finished episodes, and the running totals of unfinished ones.

    A step on which nothing ended costs one vector addition: lengths are differences of the step
    counter, worked out only at an ending. Thousands of envs that end together are counted together.
    """

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.count = 0
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.lengths: deque[int] = deque(maxlen=WINDOW)
        self._step = 0
        self._running = np.zeros(num_envs)  # float64: long episodes add up many small rewards
        self._began_at = np.zeros(num_envs, np.int64)

    def add(self, reward: np.ndarray, ended: Sequence[int] | np.ndarray) -> None:
        """Count one step of every env; `ended` lists the slots whose episode it finished."""
        self._step += 1
        self._running += reward
        if len(ended):
            slots = np.asarray(ended)
            self.count += len(slots)
            self.returns.extend(self._running[slots].tolist())
            self.lengths.extend((self._step - self._began_at[slots]).tolist())
            self._running[slots] = 0.0
            self._began_at[slots] = self._step

    def abandon(self, slots: Sequence[int] | slice = slice(None)) -> None:
        """Forget unfinished episodes that will not be continued."""
        self._running[slots] = 0.0
        self._began_at[slots] = self._step

    def running_length(self, slot: int = 0) -> int:
        return self._step - int(self._began_at[slot])

    def total_reward(self) -> float:
        """The score of a checkpoint.

        One env: the last finished return, 0 before the first. Several: the mean of the last 100
        finished returns over all slots, NaN before the first.
        """
        if self.num_envs == 1:
            return self.returns[-1] if self.returns else 0.0
        return math.fsum(self.returns) / len(self.returns) if self.returns else math.nan

    def state_dict(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "step": self._step,
            "running": self._running.tolist(),
            "began_at": self._began_at.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = int(state["count"])
        self.returns = deque(map(float, state["returns"]), maxlen=WINDOW)
        self.lengths = deque(map(int, state["lengths"]), maxlen=WINDOW)
        self._step = int(state["step"])
        self._running = np.array(state["running"], dtype=np.float64)
        self._began_at = np.array(state["began_at"], dtype=np.int64)
