"""`agent.net`: the spec class and the record of every net, with torch's names as data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from slm_lab.spec.block import (
    Count,
    Flag,
    Fraction,
    FreeMapping,
    Key,
    NonNegative,
    Number,
    Positive,
    SmallCount,
    Whole,
    expect,
    invalid,
    shown,
)
from slm_lab.spec.error import did_you_mean
from slm_lab.spec.optim import LossSpec, OptimSpec, SchedulerSpec
from slm_lab.spec.record import Record, RecordedBlock, Registry

_ACTIVATIONS = """
CELU ELU GELU Hardshrink Hardsigmoid Hardswish Hardtanh Identity LeakyReLU LogSigmoid LogSoftmax
Mish PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softmax Softplus Softshrink Softsign Tanh Tanhshrink
"""
ACTIVATIONS = {name.lower(): name for name in _ACTIVATIONS.split()}
"""Lower-case activation name -> class name in torch.nn."""

_INIT_FNS = """
kaiming_normal_ kaiming_uniform_ normal_ ones_ orthogonal_ trunc_normal_ uniform_ xavier_normal_
xavier_uniform_ zeros_
"""
INIT_FNS = frozenset(_INIT_FNS.split())
"""The torch.nn.init functions that need no argument beyond the gain."""

REPLACE = {"update_type": "replace", "update_frequency": 1000}
"""Keys of a net whose target is a copy, renewed every 1,000 frames."""
POLYAK = {"update_type": "polyak", "polyak_coef": 0.005}
"""Keys of a net whose target follows by a moving average."""
TARGET_KEYS = ("polyak_coef", "update_frequency", "update_type")
HEAD_STD_KEYS = frozenset({"actor_init_std", "critic_init_std"})
"""Keys that name a head, not a net: the actor_/critic_ split leaves them alone."""
EARLIER_KEYS = {"actor_out_init_std": "actor_init_std"}
"""Earlier names of keys, which are read as the present ones."""


def rename_earlier_keys(agent: Any) -> None:
    """Rename keys of nets that have an earlier name; one that is given twice is left as it is."""
    for block in ("net", "critic_net") if isinstance(agent, dict) else ():
        net = agent.get(block)
        for earlier, key in EARLIER_KEYS.items() if isinstance(net, dict) else ():
            if earlier in net and key not in net:
                net[key] = net.pop(earlier)


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


Activation = Annotated[
    str,
    BeforeValidator(_activation),
    WithJsonSchema({"type": "string", "examples": sorted(ACTIVATIONS)}),
]
Widths = tuple[SmallCount, ...]
"""Widths of layers, such as [64, 64]."""


class NetSpec(RecordedBlock):
    """Base of all nets' spec classes: the keys that every net type takes."""

    type: str = Field(description="Net type.")
    hid_layers_activation: Activation = Key("relu", "Activation of hidden layers, as relu.")
    out_layer_activation: Annotated[
        str | tuple[str | None, ...] | None, BeforeValidator(_activations)
    ] = Key(None, "Activation of the output, or a list with one per head.")
    init_fn: Annotated[
        str | None, BeforeValidator(_init_fn), WithJsonSchema({"enum": [*sorted(INIT_FNS), None]})
    ] = Key(None, "Weight initialisation, a torch.nn.init name; null is torch's default.")
    normalize: Flag = Key(False, "Divide images by 255; no effect on vectors.")
    clip_grad_val: Positive | None = Key(None, "Largest global gradient norm.")
    loss_spec: LossSpec = Field(default_factory=LossSpec, description="Regression loss of values.")
    optim_spec: OptimSpec = Field(
        default_factory=OptimSpec, description="Optimiser and its arguments."
    )
    lr_scheduler_spec: Annotated[
        SchedulerSpec | None, BeforeValidator(lambda value: None if value == {} else value)
    ] = Key(None, "Learning-rate scheduler; null is constant.")
    update_type: Literal["replace", "polyak"] | None = Key(
        None,
        "How target nets follow the online nets: polyak for SAC, replace for DQN unless given. "
        "CrossQ has target nets only where it is given.",
    )
    update_frequency: Positive | None = Key(
        None, "Frames between copies, for replace; 1,000 unless given."
    )
    polyak_coef: Fraction | None = Key(
        None,
        "Share of the online weights, for polyak; 0.005 unless given. Per step of "
        "the envs for the DQN family, per update of the actor for SAC.",
    )
    unit_weights: Flag = Key(
        False,
        "Every row of the weights of Linear and convolution layers, heads included, has norm 1: "
        "at the start, and again after each optimiser step.",
    )
    gpu: Annotated[
        bool | None, BeforeValidator(_gpu), WithJsonSchema({"enum": ["auto", True, False, None]})
    ] = Key(None, "Use CUDA: true, false, or null (auto) for when present.")
    cuda_id: Whole | None = Key(None, "CUDA device; chosen at run time when null.")
    log_std_init: Number | None = Key(
        None, "Start of a state-independent log std; null makes it a head."
    )
    actor_init_std: NonNegative | None = Key(
        None, "Orthogonal gain of the policy head, after init_fn; earlier actor_out_init_std."
    )
    critic_init_std: NonNegative | None = Key(
        None, "Orthogonal gain of the value head, after init_fn."
    )
    noisy: Flag = Key(
        False,
        "For the DQN family: noise on the weights of fully connected layers and heads, of learned "
        "size, explores in place of epsilon (Fortunato et al. 2018).",
    )
    noisy_std: NonNegative = Key(
        0.5, "With noisy: noise at the start, times one over the root of a layer's inputs."
    )
    shared: Flag = Key(False, "Actor and critic share one net.")
    use_same_optim: Flag = Key(False, "The critic uses the whole actor spec.")

    @model_validator(mode="after")
    def _one_scale_of_weights(self) -> NetSpec:
        for key in sorted(HEAD_STD_KEYS) if self.unit_weights else ():
            expect(getattr(self, key) is None, getattr(self, key), "null with unit_weights", key)
        return self

    @property
    def sequence_length(self) -> int | None:
        """Steps of a training sequence; None for a net that reads single rows."""
        return None

    def reads_parts(self, names: Collection[str]) -> bool:
        """Whether the net takes the parts of an observation by name, as a mapping.

        `names` are those of the parts; an observation that is a plain array has none.
        """
        return False

    @property
    def normalizes_batches(self) -> bool:
        """Whether, while learning, the output for a row depends on the other rows of its batch."""
        return bool(getattr(self, "batch_norm", False))


class MLPNetSpec(NetSpec):
    """Fully connected layers."""

    hid_layers: Widths = Key((64, 64), "Width of each hidden layer.")
    layer_norm: Flag = Key(False, "LayerNorm before each activation.")
    batch_norm: Flag = Key(False, "BatchNorm before each activation.")


class DuelingMLPNetSpec(MLPNetSpec):
    """Fully connected layers with value and advantage heads."""


def _conv_layers(value: object) -> object:
    """Read rows of [channels, kernel, stride, padding, dilation], the last three optional."""
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
        fits = whole and len(sizes) <= 2 and min(sizes) >= least
        expected = f"a whole number of at least {least}, or two"
        expect(fits, cell, expected, f"{index}.{position}")
    return tuple(pairs)


ConvLayers = Annotated[tuple[tuple[int | tuple[int, int], ...], ...], BeforeValidator(_conv_layers)]


class ConvNetSpec(NetSpec):
    """Convolutions, then fully connected layers."""

    conv_hid_layers: ConvLayers = Key(
        ((32, 8, 4, 0, 1), (64, 4, 2, 0, 1), (64, 3, 1, 0, 1)),
        "Rows of [channels, kernel, stride, padding, dilation].",
    )
    fc_hid_layers: Widths = Key((512,), "Width of each layer after the convolutions.")
    batch_norm: Flag = Key(False, "BatchNorm after every convolution but the first.")


class DuelingConvNetSpec(ConvNetSpec):
    """Convolutions with value and advantage heads."""


class MultiInputNetSpec(NetSpec):
    """Convolutions for each image of an observation and layers for its vectors, then joined."""

    conv_hid_layers: ConvLayers = Key(
        ((32, 8, 4, 0, 1), (64, 4, 2, 0, 1)),
        "Rows of [channels, kernel, stride, padding, dilation], for each image.",
    )
    fc_hid_layers: Widths = Key((128,), "Width of each layer after the convolutions.")
    vector_hid_layers: Widths = Key((64,), "Width of each layer that reads the vectors.")
    hid_layers: Widths = Key((128,), "Width of each layer after the parts are joined.")
    normalize: Flag = Key(True, "Divide images by 255.")

    def reads_parts(self, names: Collection[str]) -> bool:
        return True


class RecurrentNetSpec(NetSpec):
    """Fully connected layers, then a recurrent cell that remembers the episode so far."""

    cell_type: Annotated[
        Literal["RNN", "LSTM", "GRU"],
        BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value),
    ] = Key("GRU", "Recurrent cell.")
    fc_hid_layers: Widths = Key((), "Width of each layer before the cell.")
    rnn_hidden_size: SmallCount = Key(64, "Width of the cell.")
    rnn_num_layers: SmallCount = Key(1, "Stacked cells.")
    bidirectional: Flag = Key(False, "Read the last seq_len observations both ways instead.")
    seq_len: Count = Key(16, "Steps of a training sequence: how far back the gradient reaches.")

    @property
    def sequence_length(self) -> int | None:
        return self.seq_len


class TorchArcNetSpec(NetSpec):
    """A body declared layer by layer in the spec."""

    hid_layers_activation: Activation = Key("relu", "Picks the gain of init_fn.")
    arc: FreeMapping | None = Key(None, "The body: modules and the graph over them.")
    arc_file: str | None = Key(None, "File that holds the arc instead.")

    @model_validator(mode="after")
    def _one_arc(self) -> TorchArcNetSpec:
        if (self.arc is None) == (self.arc_file is None):
            raise invalid("expected exactly one of arc and arc_file", key="arc")
        if self.arc is not None:
            for part in ("modules", "graph"):
                given = self.arc.get(part)
                expect(isinstance(given, Mapping), given, "a mapping", f"arc.{part}")
        return self

    def reads_parts(self, names: Collection[str]) -> bool:
        """Whether the graph's inputs are parts; those of a file are known when it is read."""
        if self.arc is None:
            return bool(names)
        given = (self.arc.get("graph") or {}).get("input", "x")
        inputs = given if isinstance(given, list | tuple) else [given]
        return any(name in names for name in inputs)

    @property
    def normalizes_batches(self) -> bool:
        return _names_batch_layer(self.arc)


def _names_batch_layer(arc: object) -> bool:
    if isinstance(arc, Mapping):
        layers = [key for key in arc if isinstance(key, str)]
        is_here = any("BatchNorm" in key or "BatchRenorm" in key for key in layers)
        return is_here or any(_names_batch_layer(part) for part in arc.values())
    return isinstance(arc, list | tuple) and any(_names_batch_layer(part) for part in arc)


@dataclass(frozen=True, kw_only=True)
class NetInfo(Record[NetSpec]):
    """Record of a net: all that other packages ask about it.

    `implementation` names what is called with (spec, obs_shape, out_dims, log_std_dim) and returns
    the module.
    """


_NETS: dict[type[NetSpec], str] = {
    MLPNetSpec: "mlp:MLPNet",
    DuelingMLPNetSpec: "mlp:DuelingMLPNet",
    ConvNetSpec: "conv:ConvNet",
    DuelingConvNetSpec: "conv:DuelingConvNet",
    MultiInputNetSpec: "multi_input:MultiInputNet",
    RecurrentNetSpec: "recurrent:make_recurrent_net",
    TorchArcNetSpec: "arc:TorchArcNet",
}
NETS = Registry(
    [
        NetInfo(model.__name__.removesuffix("Spec"), model, f"slm_lab.agent.net.{place}")
        for model, place in _NETS.items()
    ],
    chosen_by="type",
)
