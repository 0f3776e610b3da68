"""`agent.net`: one frozen class per net type, and the optimiser, scheduler and loss beside it.

The names that torch knows are held here as data, so that a spec is checked without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from slm_lab.spec.block import (
    Block,
    Count,
    Flag,
    Fraction,
    FreeMapping,
    NonNegative,
    Number,
    Positive,
    SmallCount,
    Whole,
    gather_kwargs,
    invalid,
    shown,
)
from slm_lab.spec.error import did_you_mean

ACTIVATIONS = {
    name.lower(): name
    for name in [
        "CELU",
        "ELU",
        "GELU",
        "Hardshrink",
        "Hardsigmoid",
        "Hardswish",
        "Hardtanh",
        "Identity",
        "LeakyReLU",
        "LogSigmoid",
        "LogSoftmax",
        "Mish",
        "PReLU",
        "RReLU",
        "ReLU",
        "ReLU6",
        "SELU",
        "SiLU",
        "Sigmoid",
        "Softmax",
        "Softplus",
        "Softshrink",
        "Softsign",
        "Tanh",
        "Tanhshrink",
    ]
}
"""Lower-case activation name -> class name in torch.nn."""

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

INIT_FNS = frozenset(
    [
        "kaiming_normal_",
        "kaiming_uniform_",
        "normal_",
        "ones_",
        "orthogonal_",
        "trunc_normal_",
        "uniform_",
        "xavier_normal_",
        "xavier_uniform_",
        "zeros_",
    ]
)
"""The torch.nn.init functions that need no argument beyond the gain."""

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

    name: str = Field(
        default="Adam", description="Class in torch.optim, or GlobalAdam, GlobalRMSprop."
    )
    kwargs: FreeMapping = Field(default={}, description="Arguments; written beside the name.")

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
        if not (ok and all(_is_number(item) and 0 <= item < 1 for item in value)):
            raise invalid(f"found {shown(value)}; expected two numbers in [0, 1)", key=key)
    elif not _is_number(value) or value < 0:
        raise invalid(f"found {shown(value)}; expected a number, 0 or more", key=key)
    elif key == "lr" and value > _MAX_LR:
        raise invalid(f"found {shown(value)}; expected at most {_MAX_LR:g}, such as 1e-3", key=key)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class SchedulerSpec(Block):
    """A learning-rate scheduler: ours depend on the frame, torch's are stepped once per update."""

    name: str = Field(description="LinearToZero, LinearToMin, or a torch.optim.lr_scheduler class.")
    kwargs: FreeMapping = Field(default={}, description="Arguments; written beside the name.")

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
    if not _is_number(kwargs["frame"]) or kwargs["frame"] <= 0:
        raise invalid(
            f"found {shown(kwargs['frame'])}; expected the frame at which {name} ends, "
            "usually env.max_frame",
            key="frame",
        )
    factor = kwargs.get("min_factor", 0.1)
    if not _is_number(factor) or not 0 <= factor <= 1:
        raise invalid(f"found {shown(factor)}; expected a number from 0 to 1", key="min_factor")
    return kwargs


class LossSpec(Block):
    """The regression loss of values; `name` is the class name in torch.nn."""

    name: str = Field(default="MSELoss", description="Loss class in torch.nn, in any case.")
    kwargs: FreeMapping = Field(default={}, description="Arguments; written beside the name.")

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
        return {**data, "name": LOSSES[name]}


def _activation(value: object) -> str:
    folded = value.lower().replace("_", "") if isinstance(value, str) else ""
    if folded not in ACTIVATIONS:
        near = did_you_mean(str(value), ACTIVATIONS)
        raise invalid(f"found {shown(value)}; unknown activation. {near}")
    return folded


def _activations(value: object) -> object:
    """One name for all heads, or one name or null for each."""
    if isinstance(value, list | tuple):
        return tuple(None if item is None else _activation(item) for item in value)
    return None if value is None else _activation(value)


def _init_fn(value: object) -> object:
    if value is None:
        return None
    name = f"{str(value).rstrip('_')}_"
    if name not in INIT_FNS:
        raise invalid(f"found {shown(value)}; unknown. {did_you_mean(str(value), INIT_FNS)}")
    return name


def _gpu(value: object) -> object:
    if value is None or value == "auto":
        return None
    return not (value is False or value == "false")


def _null_when_empty(value: object) -> object:
    return None if value == {} else value


def _conv_layers(value: object) -> object:
    """Rows of [channels, kernel, stride, padding, dilation], the last three optional."""
    if not isinstance(value, list | tuple) or not value:
        raise invalid(f"found {shown(value)}; expected a list of rows such as [32, 8, 4, 0, 1]")
    return tuple(_conv_layer(row, index) for index, row in enumerate(value))


def _conv_layer(row: object, index: int) -> tuple[Any, ...]:
    if not isinstance(row, list | tuple) or not 2 <= len(row) <= 5:
        expected = "[channels, kernel, stride, padding, dilation]"
        raise invalid(f"found {shown(row)}; expected {expected}", key=str(index))
    cells = [*row, *(1, 0, 1)[len(row) - 2 :]]
    pairs = [tuple(cell) if isinstance(cell, list) else cell for cell in cells]
    for position, cell in enumerate(pairs):
        sizes = cell if isinstance(cell, tuple) and position > 0 else (cell,)
        least = 0 if position == 3 else 1
        whole = all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
        if not whole or len(sizes) > 2 or min(sizes) < least:
            raise invalid(
                f"found {shown(cell)}; expected a whole number of at least {least}, or two",
                key=f"{index}.{position}",
            )
    return tuple(pairs)


def _cell_type(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


Activation = Annotated[
    str,
    BeforeValidator(_activation),
    WithJsonSchema({"type": "string", "examples": sorted(ACTIVATIONS)}),
]
Widths = tuple[SmallCount, ...]
ConvLayers = Annotated[tuple[tuple[int | tuple[int, int], ...], ...], BeforeValidator(_conv_layers)]


class _NetKeys(Block):
    """Keys that every net type takes."""

    hid_layers_activation: Activation = Field(
        default="relu", description="Activation of hidden layers, as relu."
    )
    out_layer_activation: Annotated[
        str | tuple[str | None, ...] | None, BeforeValidator(_activations)
    ] = Field(default=None, description="Activation of the output, or a list with one per head.")
    init_fn: Annotated[
        str | None,
        BeforeValidator(_init_fn),
        WithJsonSchema({"enum": [*sorted(INIT_FNS), None]}),
    ] = Field(
        default=None,
        description="Weight initialisation, a torch.nn.init name; null is torch's default.",
    )
    normalize: Flag = Field(
        default=False, description="Divide images by 255; no effect on vectors."
    )
    clip_grad_val: Positive | None = Field(
        default=None, description="Largest global gradient norm."
    )
    loss_spec: LossSpec = Field(default_factory=LossSpec, description="Regression loss of values.")
    optim_spec: OptimSpec = Field(
        default_factory=OptimSpec, description="Optimiser and its arguments."
    )
    lr_scheduler_spec: Annotated[SchedulerSpec | None, BeforeValidator(_null_when_empty)] = Field(
        default=None, description="Learning-rate scheduler; null is constant."
    )
    update_type: Literal["replace", "polyak"] | None = Field(
        default=None,
        description="How target nets follow the online nets: polyak for SAC, replace for DQN "
        "unless given.",
    )
    update_frequency: Positive | None = Field(
        default=None, description="Frames between copies, for replace; 1,000 unless given."
    )
    polyak_coef: Fraction | None = Field(
        default=None,
        description="Share of the online weights, for polyak; 0.005 unless given. Per step of "
        "the envs for the DQN family, per update of the actor for SAC.",
    )
    gpu: Annotated[
        bool | None, BeforeValidator(_gpu), WithJsonSchema({"enum": ["auto", True, False, None]})
    ] = Field(default=None, description="Use CUDA: true, false, or null (auto) for when present.")
    cuda_id: Whole | None = Field(
        default=None, description="CUDA device; chosen at run time when null."
    )
    log_std_init: Number | None = Field(
        default=None, description="Start of a state-independent log std; null makes it a head."
    )
    actor_init_std: NonNegative | None = Field(
        default=None, description="Orthogonal gain of the policy head, after init_fn."
    )
    critic_init_std: NonNegative | None = Field(
        default=None, description="Orthogonal gain of the value head, after init_fn."
    )
    shared: Flag = Field(default=False, description="Actor and critic share one net.")
    use_same_optim: Flag = Field(default=False, description="The critic uses the whole actor spec.")


class MLPNetSpec(_NetKeys):
    """Fully connected layers."""

    type: Literal["MLPNet"] = Field(description="Net type.")
    hid_layers: Widths = Field(default=(64, 64), description="Width of each hidden layer.")
    layer_norm: Flag = Field(default=False, description="LayerNorm before each activation.")
    batch_norm: Flag = Field(default=False, description="BatchNorm before each activation.")


class DuelingMLPNetSpec(_NetKeys):
    """Fully connected layers with value and advantage heads."""

    type: Literal["DuelingMLPNet"] = Field(description="Net type.")
    hid_layers: Widths = Field(default=(64, 64), description="Width of each hidden layer.")
    layer_norm: Flag = Field(default=False, description="LayerNorm before each activation.")
    batch_norm: Flag = Field(default=False, description="BatchNorm before each activation.")


class _ConvKeys(_NetKeys):
    conv_hid_layers: ConvLayers = Field(
        default=((32, 8, 4, 0, 1), (64, 4, 2, 0, 1), (64, 3, 1, 0, 1)),
        description="Rows of [channels, kernel, stride, padding, dilation].",
    )
    fc_hid_layers: Widths = Field(
        default=(512,), description="Width of each layer after the convolutions."
    )


class ConvNetSpec(_ConvKeys):
    """Convolutions, then fully connected layers."""

    type: Literal["ConvNet"] = Field(description="Net type.")
    batch_norm: Flag = Field(
        default=False, description="BatchNorm after every convolution but the first."
    )


class DuelingConvNetSpec(_ConvKeys):
    """Convolutions with value and advantage heads."""

    type: Literal["DuelingConvNet"] = Field(description="Net type.")
    batch_norm: Flag = Field(
        default=False, description="BatchNorm after every convolution but the first."
    )


class RecurrentNetSpec(_NetKeys):
    """Fully connected layers, then a recurrent cell that remembers the episode so far."""

    type: Literal["RecurrentNet"] = Field(description="Net type.")
    cell_type: Annotated[Literal["RNN", "LSTM", "GRU"], BeforeValidator(_cell_type)] = Field(
        default="GRU", description="Recurrent cell."
    )
    fc_hid_layers: Widths = Field(default=(), description="Width of each layer before the cell.")
    rnn_hidden_size: SmallCount = Field(default=64, description="Width of the cell.")
    rnn_num_layers: SmallCount = Field(default=1, description="Stacked cells.")
    bidirectional: Flag = Field(
        default=False, description="Read the last seq_len observations both ways instead."
    )
    seq_len: Count = Field(
        default=16, description="Steps of a training sequence: how far back the gradient reaches."
    )


class TorchArcNetSpec(_NetKeys):
    """A body declared layer by layer in the spec."""

    type: Literal["TorchArcNet"] = Field(description="Net type.")
    hid_layers_activation: Activation = Field(
        default="relu", description="Picks the gain of init_fn."
    )
    arc: FreeMapping | None = Field(
        default=None, description="The body: modules and the graph over them."
    )
    arc_file: str | None = Field(default=None, description="File that holds the arc instead.")

    @model_validator(mode="after")
    def _one_arc(self) -> TorchArcNetSpec:
        if (self.arc is None) == (self.arc_file is None):
            raise invalid("expected exactly one of arc and arc_file", key="arc")
        if self.arc is not None:
            for part in ("modules", "graph"):
                if not isinstance(self.arc.get(part), Mapping):
                    raise invalid(
                        f"found {shown(self.arc.get(part))}; expected a mapping", key=f"arc.{part}"
                    )
        return self


NetSpec = Annotated[
    MLPNetSpec
    | DuelingMLPNetSpec
    | ConvNetSpec
    | DuelingConvNetSpec
    | RecurrentNetSpec
    | TorchArcNetSpec,
    Field(discriminator="type"),
]

NETS: dict[str, type[Block]] = {
    "MLPNet": MLPNetSpec,
    "DuelingMLPNet": DuelingMLPNetSpec,
    "ConvNet": ConvNetSpec,
    "DuelingConvNet": DuelingConvNetSpec,
    "RecurrentNet": RecurrentNetSpec,
    "TorchArcNet": TorchArcNetSpec,
}
TARGET_KEYS = frozenset({"update_type", "update_frequency", "polyak_coef"})
HEAD_STD_KEYS = frozenset({"actor_init_std", "critic_init_std"})
"""Keys that name a head, not a net: the actor_/critic_ split leaves them alone."""

# Keys of earlier versions that shipped specs still carry and no net reads.
_FORMER_KEYS = frozenset(
    {
        "clip_grad",
        "lr_anneal_timestep",
        "lr_decay",
        "lr_decay_frequency",
        "lr_decay_min_timestep",
        "name",
    }
)
_PLAIN_KEYS = _FORMER_KEYS.union(*(model.model_fields for model in NETS.values()))
NET_KEYS = _PLAIN_KEYS.union(f"{who}_{key}" for who in ("actor", "critic") for key in _PLAIN_KEYS)
