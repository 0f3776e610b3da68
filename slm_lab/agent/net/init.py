"""Activations by name, and initial weights: the `init_fn` of a spec, orthogonal output heads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

_BY_LOWER_NAME = {
    name.lower(): cls
    for name, cls in {**vars(nn.modules.activation), "Identity": nn.Identity}.items()
    if isinstance(cls, type) and issubclass(cls, nn.Module) and cls is not nn.Module
}

# calculate_gain knows these; the others get the gain of a linear layer.
_GAIN_NAMES = {
    "tanh": "tanh",
    "relu": "relu",
    "leakyrelu": "leaky_relu",
    "selu": "selu",
    "sigmoid": "sigmoid",
}


def make_activation(name: str | None) -> nn.Module:
    """`"tanh"` -> `nn.Tanh()`; None is the identity."""
    return nn.Identity() if name is None else _BY_LOWER_NAME[name.lower()]()


def gain_name(activation: str | None) -> str:
    """Torch's name for the gain of an activation."""
    return _GAIN_NAMES.get((activation or "").lower(), "linear")


def gain(activation: str | None) -> float:
    return nn.init.calculate_gain(gain_name(activation))  # type: ignore[arg-type]


_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def init_weights(module: nn.Module, init_fn: str | None, activation: str | None) -> None:
    """Apply a `torch.nn.init` function to every weight, heads included; biases become zero.

    None leaves PyTorch's own initialisation.
    """
    if init_fn is None:
        return
    fill = _filler(init_fn, activation)
    for layer in module.modules():
        if isinstance(layer, _WEIGHTED):
            fill(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.RNNBase):
            for name, parameter in layer.named_parameters():
                if "weight" in name:
                    fill(parameter)
                else:
                    nn.init.zeros_(parameter)


def init_head(head: nn.Module, std: float | None) -> None:
    """Orthogonal output layer with gain `std`: 0.01 keeps a fresh policy near uniform."""
    if std is None:
        return
    for layer in head.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, gain=std)
            nn.init.zeros_(layer.bias)


def _filler(init_fn: str, activation: str | None) -> Callable[[torch.Tensor], object]:
    function = getattr(nn.init, init_fn)
    if init_fn.startswith("kaiming"):
        # torch defines kaiming for rectifiers only; other activations use the relu form.
        name = gain_name(activation)
        nonlinearity = name if name in ("relu", "leaky_relu") else "relu"
        return lambda weight: function(weight, nonlinearity=nonlinearity)
    if init_fn.startswith(("orthogonal", "xavier")):
        return lambda weight: function(weight, gain=gain(activation))
    return lambda weight: function(weight)
