"""Activations by their `torch.nn` name, case-insensitive, as specs spell them."""

from __future__ import annotations

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
    """The name under which torch knows the gain of an activation."""
    return _GAIN_NAMES.get((activation or "").lower(), "linear")


def gain(activation: str | None) -> float:
    return nn.init.calculate_gain(gain_name(activation))  # type: ignore[arg-type]
