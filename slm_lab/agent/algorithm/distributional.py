"""Distributions of returns: quantiles, or probabilities of atoms; and a DQN that learns them.

Quantiles: QR-DQN (Dabney et al. 2018), TQC (Kuznetsov et al. 2020). Atoms: C51 (Bellemare et al.
2017); two-hot and HL-Gauss targets for a scalar return (Farebrother et al. 2024).
"""

from __future__ import annotations

import torch
from torch import Tensor

from slm_lab.agent.algorithm.dqn import DQN
from slm_lab.agent.net.rows import FORBIDDEN


def of_action(outputs: Tensor, action: Tensor, atoms: int) -> Tensor:
    """The numbers [N, K] of one action [N] out of those of all actions [N, A * K]."""
    each = outputs.view(len(action), -1, atoms)
    return each.gather(1, action.view(-1, 1, 1).expand(-1, 1, atoms)).squeeze(1)


def quantile_huber_loss(quantiles: Tensor, target: Tensor, kappa: float = 1.0) -> Tensor:
    """Quantile Huber loss, eq. 10 of Dabney et al. 2018: quantiles [N, K], target [N, M] -> [N].

    Summed over quantiles, averaged over the samples of the target, which carry equal weight.
    """
    count = quantiles.shape[-1]
    tau = (torch.arange(count, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / count
    error = target.unsqueeze(-2) - quantiles.unsqueeze(-1)  # [N, K, M]
    size = error.abs()
    huber = torch.where(size <= kappa, 0.5 * error.square(), kappa * (size - 0.5 * kappa))
    weight = (tau.unsqueeze(-1) - (error < 0).to(tau.dtype)).abs()
    return (weight * huber / kappa).mean(-1).sum(-1)


def project(probs: Tensor, atoms: Tensor, support: Tensor) -> Tensor:
    """Move probabilities [N, M] of atoms [N, M] onto a support of K equal steps -> [N, K].

    Each atom is clamped to the support and shared between its two neighbours in proportion to its
    nearness, eq. 7 of Bellemare et al. 2017.
    """
    step = support[1] - support[0]
    inside = torch.minimum(torch.maximum(atoms, support[0]), support[-1])
    distance = (inside.unsqueeze(-2) - support.unsqueeze(-1)).abs() / step  # [N, K, M]
    return ((1 - distance).clamp_min(0) * probs.unsqueeze(-2)).sum(-1)


def two_hot(value: Tensor, support: Tensor) -> Tensor:
    """All probability on the two atoms around each value [N], with that mean -> [N, K]."""
    return project(torch.ones_like(value).unsqueeze(-1), value.unsqueeze(-1), support)


def hl_gauss(value: Tensor, support: Tensor, sigma: float) -> Tensor:
    """Histogram of a Gauss curve around each value [N], one bin around each atom -> [N, K].

    The standard deviation is `sigma` steps of the support; the tails beyond it are cut off and the
    rest is normalised. Values outside are clamped to the support.
    """
    step = support[1] - support[0]
    edges = torch.cat([support - step / 2, support[-1:] + step / 2])
    inside = torch.minimum(torch.maximum(value, support[0]), support[-1])
    cumulative: Tensor = torch.special.ndtr((edges - inside.unsqueeze(-1)) / (sigma * step))
    mass = cumulative.diff(dim=-1)
    return mass / mass.sum(-1, keepdim=True)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """-sum_k target_k log softmax(logits)_k: both [..., K] -> [...]."""
    return -(target * logits.log_softmax(-1)).sum(-1)


def expectation(logits: Tensor, support: Tensor) -> Tensor:
    """Mean of the atoms under softmax(logits) [..., K] -> [...]."""
    return (logits.softmax(-1) * support).sum(-1)


class DistributionalDQN(DQN):
    """A DQN whose net gives several numbers (`atoms`) of each action; a subclass says what they are
    by their `mean`, their `target` and their loss."""

    def q_value(self, outputs: Tensor) -> Tensor:
        """Outputs [N, A * K] of the net -> Q values [N, A]; that of a forbidden action stays so."""
        numbers = outputs.view(-1, outputs.shape[-1] // self.atoms, self.atoms)
        mean = self.mean(numbers)
        if not self._setup.spaces.mask:
            return mean
        return torch.where(numbers[..., 0] == FORBIDDEN, FORBIDDEN, mean)

    def mean(self, numbers: Tensor) -> Tensor:
        """Mean return [..., A] of what the net says [..., A, K]."""
        raise NotImplementedError
