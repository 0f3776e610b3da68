"""Optimisers, learning-rate schedulers and losses, as `agent.net` names them.

The names that torch knows are held here as data, so that a spec is checked without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from slm_lab.spec.block import (
    Block,
    FreeMapping,
    gather_kwargs,
    invalid,
    is_number,
    shown,
    spec_key,
)
from slm_lab.spec.error import did_you_mean

LOSSES = {
    name.lower(): name
    for name in [
        "BCELoss",
        "BCEWithLogitsLoss",
        "CrossEntropyLoss",
        "HuberLoss",
        "KLDivLoss",
        "L1Loss",
        "MSELoss",
        "NLLLoss",
        "PoissonNLLLoss",
        "SmoothL1Loss",
        "SoftMarginLoss",
    ]
}
"""Lower-case loss name -> class name in torch.nn."""

REDUCTIONS = ("mean", "sum")
LOSS_KWARGS: Mapping[str, Mapping[str, bool | float]] = {
    "CrossEntropyLoss": {"label_smoothing": 0.0},
    "HuberLoss": {"delta": 1.0},
    "KLDivLoss": {"log_target": False},
    "PoissonNLLLoss": {"log_input": True, "full": False, "eps": 1e-8},
    "SmoothL1Loss": {"beta": 1.0},
}
"""Loss name -> the kwargs it takes beside `reduction`, with torch's defaults."""

_ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
_RMSPROP = {
    "lr": 1e-2,
    "alpha": 0.99,
    "eps": 1e-8,
    "weight_decay": 0.0,
    "momentum": 0.0,
    "centered": False,
}
OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    "Adam": {**_ADAM, "amsgrad": False},
    "AdamW": {**_ADAM, "weight_decay": 1e-2, "amsgrad": False},
    "GlobalAdam": {**_ADAM, "amsgrad": False},
    "RMSprop": _RMSPROP,
    "GlobalRMSprop": _RMSPROP,
    "SGD": {
        "lr": 1e-3,
        "momentum": 0.0,
        "dampening": 0.0,
        "weight_decay": 0.0,
        "nesterov": False,
    },
    "Adagrad": {
        "lr": 1e-2,
        "lr_decay": 0.0,
        "weight_decay": 0.0,
        "initial_accumulator_value": 0.0,
        "eps": 1e-10,
    },
    "Adamax": {**_ADAM, "lr": 2e-3},
    "NAdam": {**_ADAM, "lr": 2e-3, "momentum_decay": 4e-3, "decoupled_weight_decay": False},
    "RAdam": {**_ADAM, "decoupled_weight_decay": False},
    "Adadelta": {"lr": 1.0, "rho": 0.9, "eps": 1e-6, "weight_decay": 0.0},
}
"""Optimiser name -> the kwargs it takes with torch's defaults (test_net.py compares the two)."""

# A learning rate beyond this is a lost minus sign in the exponent, not a choice.
_MAX_LR = 10.0

SCHEDULERS = frozenset(
    [
        "LinearToZero",
        "LinearToMin",
        "ConstantLR",
        "CosineAnnealingLR",
        "CosineAnnealingWarmRestarts",
        "CyclicLR",
        "ExponentialLR",
        "LinearLR",
        "MultiStepLR",
        "OneCycleLR",
        "PolynomialLR",
        "StepLR",
    ]
)
_REFUSED_SCHEDULERS = {
    "ReduceLROnPlateau": "steps on a validation metric, which reinforcement learning has not",
    "LambdaLR": "needs a Python function, which a spec cannot hold",
    "MultiplicativeLR": "needs a Python function, which a spec cannot hold",
    "ChainedScheduler": "needs other schedulers as objects, which a spec cannot hold",
    "SequentialLR": "needs other schedulers as objects, which a spec cannot hold",
}


class OptimSpec(Block):
    """An optimiser; `kwargs` holds every argument it takes, defaults filled in."""

    name: str = spec_key("Adam", "Class in torch.optim, or GlobalAdam, GlobalRMSprop.")
    kwargs: FreeMapping = spec_key({}, "Arguments; written beside the name.")

    @property
    def lr(self) -> float:
        return float(self.kwargs["lr"])

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = gather_kwargs(cls, {"name": "Adam", **data})
        name = data["name"]
        if not isinstance(name, str) or name not in OPTIMIZERS:
            near = did_you_mean(str(name), OPTIMIZERS)
            raise invalid(f"found {shown(name)}; unknown optimizer. {near}", key="name")
        defaults = OPTIMIZERS[name]
        for key, value in data["kwargs"].items():
            if key not in defaults:
                raise invalid(f"unknown key for {name}. {did_you_mean(key, defaults)}", key=key)
            _check_optimizer_value(key, value, defaults[key])
        given = {key: value for key, value in data["kwargs"].items() if value is not None}
        if "betas" in given:
            given["betas"] = tuple(given["betas"])
        return {"name": name, "kwargs": {**defaults, **given}}


def _check_optimizer_value(key: str, value: Any, default: object) -> None:
    if value is None:
        return
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise invalid(f"found {shown(value)}; expected true or false", key=key)
    elif isinstance(default, tuple):
        ok = isinstance(value, list | tuple) and len(value) == 2
        if not (ok and all(is_number(item) and 0 <= item < 1 for item in value)):
            raise invalid(f"found {shown(value)}; expected two numbers in [0, 1)", key=key)
    elif not is_number(value) or value < 0:
        raise invalid(f"found {shown(value)}; expected a number, 0 or more", key=key)
    elif key == "lr" and value > _MAX_LR:
        raise invalid(f"found {shown(value)}; expected at most {_MAX_LR:g}, such as 1e-3", key=key)


class SchedulerSpec(Block):
    """A learning-rate scheduler: ours depend on the frame, torch's are stepped once per update."""

    name: str = Field(description="LinearToZero, LinearToMin, or a torch.optim.lr_scheduler class.")
    kwargs: FreeMapping = spec_key({}, "Arguments; written beside the name.")

    @model_validator(mode="before")
    @classmethod
    def _check(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = gather_kwargs(cls, data)
        name = data.get("name")
        if isinstance(name, str) and name in _REFUSED_SCHEDULERS:
            raise invalid(f"{name} {_REFUSED_SCHEDULERS[name]}. Use LinearToZero.", key="name")
        if not isinstance(name, str) or name not in SCHEDULERS:
            near = did_you_mean(str(name), SCHEDULERS)
            raise invalid(f"found {shown(name)}; unknown scheduler. {near}", key="name")
        if name in ("LinearToZero", "LinearToMin"):
            data["kwargs"] = _linear_kwargs(name, data["kwargs"])
        return data


def _linear_kwargs(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {"frame": None} if name == "LinearToZero" else {"frame": None, "min_factor": 0.1}
    for key in given:
        if key not in defaults:
            raise invalid(f"unknown key for {name}. {did_you_mean(key, defaults)}", key=key)
    kwargs = {**defaults, **given}
    if not is_number(kwargs["frame"]) or kwargs["frame"] <= 0:
        raise invalid(
            f"found {shown(kwargs['frame'])}; expected the frame at which {name} ends, "
            "usually env.max_frame",
            key="frame",
        )
    factor = kwargs.get("min_factor", 0.1)
    if not is_number(factor) or not 0 <= factor <= 1:
        raise invalid(f"found {shown(factor)}; expected a number from 0 to 1", key="min_factor")
    return kwargs


class LossSpec(Block):
    """The regression loss of values; `name` is the class name in torch.nn."""

    name: str = spec_key("MSELoss", "Loss class in torch.nn, in any case.")
    kwargs: FreeMapping = spec_key({}, "Arguments; written beside the name.")

    @model_validator(mode="before")
    @classmethod
    def _canonical(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = gather_kwargs(cls, {"name": "MSELoss", **data})
        name = str(data["name"]).lower()
        if name not in LOSSES:
            near = did_you_mean(str(data["name"]), LOSSES.values())
            raise invalid(f"found {shown(data['name'])}; unknown loss. {near}", key="name")
        for key, value in data["kwargs"].items():
            _check_loss_value(LOSSES[name], key, value)
        return {**data, "name": LOSSES[name]}


def _check_loss_value(loss: str, key: str, value: Any) -> None:
    if key == "reduction":
        if value not in REDUCTIONS:
            raise invalid(f"found {shown(value)}; expected `mean` or `sum`", key=key)
        return
    defaults = LOSS_KWARGS.get(loss, {})
    if key not in defaults:
        near = did_you_mean(key, [*defaults, "reduction"])
        raise invalid(f"unknown key for {loss}. {near}", key=key)
    if isinstance(defaults[key], bool):
        if not isinstance(value, bool):
            raise invalid(f"found {shown(value)}; expected true or false", key=key)
    elif key == "label_smoothing":
        if not is_number(value) or not 0 <= value <= 1:
            raise invalid(f"found {shown(value)}; expected a number from 0 to 1", key=key)
    elif not is_number(value) or not 0 < value < float("inf"):
        raise invalid(f"found {shown(value)}; expected a number above 0", key=key)
