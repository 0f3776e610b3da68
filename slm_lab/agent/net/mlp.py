"""MLPNet and DuelingMLPNet: Linear layers on a flat vector; and the output heads of all nets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from slm_lab.agent.net.init import init_weights, make_activation
from slm_lab.spec import Problem, SpecError

if TYPE_CHECKING:
    from slm_lab.spec import DuelingMLPNetSpec, MLPNetSpec


class MLPNet(nn.Module):
    """Body of Linear layers, then one Linear per entry of `out_dims`.

    With `log_std_dim` the net also owns a free `log_std` vector, returned as a last output
    broadcast over the batch.
    """

    def __init__(
        self,
        spec: MLPNetSpec,
        obs_shape: tuple[int, ...],
        out_dims: Sequence[int],
        log_std_dim: int | None = None,
    ) -> None:
        super().__init__()
        in_dim = math.prod(obs_shape)
        self.model = nn.Sequential(*body_layers(spec, in_dim))
        features = spec.hid_layers[-1] if spec.hid_layers else in_dim
        self.tails = make_tails(features, out_dims, spec.out_layer_activation)
        init_weights(self, spec.init_fn, spec.hid_layers_activation)
        if log_std_dim is not None:
            self.log_std = nn.Parameter(torch.full((log_std_dim,), float(spec.log_std_init or 0.0)))

    def forward(self, obs: Tensor) -> tuple[Tensor, ...]:
        """obs [N, *obs_shape] -> one [N, out_dim] per head."""
        features = self.model(obs.flatten(1).float())
        outputs = apply_tails(self.tails, features)
        if hasattr(self, "log_std"):
            outputs = (*outputs, self.log_std.expand(obs.shape[0], -1))
        return outputs


class DuelingMLPNet(nn.Module):
    """Q = V + A - mean A: one stream for the state, one for the actions (Wang et al. 2016)."""

    def __init__(
        self,
        spec: DuelingMLPNetSpec,
        obs_shape: tuple[int, ...],
        out_dims: Sequence[int],
        log_std_dim: int | None = None,
    ) -> None:
        super().__init__()
        if len(out_dims) != 1:
            problem = Problem(
                "agent.net.type", "a dueling net has one head of Q values. Use MLPNet."
            )
            raise SpecError([problem])
        in_dim = math.prod(obs_shape)
        self.model_body = nn.Sequential(*body_layers(spec, in_dim))
        features = spec.hid_layers[-1] if spec.hid_layers else in_dim
        self.v = nn.Linear(features, 1)
        self.adv = nn.Linear(features, out_dims[0])
        init_weights(self, spec.init_fn, spec.hid_layers_activation)

    def forward(self, obs: Tensor) -> tuple[Tensor, ...]:
        features = self.model_body(obs.flatten(1).float())
        return (dueling(self.v(features), self.adv(features)),)


def body_layers(spec: MLPNetSpec | DuelingMLPNetSpec, in_dim: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for width in spec.hid_layers:
        layers.append(nn.Linear(in_dim, width))
        if spec.batch_norm:
            layers.append(nn.BatchNorm1d(width))
        elif spec.layer_norm:
            layers.append(nn.LayerNorm(width))
        layers.append(make_activation(spec.hid_layers_activation))
        in_dim = width
    return layers


def make_tails(
    in_dim: int, out_dims: Sequence[int], activation: str | Sequence[str | None] | None
) -> nn.Module:
    """Build heads; one is a Sequential, several a list of them, as in existing checkpoints."""
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


def apply_tails(tails: nn.Module, features: Tensor) -> tuple[Tensor, ...]:
    if isinstance(tails, nn.ModuleList):
        return tuple(head(features) for head in tails)
    return (tails(features),)


def dueling(value: Tensor, advantage: Tensor) -> Tensor:
    """Q = V + A - mean A (Wang et al. 2016, eq. 9). value [N, 1], advantage [N, A]."""
    return value + advantage - advantage.mean(-1, keepdim=True)


def _head(in_dim: int, out_dim: int, activation: str | None) -> nn.Sequential:
    head = nn.Sequential(nn.Linear(in_dim, out_dim))
    if activation is not None:
        head.append(make_activation(activation))
    return head
