"""Optimisers as pure functions on one flat parameter vector.

`torch.optim` steps a list of tensors from Python; here a step is arithmetic on two or three long
vectors, so that it can be part of the same compiled graph as the gradient. The update rules and
defaults are those of `torch.optim` (tested against it), with one deviation: weight decay applies
to matrices only: decaying a free log-std would pull the exploration noise towards a standard
deviation of one, and biases and norm layers are not meant either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from slm_lab.spec import OptimSpec
from slm_lab.spec.record import imported_object
from slm_lab.spec.trust import is_own

Slots = dict[str, Tensor]
"""State of an optimiser: a step count and vectors as long as the parameters."""

UpdateRule = Callable[[Tensor, Tensor, Slots, Tensor], tuple[Tensor, Slots]]
"""(parameters, gradient, slots, lr) -> (new parameters, new slots)."""


@dataclass(frozen=True)
class Optimizer:
    """An update rule and its weight decay, which is part of the gradient unless `decoupled`."""

    slot_names: tuple[str, ...]
    rule: UpdateRule
    decay: float = 0.0
    decoupled: bool = False
    scalars: Mapping[str, float] = field(default_factory=dict)  # slots of one number, and its start
    first_value: float = 0.0  # initial value of vectors

    def update(
        self, p: Tensor, grad: Tensor, slots: Slots, lr: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Slots]:
        """One step; `mask` is 1 for parameters that decay, or None without weight decay."""
        if mask is not None and self.decoupled:
            p = p * (1 - lr * self.decay * mask)
        elif mask is not None:
            grad = grad + self.decay * mask * p
        p, new = self.rule(p, grad, slots, lr)
        if "step" not in new:  # a rule of the user's own; a learner counts by it
            new = {"step": slots["step"] + 1} | new
        return p, new

    def init(self, parameters: Tensor) -> Slots:
        """Slots of the optimiser before its first step."""
        device = parameters.device
        vectors = {n: torch.full_like(parameters, self.first_value) for n in self.slot_names}
        scalars = {n: torch.tensor(value, device=device) for n, value in self.scalars.items()}
        return {"step": torch.zeros((), device=device)} | vectors | scalars


def make_optimizer(spec: OptimSpec) -> Optimizer:
    """Build an optimiser; one of the user's own is called with its keys but `lr`."""
    if is_own(spec.name):
        made: Optimizer = imported_object(spec.name)(
            **{key: value for key, value in spec.kwargs.items() if key != "lr"}
        )
        return made
    return _BY_NAME[spec.name](spec.kwargs)


def adam(options: Mapping[str, Any], *, decoupled: bool = False) -> Optimizer:
    """Adam (Kingma & Ba 2015); decoupled weight decay makes it AdamW (Loshchilov & Hutter 2019)."""
    beta1, beta2 = options.get("betas", (0.9, 0.999))
    eps = options.get("eps", 1e-8)
    decay = options.get("weight_decay", 0.01 if decoupled else 0.0)
    amsgrad = options.get("amsgrad", False)

    def bias_corrections(step: Any) -> tuple[Any, Any]:
        """Adam's bias correction of the learning rate and epsilon at a step."""
        root = (1 - beta2**step) ** 0.5
        return root / (1 - beta1**step), eps * root

    def update(p: Tensor, grad: Tensor, slots: Slots, lr: Tensor) -> tuple[Tensor, Slots]:
        step = slots["step"] + 1
        mean = slots["exp_avg"].lerp(grad, 1 - beta1)
        square = beta2 * slots["exp_avg_sq"] + (1 - beta2) * grad * grad
        new = {"step": step, "exp_avg": mean, "exp_avg_sq": square}
        if amsgrad:
            square = torch.maximum(slots["max_exp_avg_sq"], square)
            new["max_exp_avg_sq"] = square
        # Prepared one step ahead: computed here, inductor would raise the powers again for every
        # few elements of the long vectors.
        new["rate_factor"], new["eps"] = bias_corrections(step + 1)
        return p - lr * slots["rate_factor"] * mean / (square.sqrt() + slots["eps"]), new

    names = ("exp_avg", "exp_avg_sq") + (("max_exp_avg_sq",) if amsgrad else ())
    rate_factor, first_eps = bias_corrections(1)
    scalars = {"rate_factor": rate_factor, "eps": first_eps}
    return Optimizer(names, update, decay, decoupled, scalars)


def rmsprop(options: Mapping[str, Any]) -> Optimizer:
    """RMSprop (Hinton), epsilon outside the root as in torch."""
    alpha, eps = options.get("alpha", 0.99), options.get("eps", 1e-8)
    decay, momentum = options.get("weight_decay", 0.0), options.get("momentum", 0.0)
    centered = options.get("centered", False)

    def update(p: Tensor, grad: Tensor, slots: Slots, lr: Tensor) -> tuple[Tensor, Slots]:
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
    return Optimizer(tuple(names), update, decay)


def sgd(options: Mapping[str, Any]) -> Optimizer:
    decay, momentum = options.get("weight_decay", 0.0), options.get("momentum", 0.0)
    dampening, nesterov = options.get("dampening", 0.0), options.get("nesterov", False)

    def update(p: Tensor, grad: Tensor, slots: Slots, lr: Tensor) -> tuple[Tensor, Slots]:
        new = {"step": slots["step"] + 1}
        if momentum:
            # torch starts the buffer at the first gradient, undampened.
            first = slots["step"] == 0
            damped = torch.where(first, grad, (1 - dampening) * grad)
            buffer = new["momentum_buffer"] = momentum * slots["momentum_buffer"] + damped
            grad = grad + momentum * buffer if nesterov else buffer
        return p - lr * grad, new

    names = ("momentum_buffer",) if momentum else ()
    return Optimizer(names, update, decay)


def adagrad(options: Mapping[str, Any]) -> Optimizer:
    """Adagrad (Duchi et al. 2011): steps shrink with the sum of past squared gradients."""
    eps, decay, lr_decay = options["eps"], options["weight_decay"], options["lr_decay"]

    def update(p: Tensor, grad: Tensor, slots: Slots, lr: Tensor) -> tuple[Tensor, Slots]:
        total = slots["sum"] + grad * grad
        rate = lr / (1 + slots["step"] * lr_decay)
        return p - rate * grad / (total.sqrt() + eps), {"step": slots["step"] + 1, "sum": total}

    first = options["initial_accumulator_value"]
    return Optimizer(("sum",), update, decay, first_value=first)


def adadelta(options: Mapping[str, Any]) -> Optimizer:
    """Adadelta (Zeiler 2012): the scale of past steps stands in for a learning rate."""
    rho, eps, decay = options["rho"], options["eps"], options["weight_decay"]

    def update(p: Tensor, grad: Tensor, slots: Slots, lr: Tensor) -> tuple[Tensor, Slots]:
        square = rho * slots["square_avg"] + (1 - rho) * grad * grad
        move = (slots["acc_delta"] + eps).sqrt() / (square + eps).sqrt() * grad
        moved = rho * slots["acc_delta"] + (1 - rho) * move * move
        new = {"step": slots["step"] + 1, "square_avg": square, "acc_delta": moved}
        return p - lr * move, new

    return Optimizer(("square_avg", "acc_delta"), update, decay)


def adamax(options: Mapping[str, Any]) -> Optimizer:
    """Adamax (Kingma & Ba 2015, section 7.1): Adam scaled by the largest recent gradient."""
    (beta1, beta2), eps, decay = options["betas"], options["eps"], options["weight_decay"]

    def update(p: Tensor, grad: Tensor, slots: Slots, lr: Tensor) -> tuple[Tensor, Slots]:
        step = slots["step"] + 1
        mean = slots["exp_avg"].lerp(grad, 1 - beta1)
        largest = torch.maximum(beta2 * slots["exp_inf"], grad.abs() + eps)
        new = {"step": step, "exp_avg": mean, "exp_inf": largest}
        return p - (lr / (1 - beta1**step)) * mean / largest, new

    return Optimizer(("exp_avg", "exp_inf"), update, decay)


def nadam(options: Mapping[str, Any]) -> Optimizer:
    """NAdam (Dozat 2016): Adam that looks ahead by the momentum of the next step."""
    (beta1, beta2), eps, decay = options["betas"], options["eps"], options["weight_decay"]
    slowness, decoupled = options["momentum_decay"], options["decoupled_weight_decay"]

    def momentum(step: Tensor) -> Tensor:
        return torch.mul(1 - 0.5 * 0.96 ** (step * slowness), beta1)

    def update(p: Tensor, grad: Tensor, slots: Slots, lr: Tensor) -> tuple[Tensor, Slots]:
        step = slots["step"] + 1
        now, ahead = momentum(step.double()), momentum(step.double() + 1)
        product = slots["mu_product"] * now
        mean = slots["exp_avg"].lerp(grad, 1 - beta1)
        square = beta2 * slots["exp_avg_sq"] + (1 - beta2) * grad * grad
        denominator = (square / (1 - beta2 ** step.double())).sqrt() + eps
        of_grad = lr * (1 - now) / (1 - product)
        of_mean = lr * ahead / (1 - product * ahead)
        new = {"step": step, "mu_product": product, "exp_avg": mean, "exp_avg_sq": square}
        return p - (of_grad * grad + of_mean * mean) / denominator, new

    names = "exp_avg", "exp_avg_sq"
    return Optimizer(names, update, decay, decoupled, scalars={"mu_product": 1.0})


def radam(options: Mapping[str, Any]) -> Optimizer:
    """RAdam (Liu et al. 2020): plain momentum until the variance of Adam's step is tractable."""
    (beta1, beta2), eps, decay = options["betas"], options["eps"], options["weight_decay"]
    decoupled = options["decoupled_weight_decay"]
    longest = 2 / (1 - beta2) - 1

    def update(p: Tensor, grad: Tensor, slots: Slots, lr: Tensor) -> tuple[Tensor, Slots]:
        step = slots["step"] + 1
        mean = slots["exp_avg"].lerp(grad, 1 - beta1)
        square = beta2 * slots["exp_avg_sq"] + (1 - beta2) * grad * grad
        # In double: two numbers near 2000 are subtracted to decide about a 5.
        time = step.double()
        correction = 1 - beta2**time
        length = longest - 2 * time * beta2**time / correction
        share = (length - 4) * (length - 2) * longest
        rectify = (share / ((longest - 4) * (longest - 2) * length)).clamp_min(0).sqrt()
        adaptive = rectify * correction.sqrt() / (square.sqrt() + eps)
        scale = torch.where(length > 5, adaptive, torch.ones_like(square))
        new = {"step": step, "exp_avg": mean, "exp_avg_sq": square}
        return p - (lr / (1 - beta1**time)) * mean * scale, new

    return Optimizer(("exp_avg", "exp_avg_sq"), update, decay, decoupled)


_BY_NAME: dict[str, Callable[[Mapping[str, Any]], Optimizer]] = {
    "Adam": adam,
    "AdamW": partial(adam, decoupled=True),
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
