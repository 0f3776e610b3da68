"""Linear layers with weight normalisation (Salimans & Kingma 2016), plain and lazy."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin


class WeightNormLinear(nn.Module):
    """y = g * v x / ||v|| + b: length and direction of each row are learned apart."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.out_features = out_features
        self.direction = nn.Parameter(torch.empty(out_features, in_features))
        self.length = nn.Parameter(torch.ones(out_features))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        if in_features:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.direction, a=5**0.5)
        with torch.no_grad():
            self.length.copy_(self.direction.norm(dim=1))

    def forward(self, x: Tensor) -> Tensor:
        norm = self.direction.norm(dim=1, keepdim=True).clamp_min(1e-12)
        weight = self.direction * (self.length.unsqueeze(1) / norm)
        return nn.functional.linear(x, weight, self.bias)


class LazyWeightNormLinear(LazyModuleMixin, WeightNormLinear):
    """WeightNormLinear that learns its input width from the first input."""

    cls_to_become = WeightNormLinear

    def __init__(self, out_features: int, bias: bool = True) -> None:
        super().__init__(0, out_features, bias)
        self.direction = nn.UninitializedParameter()  # type: ignore[assignment]

    def initialize_parameters(self, x: Tensor) -> None:
        if self.has_uninitialized_params():
            self.direction.materialize((self.out_features, x.shape[-1]))  # type: ignore[attr-defined]
            self.reset_parameters()
