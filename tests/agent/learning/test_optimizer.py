"""Update rules against torch.optim, on the flat vector of a matrix and a bias."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from slm_lab.agent.learning.compiler import compile_graph
from slm_lab.agent.learning.optimizer import make_optimizer
from slm_lab.spec import OptimSpec
from slm_lab.spec.optim import OPTIMIZERS

CASES: list[tuple[str, dict[str, Any]]] = [
    ("Adam", {}),
    ("Adam", {"betas": (0.8, 0.95), "eps": 1e-5}),
    ("Adam", {"weight_decay": 0.1}),
    ("Adam", {"amsgrad": True}),
    ("AdamW", {}),
    ("AdamW", {"weight_decay": 0.2, "amsgrad": True}),
    ("RMSprop", {}),
    ("RMSprop", {"alpha": 0.9, "eps": 1e-5, "weight_decay": 0.1}),
    ("RMSprop", {"centered": True}),
    ("RMSprop", {"momentum": 0.9}),
    ("RMSprop", {"centered": True, "momentum": 0.5, "weight_decay": 0.05}),
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "dampening": 0.5}),
    ("Adagrad", {}),
    ("Adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.5, "weight_decay": 0.1}),
    ("Adadelta", {"lr": 1.0}),
    ("Adadelta", {"rho": 0.8, "eps": 1e-4, "weight_decay": 0.1}),
    ("Adamax", {}),
    ("Adamax", {"betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1}),
    ("NAdam", {}),
    ("NAdam", {"momentum_decay": 0.02, "weight_decay": 0.1}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {}),
    ("RAdam", {"betas": (0.8, 0.95), "weight_decay": 0.1}),
    ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
]


def gradients(shape: tuple[int, ...], steps: int = 20) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for _ in range(steps)]


def run(
    name: str, options: dict[str, Any], start: Tensor, grads: list[Tensor], mask: Tensor
) -> Tensor:
    optimizer = make_optimizer(OptimSpec.model_validate({"name": name, **options}))
    parameters, lr = start.reshape(-1).clone(), torch.tensor(options["lr"])
    slots = optimizer.init(parameters)
    for grad in grads:
        parameters, slots = optimizer.update(parameters, grad.reshape(-1), slots, lr, mask)
    return parameters.view_as(start)


@pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{n}-{o}" for n, o in CASES])
def test_twenty_steps_equal_torch(name: str, options: dict[str, Any]) -> None:
    options = {"lr": 0.05, **options}
    start = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    theirs = start.clone().requires_grad_()
    reference = getattr(torch.optim, name)([theirs], **options)
    for grad in gradients((3, 4)):
        theirs.grad = grad.clone()
        reference.step()
    ours = run(name, options, start, gradients((3, 4)), mask=torch.ones(12))
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-5)


DECAYING = [name for name in OPTIMIZERS if not name.startswith("Global")]


@pytest.mark.parametrize("name", DECAYING)
def test_weight_decay_spares_what_the_mask_excludes(name: str) -> None:
    start, mask = torch.ones(4), torch.tensor([1.0, 1.0, 0.0, 0.0])
    still = [torch.zeros(4)] * 5
    moved = run(name, {"lr": 0.1, "weight_decay": 0.1}, start, still, mask)
    assert (moved[:2] < 1).all()
    assert moved[2:].tolist() == [1.0, 1.0]


@pytest.mark.slow
def test_rules_compile_into_what_they_are() -> None:
    rules = [
        make_optimizer(OptimSpec.model_validate({"name": name, **options}))
        for name, options in CASES
    ]
    start = torch.randn(12, generator=torch.Generator().manual_seed(1))
    keys = [list(rule.init(start)) for rule in rules]

    def step(p: Tensor, grad: Tensor, lr: Tensor, mask: Tensor, *slots: Tensor) -> list[Tensor]:
        moved, remaining = [], list(slots)
        for rule, names in zip(rules, keys, strict=True):
            own = dict(zip(names, remaining, strict=False))
            remaining = remaining[len(names) :]
            moved.append(rule.update(p, grad, own, lr, mask)[0])
        return moved

    grad, mask = gradients((12,), steps=1)[0], torch.ones(12)
    slots = [slot for rule in rules for slot in rule.init(start).values()]
    inputs = (start, grad, torch.tensor(0.05), mask, *slots)
    compiled = compile_graph(step, inputs)(*inputs)
    for ours, theirs in zip(compiled, step(*inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_an_update_leaves_its_inputs_alone() -> None:
    optimizer = make_optimizer(OptimSpec.model_validate({"name": "Adam"}))
    parameters = torch.ones(3)
    slots, untouched = optimizer.init(parameters), optimizer.init(parameters)
    optimizer.update(parameters, torch.ones(3), slots, torch.tensor(0.1), torch.ones(3))
    assert parameters.eq(1).all()
    assert all(slot.equal(untouched[name]) for name, slot in slots.items())


def test_the_lock_free_variants_follow_the_plain_rules() -> None:
    start, mask = torch.zeros(2, 2), torch.ones(4)
    for shared, plain in (("GlobalAdam", "Adam"), ("GlobalRMSprop", "RMSprop")):
        ours, theirs = (
            run(n, {"lr": 0.1}, start, gradients((2, 2)), mask) for n in (shared, plain)
        )
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_whatever_a_spec_may_name_can_be_made(name: str) -> None:
    optimizer = make_optimizer(OptimSpec.model_validate({"name": name}))
    parameters = torch.ones(3)
    slots = optimizer.init(parameters)
    _, moved = optimizer.update(parameters, torch.ones(3), slots, torch.tensor(0.1), None)
    assert moved.keys() == slots.keys()
    assert all(moved[key].shape == slots[key].shape for key in slots)
