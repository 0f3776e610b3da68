"""Optimisers, learning-rate schedulers and losses, as `agent.net` names them.

The names that torch knows are held here as data, so that a spec is checked without torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from slm_lab.spec.block import (
    Block,
    FreeMapping,
    Key,
    expect,
    gather_kwargs,
    invalid,
    is_number,
    shown,
)
from slm_lab.spec.error import did_you_mean
from slm_lab.spec.trust import is_own

_LOSSES = """
BCELoss BCEWithLogitsLoss CrossEntropyLoss HuberLoss KLDivLoss L1Loss MSELoss NLLLoss PoissonNLLLoss
SmoothL1Loss SoftMarginLoss
"""
LOSSES = {name.lower(): name for name in _LOSSES.split()}
"""Lower-case loss name -> class name in torch.nn."""

LOSS_KWARGS: Mapping[str, Mapping[str, bool | float]] = {
    "CrossEntropyLoss": {"label_smoothing": 0.0},
    "HuberLoss": {"delta": 1.0},
    "KLDivLoss": {"log_target": False},
    "PoissonNLLLoss": {"log_input": True, "full": False, "eps": 1e-8},
    "SmoothL1Loss": {"beta": 1.0},
}
"""Loss name -> the kwargs it takes beside `reduction`, with torch's defaults."""

_DECAY = {"weight_decay": 0.0}
_ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, **_DECAY}
_RMSPROP = {"lr": 1e-2, "alpha": 0.99, "eps": 1e-8, **_DECAY, "momentum": 0.0, "centered": False}
OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    "Adam": {**_ADAM, "amsgrad": False},
    "AdamW": {**_ADAM, "weight_decay": 1e-2, "amsgrad": False},
    "GlobalAdam": {**_ADAM, "amsgrad": False},
    "RMSprop": _RMSPROP,
    "GlobalRMSprop": _RMSPROP,
    "SGD": {"lr": 1e-3, "momentum": 0.0, "dampening": 0.0, **_DECAY, "nesterov": False},
    "Adagrad": {
        "lr": 1e-2,
        "lr_decay": 0.0,
        **_DECAY,
        "initial_accumulator_value": 0.0,
        "eps": 1e-10,
    },
    "Adamax": {**_ADAM, "lr": 2e-3},
    "NAdam": {**_ADAM, "lr": 2e-3, "momentum_decay": 4e-3, "decoupled_weight_decay": False},
    "RAdam": {**_ADAM, "decoupled_weight_decay": False},
    "Adadelta": {"lr": 1.0, "rho": 0.9, "eps": 1e-6, **_DECAY},
}
"""Optimiser name -> the kwargs it takes with torch's defaults (test_net.py compares the two)."""

OWN_SCHEDULERS: Mapping[str, Mapping[str, Any]] = {
    "LinearToZero": {"frame": None},
    "LinearToMin": {"frame": None, "min_factor": 0.1},
}
"""Our own learning-rate schedulers, and the arguments they take with their defaults."""

_SCHEDULERS = """
ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts CyclicLR ExponentialLR LinearLR MultiStepLR
OneCycleLR PolynomialLR StepLR
"""
SCHEDULERS = frozenset([*OWN_SCHEDULERS, *_SCHEDULERS.split()])
_REFUSED_SCHEDULERS = {
    "ReduceLROnPlateau": "steps on a validation metric, which reinforcement learning has not",
    "LambdaLR": "needs a Python function, which a spec cannot hold",
    "MultiplicativeLR": "needs a Python function, which a spec cannot hold",
    "ChainedScheduler": "needs other schedulers as objects, which a spec cannot hold",
    "SequentialLR": "needs other schedulers as objects, which a spec cannot hold",
}

# A learning rate beyond this is a lost minus sign in the exponent, not a choice.
_MAX_LR = 10.0


class _TorchClass(Block):
    """A class of torch, or of the user's own, by its `name`; in a file its arguments stand beside
    the name."""

    kind: ClassVar[str]  # in messages

    name: str
    kwargs: FreeMapping = Key({}, "Arguments; written beside the name.")

    @model_validator(mode="before")
    @classmethod
    def _check(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = gather_kwargs(cls, data)
        field = cls.model_fields["name"]
        fallback = None if field.is_required() else field.default
        name = data.get("name", fallback)
        if is_own(name):  # what it takes is checked once it may be imported
            return {"name": name, "kwargs": data["kwargs"]}
        name, kwargs = cls._checked(name, data["kwargs"])
        return {"name": name, "kwargs": kwargs}

    @classmethod
    def _checked(cls, name: Any, kwargs: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Check a name and its arguments, and return both as they are kept."""
        raise NotImplementedError

    @classmethod
    def _check_name(cls, name: Any, known: Iterable[str]) -> None:
        if name not in [*known]:
            near = did_you_mean(str(name), known)
            raise invalid(f"found {shown(name)}; unknown {cls.kind}. {near}", key="name")


class OptimSpec(_TorchClass):
    """An optimiser; `kwargs` holds every argument it takes, defaults filled in."""

    kind: ClassVar[str] = "optimizer"
    name: str = Key("Adam", "Class in torch.optim, or GlobalAdam, GlobalRMSprop.")

    @property
    def lr(self) -> float:
        return float(self.kwargs.get("lr", 1e-3))

    @classmethod
    def _checked(cls, name: Any, kwargs: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        cls._check_name(name, OPTIMIZERS)
        defaults = OPTIMIZERS[name]
        for key, value in kwargs.items():
            _check_key(name, key, defaults)
            if value is not None:
                _check_optimizer_value(key, value, defaults[key])
        given = {key: value for key, value in kwargs.items() if value is not None}
        if "betas" in given:
            given["betas"] = tuple(given["betas"])
        return name, {**defaults, **given}


class SchedulerSpec(_TorchClass):
    """A learning-rate scheduler: ours depend on the frame, torch's are stepped once per update."""

    kind: ClassVar[str] = "scheduler"
    name: str = Field(description="LinearToZero, LinearToMin, or a torch.optim.lr_scheduler class.")

    @classmethod
    def _checked(cls, name: Any, kwargs: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        if isinstance(name, str) and name in _REFUSED_SCHEDULERS:
            raise invalid(f"{name} {_REFUSED_SCHEDULERS[name]}. Use LinearToZero.", key="name")
        cls._check_name(name, SCHEDULERS)
        if name not in OWN_SCHEDULERS:
            return name, kwargs
        for key in kwargs:
            _check_key(name, key, OWN_SCHEDULERS[name])
        kwargs = {**OWN_SCHEDULERS[name], **kwargs}
        frame, factor = kwargs["frame"], kwargs.get("min_factor", 0.0)
        end = f"the frame at which {name} ends, usually env.max_frame"
        expect(is_number(frame) and frame > 0, frame, end, "frame")
        is_share = is_number(factor) and 0 <= factor <= 1
        expect(is_share, factor, "a number from 0 to 1", "min_factor")
        return name, kwargs


class LossSpec(_TorchClass):
    """The regression loss of values; `name` is the class name in torch.nn."""

    kind: ClassVar[str] = "loss"
    name: str = Key("MSELoss", "Loss class in torch.nn, in any case.")

    @classmethod
    def _checked(cls, name: Any, kwargs: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        loss = LOSSES.get(str(name).lower(), name)
        cls._check_name(loss, LOSSES.values())
        defaults = {**LOSS_KWARGS.get(loss, {}), "reduction": "mean"}
        for key, value in kwargs.items():
            _check_key(loss, key, defaults)
            _check_loss_value(key, value, defaults[key])
        return loss, kwargs


def _check_key(owner: str, key: str, known: Iterable[str]) -> None:
    if key not in known:
        raise invalid(f"unknown key for {owner}. {did_you_mean(key, known)}", key=key)


def _check_optimizer_value(key: str, value: Any, default: object) -> None:
    if isinstance(default, bool):
        expect(isinstance(value, bool), value, "true or false", key)
    elif isinstance(default, tuple):
        is_pair = isinstance(value, list | tuple) and len(value) == 2
        fits = is_pair and all(is_number(item) and 0 <= item < 1 for item in value)
        expect(fits, value, "two numbers in [0, 1)", key)
    else:
        expect(is_number(value) and value >= 0, value, "a number, 0 or more", key)
        fits = key != "lr" or value <= _MAX_LR
        expect(fits, value, f"at most {_MAX_LR:g}, such as 1e-3", key)


def _check_loss_value(key: str, value: Any, default: object) -> None:
    if key == "reduction":
        expect(value in ("mean", "sum"), value, "`mean` or `sum`", key)
    elif isinstance(default, bool):
        expect(isinstance(value, bool), value, "true or false", key)
    elif key == "label_smoothing":
        expect(is_number(value) and 0 <= value <= 1, value, "a number from 0 to 1", key)
    else:
        expect(is_number(value) and 0 < value < float("inf"), value, "a number above 0", key)
