"""The agent: an algorithm, the experience it learns from, and the preprocessor of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from slm_lab.agent.learning.learner import Learner, ParallelLearners
from slm_lab.agent.memory.rollout import ExperienceBuffer, RolloutBuffer
from slm_lab.agent.net.recurrent import Recurrence, RecurrentState
from slm_lab.agent.preprocessor import Preprocessor
from slm_lab.types import Metrics, Rows, Spaces, Transition, on_host


class Algorithm(Protocol):
    """What is minimised. Algorithms share functions, not an ancestor.

    Those that learn on-policy also have `evaluate(batch)`, which adds to a batch what the nets that
    acted say of it, and may have `evaluated`: (log-probs, values) of the actions explored last.
    """

    @property
    def modules(self) -> Mapping[str, nn.Module]: ...
    @property
    def learner(self) -> Learner | ParallelLearners: ...
    @property
    def act(self) -> Callable[..., Tensor]: ...  # (obs, *, frame, explore) -> actions as sampled
    @property
    def to_env(self) -> Callable[[Tensor], Tensor]: ...  # actions as sampled -> as executed
    def update(self, batch: Any, frame: int) -> Metrics: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Agent:
    """Acts, observes and updates. Actions are as sampled; `env_action` makes them executable.

    A recurrent agent keeps the recurrent state of the episodes it trains in. To act elsewhere it is
    given another: `initial_recurrent_state`, `act(..., recurrent_state=state)`,
    `advance(state, transition)`.

    Tensors are answered with tensors. They stay on their device if the experience does; otherwise
    they are moved to the host on arrival.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        experience: ExperienceBuffer,
        preprocessor: Preprocessor,
        spaces: Spaces,
        *,
        num_envs: int,
        recurrence: Recurrence | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.experience = experience
        self._preprocessor = preprocessor
        self._device_rollout: RolloutBuffer | None = None
        if preprocessor.on_device and isinstance(experience, RolloutBuffer):
            self._device_rollout = experience
        self._is_discrete = not spaces.is_continuous
        self._obs_shape = spaces.obs_shape
        self._recurrence = recurrence
        self._recurrent_state = self.initial_recurrent_state(num_envs)

    def initial_recurrent_state(self, num_envs: int) -> RecurrentState | None:
        """Zero recurrent state for `num_envs` new episodes; None for a feed-forward agent."""
        if self._recurrence is None:
            return None
        return RecurrentState(num_envs, self._obs_shape, self._recurrence.memory_size)

    def act(
        self,
        obs: Rows,
        *,
        frame: int = 0,
        explore: bool = True,
        recurrent_state: RecurrentState | None = None,
    ) -> Rows:
        """Raw obs [B, ...] -> actions [B, ...]. How much is explored may depend on the frame."""
        is_array = isinstance(obs, np.ndarray)
        if not is_array and self._device_rollout is None:
            obs = on_host(obs)
        if self._recurrence is not None:
            obs = self._state_to_act_on(explore, recurrent_state).rows(on_host(obs))
        x = self._preprocessor.obs(torch.from_numpy(obs) if isinstance(obs, np.ndarray) else obs)
        action = self.algorithm.act(x, frame=frame, explore=explore)
        return action.cpu().numpy() if is_array else action

    def advance(self, recurrent_state: RecurrentState | None, transition: Transition) -> None:
        """Move a recurrent state on by the step that its envs took; None needs nothing."""
        if recurrent_state is not None:
            recurrent_state.advance(self._memory_after(recurrent_state), _on_host(transition))

    def env_action(self, action: Rows) -> Rows:
        """Actions for `env.step`: squashed or clipped where the action space asks for it."""
        if self._is_discrete:
            return action
        if isinstance(action, np.ndarray):
            return self.algorithm.to_env(torch.from_numpy(action)).numpy()
        return self.algorithm.to_env(action)

    def policy(self, obs: Tensor) -> Tensor:
        """Raw obs [B, ...] -> greedy actions for `env.step`.

        It is `act` and `env_action` in torch alone, so that it can be traced and exported.
        """
        return self.algorithm.to_env(self.algorithm.act(self._preprocessor.obs(obs), explore=False))

    def observe(self, obs: Rows, action: Rows, transition: Transition) -> None:
        """Store a step; `action` is the one explored last."""
        evaluated = getattr(self.algorithm, "evaluated", ())
        if self._device_rollout is not None:
            self._device_rollout.add(obs, action, transition, evaluated)
            return
        if not (isinstance(obs, np.ndarray) and isinstance(action, np.ndarray)):
            obs, action, transition = on_host(obs), on_host(action), _on_host(transition)
        if self._recurrent_state is not None:
            obs = self._recurrent_state.rows(obs)
            memory = self._memory_after(self._recurrent_state)
            transition = self._recurrent_state.advance(memory, transition)
        self.experience.add(obs, action, transition, evaluated)

    def truncate_episodes(self, obs: np.ndarray) -> None:
        """End the running episodes, which will not go on, at these observations [B, ...]."""
        if self._recurrent_state is not None:
            obs = self._recurrent_state.rows(obs)
            self._recurrent_state = self.initial_recurrent_state(len(obs))
        self.experience.truncate_episodes(obs)

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
        """State dicts of target nets, for algorithms that have them."""
        target_nets = getattr(self.algorithm, "target_nets", None)
        return target_nets() if target_nets else {}

    def statistics(self) -> dict[str, dict[str, Tensor]]:
        """Running statistics of observations and rewards, by the name of their owner."""
        return self._preprocessor.statistics()

    def load_statistics(self, statistics: dict[str, dict[str, Tensor]]) -> None:
        self._preprocessor.load_statistics(statistics)

    def state_dict(self) -> dict[str, Any]:
        """State of algorithm, statistics and running episodes; `experience` has its own."""
        state = {"algorithm": self.algorithm.state_dict(), "statistics": self.statistics()}
        if self._recurrent_state is not None:
            state["recurrent_state"] = self._recurrent_state.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.algorithm.load_state_dict(state["algorithm"])
        self.load_statistics(state["statistics"])
        if self._recurrent_state is not None:
            self._recurrent_state.load_state_dict(state["recurrent_state"])

    def _state_to_act_on(self, explore: bool, given: RecurrentState | None) -> RecurrentState:
        if given is not None:
            return given
        if not explore or self._recurrent_state is None:
            raise ValueError(
                "a recurrent agent evaluated elsewhere needs a recurrent state of its own: "
                "act(obs, explore=False, recurrent_state=agent.initial_recurrent_state(num_envs))"
            )
        return self._recurrent_state

    def _memory_after(self, recurrent_state: RecurrentState) -> np.ndarray:
        """The memory of the nets after the rows that were acted on last."""
        assert self._recurrence is not None
        rows = self._preprocessor.obs(torch.from_numpy(recurrent_state.latest))
        return self._recurrence(rows).cpu().numpy()


def _on_host(transition: Transition) -> Transition:
    if not isinstance(transition.obs, Tensor):
        return transition
    obs = next_obs = on_host(transition.obs)
    if transition.next_obs is not transition.obs:  # the two differ only at an ending
        next_obs = on_host(transition.next_obs)
    return replace(transition, obs=obs, next_obs=next_obs)
