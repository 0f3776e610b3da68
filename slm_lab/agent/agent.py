"""The agent: an algorithm, the experience it learns from, and the lens it sees both through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from slm_lab.agent.experience import Experience, Lens, ResidentExperience
from slm_lab.agent.learning.learner import Learner
from slm_lab.agent.learning.parallel_learners import ParallelLearners
from slm_lab.agent.recurrence import Carry, Recurrence
from slm_lab.types import Metrics, Rows, Spaces, Transition, on_host


class Algorithm(Protocol):
    """What is minimised. Concrete algorithms share functions, not an ancestor."""

    @property
    def modules(self) -> Mapping[str, nn.Module]: ...
    @property
    def learner(self) -> Learner | ParallelLearners: ...
    @property
    def act(self) -> Callable[..., Tensor]: ...  # (obs, *, frame, explore) -> actions as sampled
    def to_env(self, action: Tensor) -> Tensor: ...
    def update(self, batch: Any, frame: int) -> Metrics: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Agent:
    """act, observe, update. Actions are as sampled; `env_action` makes them executable.

    A recurrent agent also remembers the episodes it trains in. Whoever lets it act elsewhere keeps
    a carry of that place: `new_carry`, `act(..., carry=carry)`, `advance(carry, transition)`.

    Tensors are answered with tensors. They stay on their device if the experience is resident;
    all else that an agent may be made of works on the host, and they are taken there at its door.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        experience: Experience,
        lens: Lens,
        spaces: Spaces,
        *,
        num_envs: int,
        recurrence: Recurrence | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.experience = experience
        self._lens = lens
        self._resident = experience if isinstance(experience, ResidentExperience) else None
        self._acts_as_sampled = not spaces.is_continuous
        self._obs_shape = spaces.obs_shape
        self._recurrence = recurrence
        self._carry = self.new_carry(num_envs)

    def new_carry(self, num_envs: int) -> Carry | None:
        """What to remember of as many fresh episodes; None for an agent that remembers nothing."""
        if self._recurrence is None:
            return None
        return Carry(num_envs, self._obs_shape, self._recurrence.memory_size)

    def act(
        self, obs: Rows, *, frame: int = 0, explore: bool = True, carry: Carry | None = None
    ) -> Rows:
        """obs [B, ...], raw -> actions [B, ...]. How much is explored may depend on the frame."""
        is_array = isinstance(obs, np.ndarray)
        if not is_array and self._resident is None:
            obs = on_host(obs)
        if self._recurrence is not None:
            obs = self._carry_for(explore, carry).rows(on_host(obs))
        x = self._lens.obs(torch.from_numpy(obs) if isinstance(obs, np.ndarray) else obs)
        action = self.algorithm.act(x, frame=frame, explore=explore)
        return action.cpu().numpy() if is_array else action

    def advance(self, carry: Carry | None, transition: Transition) -> None:
        """Remember the step that a carry's envs took; nothing to do without a memory."""
        if carry is not None:
            carry.advance(self._memory_after(carry), _on_host(transition))

    def env_action(self, action: Rows) -> Rows:
        """What to hand to `env.step`: squashed or clipped where the action space asks for it."""
        if self._acts_as_sampled:
            return action
        if isinstance(action, np.ndarray):
            return self.algorithm.to_env(torch.from_numpy(action)).numpy()
        return self.algorithm.to_env(action)

    def policy(self, obs: Tensor) -> Tensor:
        """obs [B, ...], raw -> what to hand to `env.step`, without exploring.

        `act` and `env_action` in one, in torch alone, so that it can be traced and exported.
        """
        return self.algorithm.to_env(self.algorithm.act(self._lens.obs(obs), explore=False))

    def observe(self, obs: Rows, action: Rows, transition: Transition) -> None:
        if self._resident is not None:
            self._resident.add(obs, action, transition)
            return
        if not (isinstance(obs, np.ndarray) and isinstance(action, np.ndarray)):
            obs, action, transition = on_host(obs), on_host(action), _on_host(transition)
        if self._carry is not None:
            obs = self._carry.rows(obs)
            transition = self._carry.advance(self._memory_after(self._carry), transition)
        self.experience.add(obs, action, transition)

    def cut(self, obs: np.ndarray) -> None:
        """The running episodes will not go on: they stopped at these observations [B, ...]."""
        if self._carry is not None:
            obs = self._carry.rows(obs)
            self._carry = self.new_carry(len(obs))
        self.experience.cut(obs)

    @property
    def ready(self) -> bool:
        """Whether enough has been observed for an update."""
        return self.experience.ready

    def update(self, frame: int) -> Metrics:
        metrics = self.algorithm.update(self.experience.batch(frame), frame)
        self.experience.learned(metrics)
        return metrics

    @property
    def is_compiled(self) -> bool:
        return self.algorithm.learner.is_compiled

    def target_nets(self) -> dict[str, dict[str, Tensor]]:
        """State dicts of slow copies, for algorithms that have them."""
        target_nets = getattr(self.algorithm, "target_nets", None)
        return target_nets() if target_nets else {}

    def statistics(self) -> dict[str, dict[str, Tensor]]:
        """Running statistics of observations and rewards, by the name of their owner."""
        return self._lens.statistics()

    def state_dict(self) -> dict[str, Any]:
        """Everything the agent has learned, and remembers of the episodes it is in.

        `experience` has a state of its own.
        """
        state = {"algorithm": self.algorithm.state_dict(), "statistics": self.statistics()}
        return state if self._carry is None else state | {"carry": self._carry.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.algorithm.load_state_dict(state["algorithm"])
        self.load_statistics(state["statistics"])
        if self._carry is not None:
            self._carry.load_state_dict(state["carry"])

    def load_statistics(self, statistics: dict[str, dict[str, Tensor]]) -> None:
        self._lens.load_statistics(statistics)

    def _carry_for(self, explore: bool, carry: Carry | None) -> Carry:
        if carry is not None:
            return carry
        if not explore or self._carry is None:
            raise ValueError(
                "a recurrent agent evaluated elsewhere needs a memory of its own: "
                "act(obs, explore=False, carry=agent.new_carry(num_envs))"
            )
        return self._carry

    def _memory_after(self, carry: Carry) -> np.ndarray:
        """The memory after the rows that were last acted on."""
        assert self._recurrence is not None
        rows = self._lens.obs(torch.from_numpy(carry.latest))
        return self._recurrence(rows).cpu().numpy()


def _on_host(transition: Transition) -> Transition:
    if not isinstance(transition.obs, Tensor):
        return transition
    obs = next_obs = on_host(transition.obs)
    if transition.next_obs is not transition.obs:  # the two differ only at an ending
        next_obs = on_host(transition.next_obs)
    return replace(transition, obs=obs, next_obs=next_obs)
