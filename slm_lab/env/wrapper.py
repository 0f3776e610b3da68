"""What is put around a batched env, one small class per concept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from slm_lab.env.error import EnvError
from slm_lab.env.space import Cast, Codecs
from slm_lab.env.vector import VectorEnv
from slm_lab.types import Rows, Transition, on_host


class FrameStack:
    """The last k observations as one, oldest first.

    `stack` puts them on a new first axis, (dim,) -> (k, dim); images (C, H, W) already have one
    for that, and become (k*C, H, W). `concat` joins along the first axis: (dim,) -> (k*dim,).
    An episode begins with its first observation repeated; the final observation of an episode
    keeps the history of that episode. Stacks are put together on the host.
    """

    def __init__(self, env: VectorEnv, k: int, op: Literal["stack", "concat"]) -> None:
        if k < 2:
            raise EnvError(f"env.frame_stack: found {k}. Expected 2 or more frames; 1 is off.")
        self._env = env
        self._k = k
        self.num_envs, self.episodes, self.backend = env.num_envs, env.episodes, env.backend
        frame = env.spaces.obs_shape
        if op == "stack" and not env.spaces.is_image:
            frame = (1, *frame)
        # With that, every case joins k frames along axis 1 of the batch.
        self._frame_shape, self._width = frame, frame[0]
        shape = (k * frame[0], *frame[1:])
        self.spaces = replace(env.spaces, obs_shape=shape, frame_stack=k, on_device=False)
        shape, dtype = (env.num_envs, *self.spaces.obs_shape), env.spaces.obs_dtype
        self._obs, self._spare_obs = np.zeros(shape, dtype), np.zeros(shape, dtype)
        self._final_obs = np.zeros(shape, dtype)

    @property
    def restorable(self) -> bool:
        return self._env.restorable

    @property
    def obs(self) -> np.ndarray:
        return self._obs

    @property
    def codecs(self) -> Codecs:
        stacked = Cast(self.spaces.obs_shape, self.spaces.obs_dtype)
        return Codecs(stacked, self._env.codecs.action)

    def reset(self) -> np.ndarray:
        self._fill(on_host(self._env.reset()))
        return self._obs

    def step(self, action: Rows) -> Transition:
        step = self._env.step(action)
        self._obs, self._spare_obs = self._spare_obs, self._obs
        self._obs[:, : -self._width] = self._spare_obs[:, self._width :]
        self._obs[:, -self._width :] = self._frames(on_host(step.next_obs))
        next_obs = self._obs
        if step.next_obs is not step.obs:  # the two differ only when an episode ended
            next_obs = self._final_obs
            next_obs[:] = self._obs
            ended = step.episode_end
            self._obs[ended] = self._repeat(on_host(step.obs)[ended])
        return replace(step, obs=self._obs, next_obs=next_obs)

    def sample_action(self) -> np.ndarray:
        return self._env.sample_action()

    def render(self) -> np.ndarray | None:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def state_dict(self) -> dict[str, Any]:
        return {"env": self._env.state_dict(), "frames": self._obs.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._env.load_state_dict(state["env"])
        if self._env.restorable:
            self._obs[:] = state["frames"]
        else:
            self._fill(on_host(self._env.obs))

    def _fill(self, obs: np.ndarray) -> None:
        self._obs, self._spare_obs = self._spare_obs, self._obs
        self._obs[:] = self._repeat(obs)

    def _frames(self, obs: np.ndarray) -> np.ndarray:
        return obs.reshape(len(obs), *self._frame_shape)

    def _repeat(self, obs: np.ndarray) -> np.ndarray:
        return np.concatenate([self._frames(obs)] * self._k, axis=1)
