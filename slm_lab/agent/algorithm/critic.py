"""Values over a rollout, in reward units whatever units the value head is trained in."""

from __future__ import annotations

import torch
from torch import Tensor

from slm_lab.agent.algorithm.actor_critic_nets import ActorCriticNets
from slm_lab.agent.learning.learner import State
from slm_lab.agent.learning.moments import RunningMoments
from slm_lab.types import Rollout


def with_successors(value: Tensor, final_value: Tensor, truncated: Tensor) -> tuple[Tensor, Tensor]:
    """Values of T + 1 rows of steps -> (those of the T steps, those of their true successors).

    The row after a truncated step starts another episode: its own successor is apart.
    """
    rows = value.view(-1, truncated.shape[1])
    return rows[:-1], torch.where(truncated, final_value, rows[1:])


class Critic:
    """V(s) of a rollout's steps and of their true successors.

    With `normalize`, the head predicts targets with running mean and std removed. When those move,
    the head is rescaled so that no prediction changes (PopArt, van Hasselt et al. 2016).
    Predictions are never clamped: that would silently end learning for values beyond the clamp.
    """

    def __init__(self, nets: ActorCriticNets, device: torch.device, *, normalize: bool) -> None:
        self._nets = nets
        self._moments = RunningMoments((), device) if normalize else None
        self._identity = torch.zeros((), device=device), torch.ones((), device=device)

    @torch.no_grad()
    def values(
        self, state: State, rollout: Rollout, predicted: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(V of each step [T, B], V of each step's true successor [T, B]).

        `predicted` [(T+1) * B] are the head's outputs for `rollout.obs`, if they are known already.
        """
        if predicted is None:
            predicted = self._nets.value(state, rollout.obs.flatten(0, 1))
        final_value = self.final_values(state, rollout)
        return with_successors(self._real(predicted), final_value, rollout.truncated)

    @torch.no_grad()
    def final_values(self, state: State, rollout: Rollout) -> Tensor:
        """V of the true successors of truncated steps, [T, B]; zero at all others."""
        values = torch.zeros_like(rollout.reward)
        if len(rollout.final_index):
            finals = self._real(self._nets.value(state, rollout.final_obs))
            values.view(-1)[rollout.final_index] = finals
        return values

    def units(self) -> tuple[Tensor, Tensor]:
        """(mean, std) of the head's units: a value is std * output + mean."""
        return self._identity if self._moments is None else self._mean_std()

    def to_head_units(self, *values: Tensor) -> tuple[Tensor, ...]:
        if self._moments is None:
            return values
        mean, std = self._mean_std()
        return tuple((value - mean) / std for value in values)

    @torch.no_grad()
    def observe_targets(self, targets: Tensor) -> None:
        """Let the statistics follow new targets, keeping every prediction what it was."""
        if self._moments is None:
            return
        old_mean, old_std = self._mean_std()
        self._moments.update(targets.reshape(-1))
        mean, std = self._mean_std()
        self._nets.rescale_value_head(old_std / std, (old_mean - mean) / std)

    def state_dict(self) -> dict[str, Tensor]:
        return {} if self._moments is None else self._moments.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if self._moments is not None:
            self._moments.load_state_dict(state)

    def _real(self, value: Tensor) -> Tensor:
        if self._moments is None:
            return value
        mean, std = self._mean_std()
        return value * std + mean

    def _mean_std(self) -> tuple[Tensor, Tensor]:
        assert self._moments is not None
        std = (self._moments.var + 1e-8).sqrt().clamp_min(1e-4)
        return self._moments.mean.float(), std.float()
