"""A small MLP on a few rows, in NumPy.

Acting in a handful of envs is all overhead and hardly any arithmetic. A NumPy call costs a third of
a torch call, so for plain MLPs this is the fastest way to act, and it needs no compilation. The
weights are views of the net's own parameters: an update shows at once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import nn

from slm_lab.agent.net.mlp import MLPNet

Forward = Callable[[np.ndarray], list[np.ndarray]]

MAX_ROWS = 64
MAX_WIDTH = 256  # beyond, arithmetic weighs more than calls

_IN_PLACE: dict[type[nn.Module], Callable[[np.ndarray], object]] = {
    nn.Tanh: lambda x: np.tanh(x, out=x),
    nn.ReLU: lambda x: np.maximum(x, 0.0, out=x),
}


def numpy_forward(net: nn.Module, rows: int) -> Forward | None:
    """obs [N, ...] -> head outputs, or None where torch does it better or NumPy cannot."""
    if not isinstance(net, MLPNet) or rows > MAX_ROWS:
        return None
    tails = list(net.tails) if isinstance(net.tails, nn.ModuleList) else [net.tails]
    heads = [list(tail) for tail in tails if isinstance(tail, nn.Sequential)]
    body = [(net.model[i], net.model[i + 1]) for i in range(0, len(net.model) - 1, 2)]
    is_plain = (
        len(net.model) == 2 * len(body)
        and all(isinstance(a, nn.Linear) and type(b) in _IN_PLACE for a, b in body)
        and all(len(head) == 1 and isinstance(head[0], nn.Linear) for head in heads)
    )
    linear = [layer for layer in net.modules() if isinstance(layer, nn.Linear)]
    if not is_plain or any(max(layer.weight.shape) > MAX_WIDTH for layer in linear):
        return None
    if any(layer.weight.device.type != "cpu" for layer in linear):
        return None
    hidden = [(*_views(a), _IN_PLACE[type(b)]) for a, b in body]
    outputs = [_views(head[0]) for head in heads]
    log_std = net.log_std.numpy() if hasattr(net, "log_std") else None

    def forward(obs: np.ndarray) -> list[np.ndarray]:
        x = obs.reshape(obs.shape[0], -1)
        for weight, bias, activate in hidden:
            x = x @ weight
            x += bias
            activate(x)
        heads = [x @ weight + bias for weight, bias in outputs]
        if log_std is not None:
            # Copied, because torch warns of arrays that cannot be written, such as a broadcast.
            heads.append(np.broadcast_to(log_std, heads[0].shape).copy())
        return heads

    return forward


def _views(layer: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    assert isinstance(layer, nn.Linear)
    return layer.weight.detach().numpy().T, layer.bias.detach().numpy()
