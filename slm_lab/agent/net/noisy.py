"""Noisy nets (Fortunato et al. 2018): learned noise on weights explores in place of epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slm_lab.spec import NetSpec

MakeLinear = Callable[[int, int], nn.Linear]
"""(inputs, outputs) -> a fully connected layer."""


class NoisyLinear(nn.Linear):
    """y = (W + S * E) x + b + s * e, eq. 9, with factorised Gaussian noise, eq. 10 and 11.

    E is the outer product of e [out] and of noise on the inputs [in]. Both lie in `noise`, which is
    data: empty in the module itself, which so computes W x + b, and given by whoever calls the net
    under other tensors (`NetState.with_noise`). Noise [in + out] is shared by all rows; noise
    [N, in + out] gives each row weights of its own.
    """

    noise: Tensor

    def __init__(self, in_features: int, out_features: int, std: float = 0.5) -> None:
        super().__init__(in_features, out_features)  # W and b begin as in section 3.2
        sigma = std / math.sqrt(in_features)
        self.weight_sigma = nn.Parameter(torch.full_like(self.weight, sigma))
        self.bias_sigma = nn.Parameter(torch.full_like(self.bias, sigma))
        self.register_buffer("noise", torch.zeros(0), persistent=False)

    @property
    def noise_size(self) -> int:
        return self.in_features + self.out_features

    def forward(self, x: Tensor) -> Tensor:
        if self.noise.numel() == 0:
            return super().forward(x)
        sizes = [self.in_features, self.out_features]
        inputs, outputs = torch.split(self.noise, sizes, -1)
        if self.noise.dim() == 1:
            weight = self.weight + self.weight_sigma * (outputs.unsqueeze(1) * inputs)
            return F.linear(x, weight, self.bias + self.bias_sigma * outputs)
        # The same, as (S * E) x = e * (S (inputs * x)), without weights for each row.
        noisy = F.linear(x * inputs, self.weight_sigma, self.bias_sigma)
        return super().forward(x) + outputs * noisy


def linear_class(spec: NetSpec) -> MakeLinear:
    """The class of the fully connected layers of a net, its heads among them."""
    return partial(NoisyLinear, std=spec.noisy_std) if spec.noisy else nn.Linear
