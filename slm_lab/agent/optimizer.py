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
    scalars: tuple[str, ...] = ()  # slots that hold one number, as `step` does

    def init(self, parameters: Tensor) -> Slots:
        slots = {name: torch.zeros_like(parameters) for name in self.slot_names}
        numbers = ("step", *self.scalars)
        return {name: torch.zeros((), device=parameters.device) for name in numbers} | slots


def make_optimizer(spec: OptimSpec) -> Optimizer:
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


def adagrad(options: Mapping[str, Any]) -> Optimizer:
    """Adagrad (Duchi et al. 2011)."""
    lr_decay, eps = options.get("lr_decay", 0.0), options.get("eps", 1e-10)
    decay, start = options.get("weight_decay", 0.0), options.get("initial_accumulator_value", 0.0)

    def update(
        p: Tensor, grad: Tensor, slots: Slots, lr: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Slots]:
        if mask is not None:
            grad = grad + decay * mask * p
        total = slots["sum"] + grad * grad
        move = grad / ((total + start).sqrt() + eps)
        return p - lr / (1 + slots["step"] * lr_decay) * move, {
            "step": slots["step"] + 1,
            "sum": total,
        }

    return Optimizer(("sum",), update, decays=bool(decay))


def adadelta(options: Mapping[str, Any]) -> Optimizer:
    """Adadelta (Zeiler 2012): steps in the units of the parameters, lr is a factor."""
    rho, eps = options.get("rho", 0.9), options.get("eps", 1e-6)
    decay = options.get("weight_decay", 0.0)

    def update(
        p: Tensor, grad: Tensor, slots: Slots, lr: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Slots]:
        if mask is not None:
            grad = grad + decay * mask * p
        square = rho * slots["square_avg"] + (1 - rho) * grad * grad
        delta = (slots["acc_delta"] + eps).sqrt() / (square + eps).sqrt() * grad
        moved = rho * slots["acc_delta"] + (1 - rho) * delta * delta
        new = {"step": slots["step"] + 1, "square_avg": square, "acc_delta": moved}
        return p - lr * delta, new

    return Optimizer(("square_avg", "acc_delta"), update, decays=bool(decay))


def adamax(options: Mapping[str, Any]) -> Optimizer:
    """Adam with the infinity norm (Kingma & Ba 2015, section 7)."""
    beta1, beta2 = options.get("betas", (0.9, 0.999))
    eps, decay = options.get("eps", 1e-8), options.get("weight_decay", 0.0)

    def update(
        p: Tensor, grad: Tensor, slots: Slots, lr: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Slots]:
        if mask is not None:
            grad = grad + decay * mask * p
        step = slots["step"] + 1
        mean = slots["exp_avg"].lerp(grad, 1 - beta1)
        largest = torch.maximum(beta2 * slots["exp_inf"], grad.abs() + eps)
        new = {"step": step, "exp_avg": mean, "exp_inf": largest}
        return p - (lr / (1 - beta1**step)) * mean / largest, new

    return Optimizer(("exp_avg", "exp_inf"), update, decays=bool(decay))


def nadam(options: Mapping[str, Any]) -> Optimizer:
    """Adam with Nesterov momentum (Dozat 2016)."""
    beta1, beta2 = options.get("betas", (0.9, 0.999))
    eps, decay = options.get("eps", 1e-8), options.get("weight_decay", 0.0)
    momentum_decay = options.get("momentum_decay", 4e-3)
    decoupled = options.get("decoupled_weight_decay", False)

    def momentum(step: Tensor) -> Tensor:
        factor: Tensor = beta1 * (1 - 0.5 * 0.96 ** (step * momentum_decay))
        return factor

    def update(
        p: Tensor, grad: Tensor, slots: Slots, lr: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Slots]:
        if mask is not None and decoupled:
            p = p * (1 - lr * decay * mask)
        elif mask is not None:
            grad = grad + decay * mask * p
        step = slots["step"] + 1
        now, following = momentum(step), momentum(step + 1)
        # The product of all momenta, as a sum of logs so that the slot can start at zero.
        log_product = slots["log_mu_product"] + now.log()
        product = log_product.exp()
        mean = slots["exp_avg"].lerp(grad, 1 - beta1)
        square = beta2 * slots["exp_avg_sq"] + (1 - beta2) * grad * grad
        denominator = (square / (1 - beta2**step)).sqrt() + eps
        ahead = (1 - now) / (1 - product) * grad + following / (1 - product * following) * mean
        new = {"step": step, "log_mu_product": log_product, "exp_avg": mean, "exp_avg_sq": square}
        return p - lr * ahead / denominator, new

    return Optimizer(
        ("exp_avg", "exp_avg_sq"), update, decays=bool(decay), scalars=("log_mu_product",)
    )


def radam(options: Mapping[str, Any]) -> Optimizer:
    """Adam that trusts its second moment only once it is known well enough (Liu et al. 2020)."""
    beta1, beta2 = options.get("betas", (0.9, 0.999))
    eps, decay = options.get("eps", 1e-8), options.get("weight_decay", 0.0)
    decoupled = options.get("decoupled_weight_decay", False)
    longest = 2 / (1 - beta2) - 1

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
        exact = step.double()  # two thousand minus almost two thousand, at the start
        left = 1 - beta2**exact
        length = longest - 2 * exact * beta2**exact / left
        variance = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        adapted = (variance.clamp(min=0) * left).sqrt().to(p.dtype) / (square.sqrt() + eps)
        scale = torch.where(length > 5, adapted, torch.ones_like(adapted))
        new = {"step": step, "exp_avg": mean, "exp_avg_sq": square}
        return p - lr / (1 - beta1**step) * mean * scale, new

    return Optimizer(("exp_avg", "exp_avg_sq"), update, decays=bool(decay))


_BY_NAME: dict[str, Callable[[Mapping[str, Any]], Optimizer]] = {
    "Adam": adam,
    "AdamW": adamw,
    "RMSprop": rmsprop,
    "SGD": sgd,
    "Adagrad": adagrad,
    "Adadelta": adadelta,
    "Adamax": adamax,
    "NAdam": nadam,
    "RAdam": radam,
    # The lock-free shared-memory variants of old specs: the same rules; workers share the vectors.
    "GlobalAdam": adam,
    "GlobalRMSprop": rmsprop,
}
