"""C51 (Bellemare et al. 2017): the net says how likely each of some returns is, as logits.

Rainbow (Hessel et al. 2018) is C51 with double selection, n-step returns, priorities, and a net
that is dueling and noisy.
"""

from __future__ import annotations

from typing import cast

import torch
from loguru import logger
from torch import Tensor

from slm_lab.agent.algorithm.base import Setup
from slm_lab.agent.algorithm.distributional import (
    DistributionalDQN,
    cross_entropy,
    expectation,
    of_action,
    project,
)
from slm_lab.spec import Spec
from slm_lab.spec.algorithm.c51 import C51Spec
from slm_lab.types import Metrics, ReplayBatch

MANY = 0.1
"""Share of an update's rows with a target beyond the support of which the user is told."""


def categorical_target(
    reward: Tensor, discount: Tensor, next_probs: Tensor, support: Tensor
) -> Tensor:
    """Probabilities [N, K] of r + discount * z on the support z [K], eq. 7."""
    atoms = reward.unsqueeze(-1) + discount.unsqueeze(-1) * support
    return project(next_probs, atoms, support)


def kl_divergence(logits: Tensor, target: Tensor) -> Tensor:
    """sum_k target_k (log target_k - log softmax(logits)_k): both [N, K] -> [N]."""
    entropy: Tensor = -torch.xlogy(target, target).sum(-1)
    return cross_entropy(logits, target) - entropy


class C51(DistributionalDQN):
    """DQN on probabilities. The priority of a row is its KL divergence, as Rainbow's."""

    def __init__(self, spec: Spec, setup: Setup) -> None:
        self._range = cast(C51Spec, spec.agent.algorithm)
        self.atoms = self._range.num_atoms
        self._has_told = False
        super().__init__(spec, setup)

    def update(self, batch: ReplayBatch, frame: int) -> Metrics:
        metrics = super().update(batch, frame)
        for key, bound in (("v_max", self._range.v_max), ("v_min", self._range.v_min)):
            share = metrics.values[f"beyond_{key}"]
            if share > MANY and not self._has_told:
                self._has_told = True
                logger.warning(
                    f"agent.algorithm.{key}: at frame {frame} the targets of {share:.0%} of the "
                    f"rows lie beyond {bound:g}, where all returns look alike. Set {key} further "
                    "out, or make rewards smaller by env.reward_scale."
                )
        return metrics

    @property
    def support(self) -> Tensor:
        """The returns [K] that have a probability; computed, as no graph holds a tensor."""
        own = self._range
        return torch.linspace(own.v_min, own.v_max, self.atoms, device=self._setup.device)

    def mean(self, numbers: Tensor) -> Tensor:
        return expectation(numbers, self.support)

    def target(
        self, reward: Tensor, discount: Tensor, next_outputs: Tensor, next_q_select: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        logits = of_action(next_outputs, next_q_select.argmax(-1), self.atoms)
        target = categorical_target(reward, discount, logits.softmax(-1), self.support)
        mean, own = reward + discount * self.mean(logits), self._range
        slack = 1e-3 * (own.v_max - own.v_min)  # for the rounding of a mean at the edge
        above, below = mean > own.v_max + slack, mean < own.v_min - slack
        return target, {"beyond_v_max": above.float().mean(), "beyond_v_min": below.float().mean()}

    def row_loss(
        self, outputs: Tensor, action: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        logits = of_action(outputs, action, self.atoms)
        divergence = kl_divergence(logits.detach(), target)
        return cross_entropy(logits, target), self.mean(logits), divergence
