"""Scripted envs whose every observation says where it belongs: (episode, step)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from loguru import logger

from slm_lab.env.envpool_backend import EnvpoolVectorEnv
from slm_lab.env.vector import GymnasiumVectorEnv, VectorEnv
from slm_lab.spec.env import EnvSpec


class Scripted(gym.Env[np.ndarray, Any]):
    """Observes (episode, step), earns the step number, ends after `length` steps as told."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int, *, terminates: bool, truncates: bool) -> None:
        self.length, self.terminates, self.truncates = length, terminates, truncates
        self.episode, self.t = -1, 0

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return np.array([self.episode, self.t], np.float64), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        end = self.t == self.length
        obs = np.array([self.episode, self.t], np.float64)
        return obs, float(self.t), end and self.terminates, end and self.truncates, {}


class ScriptedPool:
    """envpool's raw behaviour: an ended env that is not reset spends its next step resetting."""

    observation_space = Scripted.observation_space
    action_space = Scripted.action_space

    def __init__(self, envs: list[Scripted]) -> None:
        self.envs = envs
        self.ended = [True] * len(envs)

    def reset(self, env_id: np.ndarray | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        # Last id first: the order of a partial answer is only told by `env_id`.
        ids = list(range(len(self.envs))) if env_id is None else env_id.tolist()[::-1]
        for i in ids:
            self.ended[i] = False
        return np.stack([self.envs[i].reset()[0] for i in ids]), {"env_id": np.array(ids)}

    def step(self, action: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        rows = []
        for i, env in enumerate(self.envs):
            if self.ended[i]:
                rows.append((env.reset()[0], 0.0, False, False))
            else:
                rows.append(env.step(0)[:4])
            self.ended[i] = rows[-1][2] or rows[-1][3]
        obs, reward, terminated, truncated = map(np.array, zip(*rows, strict=True))
        return obs, reward, terminated, truncated, {"env_id": np.arange(len(self.envs))}

    def close(self) -> None:
        pass


def three_and_four() -> list[Scripted]:
    """One env that terminates after 3 steps and one that is truncated after 4."""
    return [
        Scripted(3, terminates=True, truncates=False),
        Scripted(4, terminates=False, truncates=True),
    ]


@pytest.fixture(params=["gymnasium", "two threads", "envpool"])
def scripted(request: pytest.FixtureRequest) -> Iterator[VectorEnv]:
    """`three_and_four` behind either back-end."""
    envs = three_and_four()
    env: VectorEnv
    if request.param == "envpool":
        env = EnvpoolVectorEnv(ScriptedPool(envs), num_envs=2, seed=0)
    else:
        threads = 2 if request.param == "two threads" else 1
        env = GymnasiumVectorEnv(envs, seed=0, threads=threads)
    yield env
    env.close()


@pytest.fixture
def gym_scripted() -> GymnasiumVectorEnv:
    return GymnasiumVectorEnv(three_and_four(), seed=0)


@pytest.fixture
def make_scripted() -> type[Scripted]:
    return Scripted


@pytest.fixture
def make_scripted_pool() -> type[ScriptedPool]:
    return ScriptedPool


@pytest.fixture
def warnings_logged() -> Iterator[list[str]]:
    messages: list[str] = []
    sink = logger.add(lambda message: messages.append(message.record["message"]), level="WARNING")
    yield messages
    logger.remove(sink)


@pytest.fixture
def env_spec() -> Callable[..., EnvSpec]:
    def build(name: str, **keys: Any) -> EnvSpec:
        return EnvSpec.model_validate({"name": name, "max_frame": 1000, **keys})

    return build
