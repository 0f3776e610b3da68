"""Asymmetric actor-critic (Pinto et al. 2018): a critic may know more than the policy it judges.

Both read the same rows; the last `Spaces.privileged` columns are the critic's, the others the
policy's. Without privileged columns both see everything.
"""

from __future__ import annotations

from torch import Tensor


def seen_by_policy(obs: Tensor, privileged: int) -> Tensor:
    return obs[..., :-privileged] if privileged else obs


def seen_by_critic(obs: Tensor, privileged: int) -> Tensor:
    return obs[..., -privileged:] if privileged else obs
