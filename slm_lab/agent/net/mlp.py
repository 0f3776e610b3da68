"""MLPNet: Linear layers on a flat vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from slm_lab.agent.net.activation import make_activation
from slm_lab.agent.net.heads import apply_tails, make_tails
from slm_lab.agent.net.init import init_weights

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

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """obs [N, *obs_shape] -> one [N, out_dim] per head."""
        features = self.model(obs.flatten(1).float())
        outputs = apply_tails(self.tails, features)
        if hasattr(self, "log_std"):
            outputs = (*outputs, self.log_std.expand(obs.shape[0], -1))
        return outputs


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
