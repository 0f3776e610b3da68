"""Tiny envs with known answers, registered as `probe/<Name>-v0`.

A correct algorithm learns each in seconds; one that fails says which part is broken. Listed from
the least that can go wrong (the value loss) to the most (memory). Unless a docstring says
otherwise an episode is one step, the observation is a constant 0 and there are two actions.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Obs = np.ndarray
StepResult = tuple[Obs, float, bool, bool, dict[str, Any]]


class Probe(gym.Env[Obs, Any]):
    """What the probes share: spaces, one float32 in [-1, 1] as observation, the number of steps."""

    length = 1

    def __init__(self, length: int | None = None) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(2)
        if length is not None:
            self.length = length
        self.elapsed = 0
        self.signal = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self.elapsed = 0
        self.signal = self.first_signal()
        return self.observe(), {}

    def step(self, action: Any) -> StepResult:
        self.elapsed += 1
        reward = self.reward(action)
        return self.observe(), reward, self.elapsed >= self.length, False, {}

    def reward(self, action: Any) -> float:
        """The reward of this step; may change the signal that is observed next."""
        raise NotImplementedError

    def first_signal(self) -> float:
        return 0.0

    def random_sign(self) -> float:
        return float(self.np_random.choice((-1.0, 1.0)))

    def observe(self) -> Obs:
        return np.array([self.signal], np.float32)


class ConstantReward(Probe):
    """Reward 1 always. Answer: V(0) = 1. Tests the value loss and its optimiser."""

    def reward(self, action: Any) -> float:
        return 1.0


class ObsReward(Probe):
    """The observation is +1 or -1 at random, and so is the reward. Answer: V(obs) = obs.

    Tests that the observation reaches the value.
    """

    def first_signal(self) -> float:
        return self.random_sign()

    def reward(self, action: Any) -> float:
        return self.signal


class DelayedReward(Probe):
    """Two steps: obs 0 with reward 0, then obs 1 with reward 1. Answer: V(1) = 1, V(0) = gamma.

    Tests discounting and the bootstrap.
    """

    length = 2

    def reward(self, action: Any) -> float:
        reward, self.signal = self.signal, 1.0
        return reward


class ActionMatters(Probe):
    """Action 1 earns +1, action 0 earns -1. Answer: always 1, V(0) = 1. Tests the policy loss."""

    def reward(self, action: Any) -> float:
        return 1.0 if action == 1 else -1.0


class ActionAndObs(Probe):
    """The observation is +1 or -1; action 1 is right for +1, action 0 for -1; right earns +1, wrong
    -1. Answer: the matching action, V = 1. Tests that the policy depends on the observation.
    """

    def first_signal(self) -> float:
        return self.random_sign()

    def reward(self, action: Any) -> float:
        return self.signal if action == 1 else -self.signal


class ContinuousAction(Probe):
    """One action a in [-1, 1] earns -(a - 0.5)^2. Answer: a = 0.5, V(0) = 0."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reward(self, action: Any) -> float:
        return -((float(action[0]) - 0.5) ** 2)


class MultiDiscreteAction(Probe):
    """Sub-actions of 2 and 3 choices; each right one earns 0.5. Answer: (1, 2), V(0) = 1."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.MultiDiscrete([2, 3])

    def reward(self, action: Any) -> float:
        return 0.5 * float(np.equal(action, (1, 2)).sum())


class MultiBinaryAction(Probe):
    """Two bits; each right one earns 0.5. Answer: (1, 0), V(0) = 1."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.MultiBinary(2)

    def reward(self, action: Any) -> float:
        return 0.5 * float(np.equal(action, (1, 0)).sum())


class Truncated(Probe):
    """Reward 1 per step, constant obs, truncated after `length` steps.

    Answer: V(0) = 1 / (1 - gamma), because a time limit is not an end: an algorithm that cuts the
    bootstrap at truncation falls short of it.
    """

    length = 10

    def step(self, action: Any) -> StepResult:
        obs, reward, ended, _, info = super().step(action)
        return obs, reward, False, ended, info

    def reward(self, action: Any) -> float:
        return 1.0


class Terminated(Probe):
    """Reward 1 per step, terminated after `length` steps; obs is the share of steps left.

    Answer: with n steps left V = (1 - gamma^n) / (1 - gamma); the last step is worth exactly 1.
    """

    length = 10

    def first_signal(self) -> float:
        return 1.0

    def reward(self, action: Any) -> float:
        self.signal = (self.length - self.elapsed) / self.length
        return 1.0


class RepeatPrevious(Probe):
    """Each step shows +1 or -1; action 1 is right if the *previous* one was +1, action 0 if -1.
    Right earns +1, wrong -1, the first step 0; terminated after `length` steps.

    Answer: return length - 1 with one step of memory; 0 on average without.
    """

    length = 8

    def first_signal(self) -> float:
        self.previous = 0.0
        return self.random_sign()

    def reward(self, action: Any) -> float:
        reward = self.previous if action == 1 else -self.previous
        self.previous, self.signal = self.signal, self.random_sign()
        return reward


class RecallFirst(Probe):
    """The first step shows +1 or -1, the others 0. After `length` steps, action 1 is right if it
    was +1, action 0 if -1; right earns +1, wrong -1, every earlier step 0: a T-maze without walls.

    Answer: return 1 with a memory of `length` steps; 0 on average without.
    """

    length = 6

    def first_signal(self) -> float:
        self.first = self.random_sign()
        return self.first

    def reward(self, action: Any) -> float:
        self.signal = 0.0
        if self.elapsed < self.length:
            return 0.0
        return self.first if action == 1 else -self.first


PROBES: tuple[type[Probe], ...] = (
    ConstantReward,
    ObsReward,
    DelayedReward,
    ActionMatters,
    ActionAndObs,
    ContinuousAction,
    MultiDiscreteAction,
    MultiBinaryAction,
    Truncated,
    Terminated,
    RepeatPrevious,
    RecallFirst,
)


def register_probes() -> None:
    for probe in PROBES:
        name = f"probe/{probe.__name__}-v0"
        if name not in gym.registry:
            gym.register(name, entry_point=f"{__name__}:{probe.__name__}")
