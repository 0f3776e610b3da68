"""MLPNet and DuelingMLPNet: Linear layers on a flat vector; and the output heads of all nets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from slm_lab.agent.net.init import init_weights, make_activation
from slm_lab.spec import Problem, SpecError

if TYPE_CHECKING:
    from slm_lab.spec import DuelingMLPNetSpec, MLPNetSpec, NetSpec

Shape = tuple[int, ...]


class HeadedNet(nn.Module):
    """A body, then one Linear per entry of `out_dims`.

    `make_body` builds the body and returns the width of what `features` computes with it. With
    `log_std_dim` the net also owns a free `log_std` vector, returned as a last output broadcast
    over the batch.
    """

    def __init__(
        self, spec: NetSpec, obs_shape: Shape, out_dims: Shape, log_std_dim: int | None = None
    ) -> None:
        super().__init__()
        width = self.make_body(spec, obs_shape)
        self.make_heads(width, out_dims, spec.out_layer_activation)
        init_weights(self, spec.init_fn, spec.hid_layers_activation)
        if log_std_dim is not None:
            self.log_std = nn.Parameter(torch.full((log_std_dim,), float(spec.log_std_init or 0.0)))

    def make_body(self, spec: Any, obs_shape: Shape) -> int:
        raise NotImplementedError

    def features(self, obs: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, obs: Tensor) -> tuple[Tensor, ...]:
        """obs [N, *obs_shape] -> one [N, out_dim] per head."""
        features = self.features(obs)
        outputs = self.heads(features)
        if hasattr(self, "log_std"):
            outputs = (*outputs, self.log_std.expand(features.shape[0], -1))
        return outputs

    def make_heads(
        self, width: int, out_dims: Shape, activation: str | Sequence[str | None] | None
    ) -> None:
        """One head is a Sequential, several a list of them, as in existing checkpoints."""
        if activation is None or isinstance(activation, str):
            activation = [activation] * len(out_dims)
        if len(activation) != len(out_dims):
            fix = (
                f"found {len(activation)} for a net with {len(out_dims)} head(s); give one per "
                "head. Where actor and critic differ: actor_out_layer_activation, "
                "critic_out_layer_activation."
            )
            raise SpecError([Problem("agent.net.out_layer_activation", fix)])
        heads = [nn.Sequential(nn.Linear(width, out_dim)) for out_dim in out_dims]
        for head, name in zip(heads, activation, strict=True):
            if name is not None:
                head.append(make_activation(name))
        self.tails = heads[0] if len(heads) == 1 else nn.ModuleList(heads)

    def heads(self, features: Tensor) -> tuple[Tensor, ...]:
        if isinstance(self.tails, nn.ModuleList):
            return tuple(head(features) for head in self.tails)
        return (self.tails(features),)


class DuelingNet(HeadedNet):
    """Q = V + A - mean A: one stream for the state, one for the actions (Wang et al. 2016)."""

    def make_heads(self, width: int, out_dims: Shape, activation: object) -> None:
        if len(out_dims) != 1:
            fix = "a dueling net has one head of Q values. Use MLPNet or ConvNet."
            raise SpecError([Problem("agent.net.type", fix)])
        self.v = nn.Linear(width, 1)
        self.adv = nn.Linear(width, out_dims[0])

    def heads(self, features: Tensor) -> tuple[Tensor, ...]:
        """Eq. 9, from value [N, 1] and advantage [N, A]."""
        value, advantage = self.v(features), self.adv(features)
        return (value + advantage - advantage.mean(-1, keepdim=True),)


class MLPNet(HeadedNet):
    """Body of Linear layers on a flat vector."""

    def make_body(self, spec: MLPNetSpec, obs_shape: Shape) -> int:
        self.model = _body(spec, math.prod(obs_shape))
        return spec.hid_layers[-1] if spec.hid_layers else math.prod(obs_shape)

    def features(self, obs: Tensor) -> Tensor:
        features: Tensor = self.model(obs.flatten(1).float())
        return features


class DuelingMLPNet(DuelingNet):
    """MLPNet with a value and an advantage stream instead of heads."""

    def make_body(self, spec: DuelingMLPNetSpec, obs_shape: Shape) -> int:
        self.model_body = _body(spec, math.prod(obs_shape))
        return spec.hid_layers[-1] if spec.hid_layers else math.prod(obs_shape)

    def features(self, obs: Tensor) -> Tensor:
        features: Tensor = self.model_body(obs.flatten(1).float())
        return features


def _body(spec: MLPNetSpec | DuelingMLPNetSpec, in_dim: int) -> nn.Sequential:
    norm = nn.BatchNorm1d if spec.batch_norm else nn.LayerNorm if spec.layer_norm else None
    return linear_layers(in_dim, spec.hid_layers, spec.hid_layers_activation, norm)


def linear_layers(
    in_dim: int, widths: Shape, activation: str, norm: Callable[[int], nn.Module] | None = None
) -> nn.Sequential:
    """Linear layers of these widths, each followed by its norm, if there is one, and activation."""
    layers: list[nn.Module] = []
    for width in widths:
        layers.append(nn.Linear(in_dim, width))
        if norm is not None:
            layers.append(norm(width))
        layers.append(make_activation(activation))
        in_dim = width
    return nn.Sequential(*layers)
