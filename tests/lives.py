"""An env whose games have lives, with endings at exact steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from slm_lab.env.vector import VectorEnv
from slm_lab.types import Rows, Transition


class LosesLives(VectorEnv):
    """An env around an env: each game loses a life every `steps` steps, and goes on.

    As Atari with `life_loss_info`: a lost life is `terminated`, only the end of the game ends the
    episode.
    """

    def __init__(self, env: VectorEnv, steps: int) -> None:
        self._env = env
        self._steps = steps
        self._elapsed = np.zeros(env.num_envs, int)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    @property
    def restorable(self) -> bool:
        return self._env.restorable

    def sample_action(self) -> np.ndarray:
        return self._env.sample_action()

    def close(self) -> None:
        self._env.close()

    def reset(self) -> Rows:
        self._elapsed[:] = 0
        return self._env.reset()

    def step(self, action: Rows) -> Transition:
        step = self._env.step(action)
        self._elapsed += 1
        life_lost = self._elapsed % self._steps == 0
        self._elapsed[step.episode_end] = 0
        return replace(step, terminated=step.terminated | life_lost)

    def state_dict(self) -> dict[str, Any]:
        return {"env": self._env.state_dict(), "elapsed": self._elapsed.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._env.load_state_dict(state["env"])
        self._elapsed[:] = state["elapsed"]
