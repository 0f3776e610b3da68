"""Base spec class and record of nets, with the activations and initialisations of torch as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from slm_lab.spec.block import (
    Block,
    Flag,
    Fraction,
    NonNegative,
    Number,
    Positive,
    SmallCount,
    Whole,
    invalid,
    shown,
    spec_key,
)
from slm_lab.spec.error import did_you_mean
from slm_lab.spec.optim import LossSpec, OptimSpec, SchedulerSpec
from slm_lab.spec.record import Record

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

REPLACE = {"update_type": "replace", "update_frequency": 1000}
POLYAK = {"update_type": "polyak", "polyak_coef": 0.005}
"""The two ways in which a target net follows, as a spec writes them."""
TARGET_KEYS = ("polyak_coef", "update_frequency", "update_type")
HEAD_STD_KEYS = frozenset({"actor_init_std", "critic_init_std"})
"""Keys that name a head, not a net: the actor_/critic_ split leaves them alone."""


def _activation(value: object) -> str:
    folded = value.lower().replace("_", "") if isinstance(value, str) else ""
    if folded not in ACTIVATIONS:
        near = did_you_mean(str(value), ACTIVATIONS)
        raise invalid(f"found {shown(value)}; unknown activation. {near}")
    return folded


def _activations(value: object) -> object:
    """Read one name for all heads, or one name or null for each."""
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


Activation = Annotated[
    str,
    BeforeValidator(_activation),
    WithJsonSchema({"type": "string", "examples": sorted(ACTIVATIONS)}),
]
Widths = tuple[SmallCount, ...]


class NetSpec(Block):
    """Base of all nets' spec classes: the keys that every net type takes."""

    type: str = Field(description="Net type.")
    hid_layers_activation: Activation = spec_key("relu", "Activation of hidden layers, as relu.")
    out_layer_activation: Annotated[
        str | tuple[str | None, ...] | None, BeforeValidator(_activations)
    ] = spec_key(None, "Activation of the output, or a list with one per head.")
    init_fn: Annotated[
        str | None,
        BeforeValidator(_init_fn),
        WithJsonSchema({"enum": [*sorted(INIT_FNS), None]}),
    ] = spec_key(None, "Weight initialisation, a torch.nn.init name; null is torch's default.")
    normalize: Flag = spec_key(False, "Divide images by 255; no effect on vectors.")
    clip_grad_val: Positive | None = spec_key(None, "Largest global gradient norm.")
    loss_spec: LossSpec = Field(default_factory=LossSpec, description="Regression loss of values.")
    optim_spec: OptimSpec = Field(
        default_factory=OptimSpec, description="Optimiser and its arguments."
    )
    lr_scheduler_spec: Annotated[SchedulerSpec | None, BeforeValidator(_null_when_empty)] = (
        spec_key(None, "Learning-rate scheduler; null is constant.")
    )
    update_type: Literal["replace", "polyak"] | None = spec_key(
        None,
        "How target nets follow the online nets: polyak for SAC, replace for DQN unless given.",
    )
    update_frequency: Positive | None = spec_key(
        None, "Frames between copies, for replace; 1,000 unless given."
    )
    polyak_coef: Fraction | None = spec_key(
        None,
        "Share of the online weights, for polyak; 0.005 unless given. Per step of "
        "the envs for the DQN family, per update of the actor for SAC.",
    )
    gpu: Annotated[
        bool | None, BeforeValidator(_gpu), WithJsonSchema({"enum": ["auto", True, False, None]})
    ] = spec_key(None, "Use CUDA: true, false, or null (auto) for when present.")
    cuda_id: Whole | None = spec_key(None, "CUDA device; chosen at run time when null.")
    log_std_init: Number | None = spec_key(
        None, "Start of a state-independent log std; null makes it a head."
    )
    actor_init_std: NonNegative | None = spec_key(
        None, "Orthogonal gain of the policy head, after init_fn."
    )
    critic_init_std: NonNegative | None = spec_key(
        None, "Orthogonal gain of the value head, after init_fn."
    )
    shared: Flag = spec_key(False, "Actor and critic share one net.")
    use_same_optim: Flag = spec_key(False, "The critic uses the whole actor spec.")

    @property
    def sequence_length(self) -> int | None:
        """Steps of a training sequence; None for a net that reads single rows."""
        return None

    @property
    def normalizes_batches(self) -> bool:
        """Whether, while learning, the output for a row depends on the other rows of its batch."""
        return bool(getattr(self, "batch_norm", False))


@dataclass(frozen=True, kw_only=True)
class NetInfo(Record[NetSpec]):
    """Record of a net: all that other packages ask about it.

    `implementation` names what is called with (spec, obs_shape, out_dims, log_std_dim) and returns
    the module.
    """
