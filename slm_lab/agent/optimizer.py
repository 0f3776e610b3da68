"""Optimisers as pure functions on one flat parameter vector.

`torch.optim` steps a list of tensors from Python; here a step is arithmetic on two or three long
vectors, so that it can be part of the same compiled graph as the gradient. The update rules and
defaults are those of `torch.optim` (tested against it), with one deviation: weight decay applies
to matrices only. Decaying biases, norm layers or a free log-std is never meant: it would pull the
exploration noise towards a standard deviation of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slm_lab.spec import Problem, SpecError

if TYPE_CHECKING:
    from slm_lab.spec import OptimSpec

Slots = dict[str, Tensor]
"""An optimiser's memory: a step count and vectors as long as the parameters."""

UpdateRule = Callable[[Tensor, Tensor, Slots, Tensor, Tensor | None], tuple[Tensor, Slots]]
"""(parameters, gradient, slots, lr, mask of what decays) -> (new parameters, new slots)."""


@dataclass(frozen=True)
class Optimizer:
    slot_names: tuple[str, ...]
    update: UpdateRule
    decays: bool = False

    def init(self, parameters: Tensor) -> Slots:
        slots = {name: torch.zeros_like(parameters) for name in self.slot_names}
        return {"step": torch.zeros((), device=parameters.device)} | slots


def make_optimizer(spec: OptimSpec) -> Optimizer:
    if spec.name not in _BY_NAME:
        fix = f"{spec.name} has no compiled form here. Use {', '.join(_BY_NAME)}."
        raise SpecError([Problem("agent.net.optim_spec.name", fix)])
    return _BY_NAME[spec.name](spec.kwargs)


def adam(options: Mapping[str, Any], *, decoupled: bool = False) -> Optimizer:
    """Adam (Kingma & Ba 2015); decoupled weight decay makes it AdamW (Loshchilov & Hutter 2019)."""
    beta1, beta2 = options.get("betas", (0.9, 0.999))
    eps = options.get("eps", 1e-8)
    decay = options.get("weight_decay", 0.01 if decoupled else 0.0)
    amsgrad = options.get("amsgrad", False)

    def update(
        p: Tensor, grad: Tensor, slots: Slots, lr: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Slots]:
        if mask is not None and decoupled:
            p = p * (1 - lr * decay * mask)
        elif mask is not None:
            grad = grad + decay * mask * p
        step = slots["step"] + 1
        mean = slots["exp_avg"].lerp(grad, 1 - beta1)
        square = beta2 * slots["exp_avg_sq"] + (1 - beta2) * grad * grad
        new = {"step": step, "exp_avg": mean, "exp_avg_sq": square}
        if amsgrad:
            square = torch.maximum(slots["max_exp_avg_sq"], square)
            new["max_exp_avg_sq"] = square
        # Bias corrections stay scalars: one division per vector element is enough.
        denominator = square.sqrt() / (1 - beta2**step).sqrt() + eps
        return p - (lr / (1 - beta1**step)) * mean / denominator, new

    names = ("exp_avg", "exp_avg_sq") + (("max_exp_avg_sq",) if amsgrad else ())
    return Optimizer(names, update, decays=bool(decay))


def adamw(options: Mapping[str, Any]) -> Optimizer:
    return adam(options, decoupled=True)


def rmsprop(options: Mapping[str, Any]) -> Optimizer:
    """RMSprop (Hinton), epsilon outside the root as in torch."""
    alpha, eps = options.get("alpha", 0.99), options.get("eps", 1e-8)
    decay, momentum = options.get("weight_decay", 0.0), options.get("momentum", 0.0)
    centered = options.get("centered", False)

    def update(
        p: Tensor, grad: Tensor, slots: Slots, lr: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Slots]:
        if mask is not None:
            grad = grad + decay * mask * p
        square = alpha * slots["square_avg"] + (1 - alpha) * grad * grad
        new = {"step": slots["step"] + 1, "square_avg": square}
        if centered:
            new["grad_avg"] = slots["grad_avg"].lerp(grad, 1 - alpha)
            square = square - new["grad_avg"].square()
        move = grad / (square.sqrt() + eps)
        if momentum:
            move = new["momentum_buffer"] = momentum * slots["momentum_buffer"] + move
        return p - lr * move, new

    names = ["square_avg"] + ["grad_avg"] * centered + ["momentum_buffer"] * bool(momentum)
    return Optimizer(tuple(names), update, decays=bool(decay))


def sgd(options: Mapping[str, Any]) -> Optimizer:
    decay, momentum = options.get("weight_decay", 0.0), options.get("momentum", 0.0)
    dampening, nesterov = options.get("dampening", 0.0), options.get("nesterov", False)

    def update(
        p: Tensor, grad: Tensor, slots: Slots, lr: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Slots]:
        if mask is not None:
            grad = grad + decay * mask * p
        new = {"step": slots["step"] + 1}
        if momentum:
            # torch starts the buffer at the first gradient, undampened.
            first = slots["step"] == 0
            damped = torch.where(first, grad, (1 - dampening) * grad)
            buffer = new["momentum_buffer"] = momentum * slots["momentum_buffer"] + damped
            grad = grad + momentum * buffer if nesterov else buffer
        return p - lr * grad, new

    names = ("momentum_buffer",) if momentum else ()
    return Optimizer(names, update, decays=bool(decay))


_BY_NAME: dict[str, Callable[[Mapping[str, Any]], Optimizer]] = {
    "Adam": adam,
    "AdamW": adamw,
    "RMSprop": rmsprop,
    "SGD": sgd,
    # The lock-free shared-memory variants of old specs: the same rules; workers share the vectors.
    "GlobalAdam": adam,
    "GlobalRMSprop": rmsprop,
}
