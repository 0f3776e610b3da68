"""Output heads ("tails"): one Linear per output, and an optional free log-std vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from slm_lab.agent.net.activation import make_activation
from slm_lab.spec import Problem, SpecError


def make_tails(
    in_dim: int, out_dims: Sequence[int], activation: str | Sequence[str | None] | None
) -> nn.Module:
    """One head is a Sequential, several are a list of them: the layout of existing checkpoints."""
    names = (
        [activation] * len(out_dims)
        if activation is None or isinstance(activation, str)
        else activation
    )
    if len(names) != len(out_dims):
        fix = (
            f"found {len(names)} for a net with {len(out_dims)} head(s); give one per head. Where "
            "actor and critic differ: actor_out_layer_activation, critic_out_layer_activation."
        )
        raise SpecError([Problem("agent.net.out_layer_activation", fix)])
    heads = [_head(in_dim, out_dim, name) for out_dim, name in zip(out_dims, names, strict=True)]
    return heads[0] if len(heads) == 1 else nn.ModuleList(heads)


def apply_tails(tails: nn.Module, features: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if isinstance(tails, nn.ModuleList):
        return tuple(head(features) for head in tails)
    return (tails(features),)


def dueling(value: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """Q = V + A - mean A (Wang et al. 2016, eq. 9). value [N, 1], advantage [N, A]."""
    return value + advantage - advantage.mean(-1, keepdim=True)


def _head(in_dim: int, out_dim: int, activation: str | None) -> nn.Sequential:
    head = nn.Sequential(nn.Linear(in_dim, out_dim))
    if activation is not None:
        head.append(make_activation(activation))
    return head
