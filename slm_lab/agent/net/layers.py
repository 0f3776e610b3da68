"""Layers that torch.nn has not, plain and lazy: batch renormalisation, weight normalisation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin


class BatchRenorm1d(nn.Module):
    """Batch renormalisation (Ioffe 2017), as CrossQ uses it.

    Normalises by batch statistics, corrected towards the running ones:
    x_hat = (x - mu_batch) / sigma_batch * r + d, with r = sigma_batch / sigma_run and
    d = (mu_batch - mu_run) / sigma_run, both clamped and without gradient. The clamps open linearly
    from plain batch norm (r = 1, d = 0) to (r_max, d_max) over `warmup_steps` training batches. In
    eval mode the running statistics are used. Any rank of at least two, channels on axis 1.
    """

    running_mean: Tensor
    running_var: Tensor
    steps: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.01,
        r_max: float = 3.0,
        d_max: float = 5.0,
        warmup_steps: int = 10_000,
    ) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.r_max, self.d_max, self.warmup_steps = r_max, d_max, warmup_steps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        shape = (1, -1) + (1,) * (x.dim() - 2)
        if self.training:
            mean, std, scale, shift = self._batch_statistics(x)
        else:
            mean, std = self.running_mean, (self.running_var + self.eps).sqrt()
            scale, shift = torch.ones_like(mean), torch.zeros_like(mean)
        gain, bias = self.weight * scale / std, self.weight * shift + self.bias
        mean, gain, bias = _table(mean, gain, bias)
        return (x - mean.view(shape)) * gain.view(shape) + bias.view(shape)

    def _batch_statistics(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean, var = _mean_and_variance(x)
        std = (var + self.eps).sqrt()
        with torch.no_grad():
            progress = self.steps / self.warmup_steps if self.warmup_steps else self.steps + 1
            openness = progress.clamp(max=1.0)
            r_max = 1 + (self.r_max - 1) * openness
            d_max = self.d_max * openness
            running_std = (self.running_var + self.eps).sqrt()
            scale = torch.minimum(torch.maximum(std / running_std, 1 / r_max), r_max)
            shift = ((mean - self.running_mean) / running_std).clamp(-self.d_max, self.d_max)
            shift = torch.minimum(torch.maximum(shift, -d_max), d_max)
            self.running_mean.copy_(self.running_mean.lerp(mean, self.momentum))
            self.running_var.copy_(self.running_var.lerp(var, self.momentum))
            self.steps.add_(1)
        return mean, std, scale.detach(), shift.detach()


def _mean_and_variance(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance per channel in one pass; `torch.var_mean` takes twice as long.

    A difference of squares is exact enough around a value of the batch itself, however far from
    zero the batch lies; what they are measured from changes neither variance nor gradient.
    """
    axes = [axis for axis in range(x.dim()) if axis != 1]
    pivot = x.detach()[(slice(1), slice(None)) + (slice(1),) * len(axes[1:])]
    offset = x - pivot
    mean, square = _table(offset.mean(axes), offset.square().mean(axes))
    return pivot.flatten() + mean, (square - mean.square()).clamp(min=0.0)


def _table(*vectors: Tensor) -> tuple[Tensor, ...]:
    """Force vectors and their gradients into memory, as rows of one table.

    Otherwise the compiler computes them again, roots and quotients included, at every element of
    the batch.
    """
    return torch.stack(vectors).unbind()


class LazyBatchRenorm1d(LazyModuleMixin, BatchRenorm1d):
    """BatchRenorm1d that learns its width from the first input."""

    cls_to_become = BatchRenorm1d

    def __init__(self, **options: Any) -> None:
        super().__init__(0, **options)
        self.weight = nn.UninitializedParameter()  # type: ignore[assignment]
        self.bias = nn.UninitializedParameter()  # type: ignore[assignment]
        self.running_mean = nn.UninitializedBuffer()
        self.running_var = nn.UninitializedBuffer()

    def initialize_parameters(self, x: Tensor) -> None:
        if not self.has_uninitialized_params():
            return
        width = x.shape[1]
        with torch.no_grad():
            for parameter, value in ((self.weight, 1.0), (self.bias, 0.0)):
                parameter.materialize((width,))  # type: ignore[attr-defined]
                parameter.fill_(value)
            for buffer, value in ((self.running_mean, 0.0), (self.running_var, 1.0)):
                buffer.materialize((width,))  # type: ignore[attr-defined]
                buffer.fill_(value)


class WeightNormLinear(nn.Module):
    """y = g * v x / ||v|| + b: length and direction of each row are learned apart.

    Salimans & Kingma 2016.
    """

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


OWN_LAYERS: dict[str, type[nn.Module]] = {
    cls.__name__: cls
    for cls in (BatchRenorm1d, LazyBatchRenorm1d, WeightNormLinear, LazyWeightNormLinear)
}
