"""What the critics of SAC say of the return that follows an action; and the categorical kind.

A critic gives `size` numbers for every action. Each kind of return has their mean, which is the Q
value; the target that the next state's critics make; and the loss of each row. Numbers are [N] for
continuous actions and [N, A] for discrete ones; distributions have one axis more.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from slm_lab.agent.algorithm.distributional import (
    cross_entropy,
    expectation,
    hl_gauss,
    project,
    two_hot,
)
from slm_lab.agent.algorithm.replay_actor_critic import Values
from slm_lab.spec.algorithm.sac import CriticSpec

Outputs = tuple[Tensor, ...]  # of each critic

_SIGMA = 0.75
"""Standard deviation of HL-Gauss in steps of the support, as Farebrother et al. 2024 advise."""


class SoftReturn(Protocol):
    """A kind of return. Targets come with metrics of their own."""

    size: int
    num_critics: int

    def mean(self, output: Tensor) -> Tensor:
        """Q values of a critic's output."""

    def policy_value(self, q_values: Outputs) -> Tensor:
        """What a policy of continuous actions climbs, from the Q values of all critics."""

    def target(
        self, reward: Tensor, discount: Tensor, later: Outputs, log_prob: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Values]:
        """Target for a continuous action, by the lower of two critics at (s', a')."""

    def target_discrete(
        self, reward: Tensor, discount: Tensor, later: Outputs, log_probs: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Values]:
        """Target for a discrete action, by the mean of two critics over all actions at s'."""

    def target_mean(self, target: Tensor) -> Tensor: ...

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Loss of each row [N]."""


class CategoricalReturn:
    """Probabilities of atoms on a fixed support, learned by cross-entropy.

    The target is the next state's distribution, moved and projected as in C51 (Bellemare et al.
    2017), or a scalar target spread over the atoms around it (Farebrother et al. 2024). What lies
    beyond the support counts as its end; `off_support` is the share of probability that did.
    """

    num_critics = 2

    def __init__(self, spec: CriticSpec, scalar: SoftReturn) -> None:
        """`scalar` makes the targets that are spread."""
        self._spec, self._scalar = spec, scalar
        self.size = spec.num_atoms

    def mean(self, output: Tensor) -> Tensor:
        return expectation(output, self._support(output))

    def policy_value(self, q_values: Outputs) -> Tensor:
        return self._scalar.policy_value(q_values)

    def target(
        self, reward: Tensor, discount: Tensor, later: Outputs, log_prob: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Values]:
        means = self.mean(later[0]), self.mean(later[1])
        if self._spec.target != "distribution":
            value, _ = self._scalar.target(reward, discount, means, log_prob, alpha)
            return self._spread(value)
        is_first = (means[0] <= means[1]).unsqueeze(-1)
        probs = torch.where(is_first, later[0], later[1]).softmax(-1)
        return self._moved(probs, reward, discount, -alpha * log_prob)

    def target_discrete(
        self, reward: Tensor, discount: Tensor, later: Outputs, log_probs: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Values]:
        """As a distribution it is the mixture over actions and critics, moved by the entropy."""
        if self._spec.target != "distribution":
            means = self.mean(later[0]), self.mean(later[1])
            value, _ = self._scalar.target_discrete(reward, discount, means, log_probs, alpha)
            return self._spread(value)
        policy = log_probs.exp()
        probs = (later[0].softmax(-1) + later[1].softmax(-1)) / 2
        mixture = (policy.unsqueeze(-1) * probs).sum(-2)
        return self._moved(mixture, reward, discount, -alpha * (policy * log_probs).sum(-1))

    def target_mean(self, target: Tensor) -> Tensor:
        return (target * self._support(target)).sum(-1)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(output, target)

    def _moved(
        self, probs: Tensor, reward: Tensor, discount: Tensor, bonus: Tensor
    ) -> tuple[Tensor, Values]:
        """r + discount * (Z + bonus) for Z with these probabilities [N, K], projected."""
        support = self._support(probs)
        shift = (reward + discount * bonus).unsqueeze(-1)
        atoms = shift + discount.unsqueeze(-1) * support
        off_support = (probs * self._is_outside(atoms)).sum(-1).mean()
        return project(probs, atoms, support), {"off_support": off_support}

    def _spread(self, value: Tensor) -> tuple[Tensor, Values]:
        support = self._support(value)
        if self._spec.target == "two_hot":
            target = two_hot(value, support)
        else:
            target = hl_gauss(value, support, _SIGMA)
        return target, {"off_support": self._is_outside(value).float().mean()}

    def _is_outside(self, value: Tensor) -> Tensor:
        return (value < self._spec.v_min) | (value > self._spec.v_max)

    def _support(self, like: Tensor) -> Tensor:
        spec = self._spec
        return torch.linspace(spec.v_min, spec.v_max, spec.num_atoms, device=like.device)
