"""Wrappers of a batched env."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from slm_lab.env.error import EnvError
from slm_lab.env.space import Cast, Codecs, ObsCodec
from slm_lab.env.vector import VectorEnv
from slm_lab.types import Rows, Transition, on_host


class Frames(Cast):
    """Observations of k frames, which are in the agent's form already."""

    def __init__(self, frame: ObsCodec, k: int, shape: tuple[int, ...]) -> None:
        super().__init__(shape, frame.dtype)
        self.frame, self.k = frame, k


class FrameStack(VectorEnv):
    """Joins the last k observations into one, oldest first, on the host.

    `stack` puts them on a new first axis, (dim,) -> (k, dim); images (C, H, W) are joined along
    their channels, (k*C, H, W). `concat` joins along the first axis: (dim,) -> (k*dim,). An episode
    begins with its first observation repeated; its final observation keeps its own history.
    """

    obs: np.ndarray

    def __init__(self, env: VectorEnv, k: int, op: Literal["stack", "concat"]) -> None:
        if k < 2:
            raise EnvError(f"env.frame_stack: found {k}. Expected 2 or more frames; 1 is off.")
        self._env = env
        self._k = k
        self.num_envs, self.episodes, self.backend = env.num_envs, env.episodes, env.backend
        frame = env.spaces.obs_shape
        if op == "stack" and not env.spaces.is_image:
            frame = (1, *frame)
        # Every case now joins k frames along axis 1 of the batch.
        self._frame_shape, self._width = frame, frame[0]
        shape = (k * frame[0], *frame[1:])
        self.codecs = Codecs(Frames(env.codecs.obs, k, shape), env.codecs.action)
        stacked = replace(env.spaces, obs_shape=shape, frame_stack=k, on_device=False)
        self.spaces = replace(stacked, converter=self.codecs)
        self.obs, self._spare_obs, self._final_obs = (self._blank_obs() for _ in range(3))

    @property
    def restorable(self) -> bool:
        return self._env.restorable

    def reset(self) -> np.ndarray:
        self._fill(on_host(self._env.reset()))
        return self.obs

    def step(self, action: Rows) -> Transition:
        step = self._env.step(action)
        self.obs, self._spare_obs = self._spare_obs, self.obs
        self.obs[:, : -self._width] = self._spare_obs[:, self._width :]
        self.obs[:, -self._width :] = self._frames(on_host(step.next_obs))
        next_obs = self.obs
        if step.next_obs is not step.obs:  # they differ only when an episode ended
            next_obs = self._final_obs
            next_obs[:] = self.obs
            ended = step.episode_end
            self.obs[ended] = self._repeat(on_host(step.obs)[ended])
        return replace(step, obs=self.obs, next_obs=next_obs)

    def set_reset_options(self, options: Mapping[str, Any]) -> None:
        self._env.set_reset_options(options)

    def sample_action(self) -> np.ndarray:
        return self._env.sample_action()

    def render(self) -> np.ndarray | None:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def state_dict(self) -> dict[str, Any]:
        return {"env": self._env.state_dict(), "frames": self.obs.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._env.load_state_dict(state["env"])
        if self._env.restorable:
            self.obs[:] = state["frames"]
        else:
            self._fill(on_host(self._env.obs))

    def _fill(self, obs: np.ndarray) -> None:
        self.obs, self._spare_obs = self._spare_obs, self.obs
        self.obs[:] = self._repeat(obs)

    def _frames(self, obs: np.ndarray) -> np.ndarray:
        return obs.reshape(len(obs), *self._frame_shape)

    def _repeat(self, obs: np.ndarray) -> np.ndarray:
        return np.concatenate([self._frames(obs)] * self._k, axis=1)
