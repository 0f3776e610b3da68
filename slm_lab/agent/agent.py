"""The agent: an algorithm, the experience it learns from, and the lens it sees both through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from slm_lab.agent.experience import Experience, Lens
from slm_lab.agent.learner import Learner
from slm_lab.types import Metrics, Spaces, Transition


class Algorithm(Protocol):
    """What is minimised. Concrete algorithms share functions, not an ancestor."""

    @property
    def modules(self) -> Mapping[str, nn.Module]: ...
    @property
    def learner(self) -> Learner: ...
    @property
    def act(self) -> Callable[..., Tensor]: ...  # (obs, *, frame, explore) -> actions as sampled
    def to_env(self, action: Tensor) -> Tensor: ...
    def update(self, batch: Any, frame: int) -> Metrics: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Agent:
    """act, observe, update. Actions are as sampled; `env_action` makes them executable."""

    def __init__(
        self, algorithm: Algorithm, experience: Experience, lens: Lens, spaces: Spaces
    ) -> None:
        self.algorithm = algorithm
        self.experience = experience
        self._lens = lens
        self._acts_as_sampled = not spaces.is_continuous

    def act(self, obs: np.ndarray, *, frame: int = 0, explore: bool = True) -> np.ndarray:
        """obs [B, ...], raw -> actions [B, ...]. How much is explored may depend on the frame."""
        x = self._lens.obs(torch.from_numpy(obs))
        return self.algorithm.act(x, frame=frame, explore=explore).cpu().numpy()

    def env_action(self, action: np.ndarray) -> np.ndarray:
        """What to hand to `env.step`: squashed or clipped where the action space asks for it."""
        if self._acts_as_sampled:
            return action
        return self.algorithm.to_env(torch.from_numpy(action)).numpy()

    def policy(self, obs: Tensor) -> Tensor:
        """obs [B, ...], raw -> what to hand to `env.step`, without exploring.

        `act` and `env_action` in one, in torch alone, so that it can be traced and exported.
        """
        return self.algorithm.to_env(self.algorithm.act(self._lens.obs(obs), explore=False))

    def observe(self, obs: np.ndarray, action: np.ndarray, transition: Transition) -> None:
        self.experience.add(obs, action, transition)

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
        """Everything the agent has learned; `experience` has a state of its own."""
        return {"algorithm": self.algorithm.state_dict(), "statistics": self.statistics()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.algorithm.load_state_dict(state["algorithm"])
        self.load_statistics(state["statistics"])

    def load_statistics(self, statistics: dict[str, dict[str, Tensor]]) -> None:
        self._lens.load_statistics(statistics)
