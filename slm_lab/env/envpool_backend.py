"""The envpool back-end: C++ envs stepped as one batch.

envpool resets an ended env on the next step, whose action it ignores. Here the ended envs are reset
within the same call, so that the next episode begins at once and no action is lost.

envpool cannot save a running episode (`restorable` is False, a resumed run begins new episodes),
render without a display, or report an episode that terminates on the step of its time limit as
terminated (it is truncated).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from slm_lab.env.error import EnvError
from slm_lab.env.space import ObsCodec, action_codec, obs_codec
from slm_lab.env.vector import VectorEnv, check_batch, spawn_streams
from slm_lab.spec.env import EnvSpec
from slm_lab.types import Rows, Transition, on_host


class Pool(Protocol):
    """The part of envpool's API that is used here; the spaces are those of a single env."""

    @property
    def observation_space(self) -> Any: ...
    @property
    def action_space(self) -> Any: ...
    def reset(self, env_id: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]: ...
    def step(self, action: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]: ...
    def close(self) -> None: ...


def make_envpool(spec: EnvSpec, *, seed: int) -> EnvpoolVectorEnv:
    if spec.kwargs.get("episodic_life"):
        raise EnvError(
            "env.episodic_life: envpool's key, with which a lost life ends the game that is "
            f"scored. Use env.name `ALE/{spec.name}` with life_loss_info, which keeps the score "
            "that of a whole game, or remove it."
        )
    options = dict(spec.kwargs) | ({} if spec.max_t is None else {"max_episode_steps": spec.max_t})
    return EnvpoolVectorEnv(make_pool(spec.name, spec, options, seed=seed), spec.num_envs, seed)


def make_pool(name: str, spec: EnvSpec, options: Mapping[str, Any], *, seed: int) -> Pool:
    """A synchronous pool with one seed per env. envpool must know `name` and every option."""
    try:
        import envpool
    except ImportError as error:
        raise EnvError(
            "env.backend: `envpool` is not installed. "
            "Run `pip install 'slm-lab[envpool]'`, or set env.backend to `gymnasium`."
        ) from error
    if name not in envpool.list_all_envs():
        raise EnvError(
            f"env.name: envpool has no env `{name}`. "
            "Set env.backend to `gymnasium`, or pick an id of `envpool.list_all_envs()`."
        )
    env_seeds, _ = spawn_streams(seed, spec.num_envs)
    try:
        pool: Pool = envpool.make(
            name,
            env_type="gymnasium",
            num_envs=spec.num_envs,
            num_threads=spec.num_threads or 1,
            seed=env_seeds,
            **options,
        )
    except (AssertionError, TypeError, ValueError, KeyError) as error:
        raise EnvError(
            f"env.kwargs: envpool cannot make `{name}` with {dict(options)} ({error}). "
            "Remove what envpool does not support, or set env.backend to `gymnasium`."
        ) from error
    return pool


class EnvpoolVectorEnv(VectorEnv):
    """A VectorEnv over a pool of envpool."""

    backend = "envpool"
    obs: np.ndarray

    def __init__(
        self,
        pool: Pool,
        num_envs: int,
        seed: int,
        *,
        codec: ObsCodec | None = None,
        privileged: int = 0,
    ) -> None:
        """`codec` replaces the layout of observations that space.py would choose."""
        self._pool = pool
        with warnings.catch_warnings():
            # envpool states the bounds of float32 boxes in float64; gymnasium warns of the cast.
            warnings.filterwarnings("ignore", message=".*precision lowered.*")
            codecs = codec or obs_codec(pool.observation_space), action_codec(pool.action_space)
        super().__init__(num_envs, *codecs, seed, privileged=privileged)
        self.obs, self._spare_obs, self._final_obs = (self._blank_obs() for _ in range(3))

    def reset(self) -> np.ndarray:
        self.episodes.abandon()
        self.obs, self._spare_obs = self._spare_obs, self.obs
        obs, _ = self._pool.reset()
        self._obs_codec.write(obs, self.obs)
        return self.obs

    def step(self, action: Rows) -> Transition:
        check_batch(action, self.num_envs)
        self.obs, self._spare_obs = self._spare_obs, self.obs
        decoded = self._action_codec.decode(on_host(action))
        obs, reward, terminated, truncated, _ = self._pool.step(decoded)
        self._obs_codec.write(obs, self.obs)
        self._reward[:] = reward

        episode_end = terminated | truncated
        ended = np.flatnonzero(episode_end)
        self.episodes.add(self._reward, ended)
        next_obs = self.obs
        if len(ended):
            next_obs = self._final_obs
            next_obs[:] = self.obs
            self._begin_episodes(ended)
        return Transition(self.obs, next_obs, self._reward, terminated, truncated, episode_end)

    def close(self) -> None:
        self._pool.close()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the statistics of finished episodes; the running ones are lost."""
        super().load_state_dict(state)
        self.reset()

    def _begin_episodes(self, slots: np.ndarray) -> None:
        obs, info = self._pool.reset(slots.astype(np.int32))
        first_obs = np.zeros((len(slots), *self.spaces.obs_shape), self.spaces.obs_dtype)
        self._obs_codec.write(obs, first_obs)
        self.obs[info["env_id"]] = first_obs
