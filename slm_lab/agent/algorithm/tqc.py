"""TQC (Kuznetsov et al. 2020): SAC with critics of quantiles, and a mixture cut off at its top.

Each critic learns quantiles of the return. The quantiles of all target critics make one mixture,
and leaving out its largest atoms bounds the value more finely than the minimum of two critics. The
policy climbs the mean of all quantiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from slm_lab.agent.algorithm.distributional import quantile_huber_loss
from slm_lab.agent.algorithm.replay_actor_critic import Values
from slm_lab.agent.algorithm.sac import SoftActorCritic, soft_target
from slm_lab.agent.algorithm.soft_return import Outputs, SoftReturn
from slm_lab.spec import Spec
from slm_lab.spec.algorithm.tqc import TQCSpec


def truncated_mixture(quantiles: Sequence[Tensor], dropped_per_net: int) -> Tensor:
    """The smallest atoms of all critics together: M of [N, K] -> [N, M * (K - dropped)].

    The set Z of eq. 9 of Kuznetsov et al. 2020, in rising order.
    """
    mixture = torch.cat(tuple(quantiles), -1)
    kept = mixture.shape[-1] - len(quantiles) * dropped_per_net
    return mixture.sort(-1).values[..., :kept]


class TruncatedQuantiles:
    """Quantiles of the return, learned from a truncated mixture of those of the next state."""

    def __init__(self, spec: TQCSpec) -> None:
        self.size, self.num_critics = spec.num_quantiles, spec.num_critics
        self._dropped = spec.top_quantiles_to_drop_per_net

    def mean(self, output: Tensor) -> Tensor:
        return output.mean(-1)

    def policy_value(self, q_values: Outputs) -> Tensor:
        return torch.stack(q_values).mean(0)

    def target(
        self, reward: Tensor, discount: Tensor, later: Outputs, log_prob: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Values]:
        """r + discount * (z - alpha log pi(a'|s')) for each atom z of the mixture, eq. 10."""
        atoms = truncated_mixture(later, self._dropped)
        row = reward.unsqueeze(-1), discount.unsqueeze(-1)
        return soft_target(*row, atoms, log_prob.unsqueeze(-1), alpha), {}

    def target_discrete(
        self, reward: Tensor, discount: Tensor, later: Outputs, log_probs: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Values]:
        raise TypeError("TQC is for continuous actions")

    def target_mean(self, target: Tensor) -> Tensor:
        return target.mean(-1)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Quantile Huber loss averaged over quantiles and atoms, eq. 12."""
        return quantile_huber_loss(output, target) / self.size


class TQC(SoftActorCritic):
    """SAC with another kind of return."""

    def _make_return(self, spec: Spec) -> SoftReturn:
        return TruncatedQuantiles(cast(TQCSpec, spec.agent.algorithm))
