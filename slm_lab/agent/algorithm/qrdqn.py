"""QR-DQN (Dabney et al. 2018): the net says quantiles of each action's return, not its mean."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from slm_lab.agent.algorithm.base import Setup
from slm_lab.agent.algorithm.distributional import (
    DistributionalDQN,
    of_action,
    quantile_huber_loss,
)
from slm_lab.spec import Spec
from slm_lab.spec.algorithm.qrdqn import QRDQNSpec


def quantile_target(reward: Tensor, discount: Tensor, next_quantiles: Tensor) -> Tensor:
    """r + discount * theta_j(s', a') of the next action, eq. 11: quantiles [N, K] -> [N, K]."""
    return reward.unsqueeze(-1) + discount.unsqueeze(-1) * next_quantiles


class QRDQN(DistributionalDQN):
    """DQN on quantiles. The priority of a row is its loss."""

    def __init__(self, spec: Spec, setup: Setup) -> None:
        own = cast(QRDQNSpec, spec.agent.algorithm)
        self.atoms, self._kappa = own.num_quantiles, own.kappa
        super().__init__(spec, setup)

    def mean(self, numbers: Tensor) -> Tensor:
        return numbers.mean(-1)

    def target(
        self, reward: Tensor, discount: Tensor, next_outputs: Tensor, next_q_select: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        best = of_action(next_outputs, next_q_select.argmax(-1), self.atoms)
        return quantile_target(reward, discount, best), {}

    def row_loss(
        self, outputs: Tensor, action: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        quantiles = of_action(outputs, action, self.atoms)
        loss = quantile_huber_loss(quantiles, target, self._kappa)
        return loss, quantiles.mean(-1), loss
