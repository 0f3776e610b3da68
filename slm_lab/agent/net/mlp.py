"""MLPNet and DuelingMLPNet: Linear layers on a flat vector; and what all nets share.

That is how they are made, their output heads, activations by name, and initial weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from slm_lab.agent.net.noisy import MakeLinear, linear_class
from slm_lab.spec import DuelingMLPNetSpec, MLPNetSpec, NetSpec, Problem, SpecError
from slm_lab.spec.net import NETS

Shape = tuple[int, ...]
Item = TypeVar("Item")
Inputs: TypeAlias = Item | Mapping[str, Item]
"""What there is for a whole observation, or for each of its parts by name."""


def make_net(
    spec: NetSpec,
    obs_shape: Inputs[Shape],
    out_dims: Shape,
    log_std_dim: int | None = None,
    atoms: int = 1,
) -> nn.Module:
    """Build the network that a NetSpec describes, with one head per entry of `out_dims`.

    A net that reads the parts of an observation by name is given their shapes by name. Of Q values
    each is `atoms` numbers side by side, which matters to a dueling net alone.
    """
    make = spec.record_in(NETS).load()
    is_dueling = isinstance(make, type) and issubclass(make, DuelingNet)
    options = {"atoms": atoms} if is_dueling else {}
    net: nn.Module = make(spec, obs_shape, out_dims, log_std_dim, **options)
    return net


class HeadedNet(nn.Module):
    """A body, then one Linear per entry of `out_dims`.

    `make_body` builds the body and returns the width of what `features` computes with it. With
    `log_std_dim` the net also owns a free `log_std` vector, returned as a last output broadcast
    over the batch.
    """

    head_names: tuple[str, ...] = ("tails",)

    def __init__(
        self,
        spec: NetSpec,
        obs_shape: Inputs[Shape],
        out_dims: Shape,
        log_std_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.linear = linear_class(spec)
        width = self.make_body(spec, obs_shape)
        self.make_heads(width, out_dims, spec.out_layer_activation)
        init_weights(self, spec.init_fn, spec.hid_layers_activation)
        if log_std_dim is not None:
            self.log_std = nn.Parameter(torch.full((log_std_dim,), float(spec.log_std_init or 0.0)))

    def make_body(self, spec: Any, obs_shape: Any) -> int:
        """Build the layers below the heads; returns the width of their features."""
        raise NotImplementedError

    def features(self, obs: Any) -> Tensor:
        """Features [N, width] that the heads read."""
        raise NotImplementedError

    def forward(self, obs: Inputs[Tensor]) -> tuple[Tensor, ...]:
        """obs [N, *obs_shape], or its parts by name -> one [N, out_dim] per head."""
        features = self.features(obs)
        outputs = self.heads(features)
        if hasattr(self, "log_std"):
            outputs = (*outputs, self.log_std.expand(features.shape[0], -1))
        return outputs

    def make_heads(
        self, width: int, out_dims: Shape, activation: str | Sequence[str | None] | None
    ) -> None:
        """One head is a Sequential, several a list of them, as in existing checkpoints."""
        if activation is None or isinstance(activation, str):
            activation = [activation] * len(out_dims)
        if len(activation) != len(out_dims):
            fix = (
                f"found {len(activation)} for a net with {len(out_dims)} head(s); give one per "
                "head. Where actor and critic differ: actor_out_layer_activation, "
                "critic_out_layer_activation."
            )
            raise SpecError([Problem("agent.net.out_layer_activation", fix)])
        heads = [nn.Sequential(self.linear(width, out_dim)) for out_dim in out_dims]
        for head, name in zip(heads, activation, strict=True):
            if name is not None:
                head.append(make_activation(name))
        self.tails = heads[0] if len(heads) == 1 else nn.ModuleList(heads)

    def heads(self, features: Tensor) -> tuple[Tensor, ...]:
        """The output of each head from the features."""
        if isinstance(self.tails, nn.ModuleList):
            return tuple(head(features) for head in self.tails)
        return (self.tails(features),)


class DuelingNet(HeadedNet):
    """Q = V + A - mean A: one stream for the state, one for the actions (Wang et al. 2016).

    Where a Q value is several atoms, each has its own streams (Hessel et al. 2018).
    """

    head_names = ("v", "adv")

    def __init__(
        self,
        spec: NetSpec,
        obs_shape: Inputs[Shape],
        out_dims: Shape,
        log_std_dim: int | None = None,
        atoms: int = 1,
    ) -> None:
        self.atoms = atoms
        super().__init__(spec, obs_shape, out_dims, log_std_dim)

    def make_heads(self, width: int, out_dims: Shape, activation: object) -> None:
        if len(out_dims) != 1:
            fix = "a dueling net has one head of Q values. Use MLPNet or ConvNet."
            raise SpecError([Problem("agent.net.type", fix)])
        self.v = self.linear(width, self.atoms)
        self.adv = self.linear(width, out_dims[0])

    def heads(self, features: Tensor) -> tuple[Tensor, ...]:
        return (self.join(self.v(features), self.adv(features)),)

    def join(self, value: Tensor, advantage: Tensor) -> Tensor:
        """Eq. 9, from value [N, 1] and advantage [N, A], or from [N, K] and [N, A * K]."""
        if self.atoms == 1:
            return value + advantage - advantage.mean(-1, keepdim=True)
        advantage = advantage.view(-1, advantage.shape[-1] // self.atoms, self.atoms)
        q_value = value.unsqueeze(-2) + advantage - advantage.mean(-2, keepdim=True)
        return q_value.flatten(-2)


class MLPNet(HeadedNet):
    """Body of Linear layers on a flat vector."""

    def make_body(self, spec: MLPNetSpec, obs_shape: Shape) -> int:
        self.model = _body(spec, math.prod(obs_shape), self.linear)
        return spec.hid_layers[-1] if spec.hid_layers else math.prod(obs_shape)

    def features(self, obs: Tensor) -> Tensor:
        features: Tensor = self.model(obs.flatten(1).float())
        return features


class DuelingMLPNet(DuelingNet):
    """MLPNet with a value and an advantage stream instead of heads."""

    def make_body(self, spec: DuelingMLPNetSpec, obs_shape: Shape) -> int:
        self.model_body = _body(spec, math.prod(obs_shape), self.linear)
        return spec.hid_layers[-1] if spec.hid_layers else math.prod(obs_shape)

    def features(self, obs: Tensor) -> Tensor:
        features: Tensor = self.model_body(obs.flatten(1).float())
        return features


def _body(spec: MLPNetSpec | DuelingMLPNetSpec, in_dim: int, linear: MakeLinear) -> nn.Sequential:
    norm = nn.BatchNorm1d if spec.batch_norm else nn.LayerNorm if spec.layer_norm else None
    return linear_layers(in_dim, spec.hid_layers, spec.hid_layers_activation, norm, linear)


def linear_layers(
    in_dim: int,
    widths: Shape,
    activation: str,
    norm: Callable[[int], nn.Module] | None = None,
    linear: MakeLinear = nn.Linear,
) -> nn.Sequential:
    """Linear layers of these widths, each followed by its norm, if there is one, and activation."""
    layers: list[nn.Module] = []
    for width in widths:
        layers.append(linear(in_dim, width))
        if norm is not None:
            layers.append(norm(width))
        layers.append(make_activation(activation))
        in_dim = width
    return nn.Sequential(*layers)


_BY_LOWER_NAME = {
    name.lower(): cls
    for name, cls in {**vars(nn.modules.activation), "Identity": nn.Identity}.items()
    if isinstance(cls, type) and issubclass(cls, nn.Module) and cls is not nn.Module
}

# calculate_gain knows these; the others get the gain of a linear layer.
_GAIN_NAMES = {
    "tanh": "tanh",
    "relu": "relu",
    "leakyrelu": "leaky_relu",
    "selu": "selu",
    "sigmoid": "sigmoid",
}


def make_activation(name: str | None) -> nn.Module:
    """`"tanh"` -> `nn.Tanh()`; None is the identity."""
    return nn.Identity() if name is None else _BY_LOWER_NAME[name.lower()]()


def gain_name(activation: str | None) -> str:
    """Torch's name for the gain of an activation."""
    return _GAIN_NAMES.get((activation or "").lower(), "linear")


_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def init_weights(module: nn.Module, init_fn: str | None, activation: str | None) -> None:
    """Apply a `torch.nn.init` function to every weight, heads included; biases become zero.

    None leaves PyTorch's own initialisation.
    """
    if init_fn is None:
        return
    fill = _filler(init_fn, activation)
    for layer in module.modules():
        if isinstance(layer, _WEIGHTED):
            fill(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.RNNBase):
            for name, parameter in layer.named_parameters():
                if "weight" in name:
                    fill(parameter)
                else:
                    nn.init.zeros_(parameter)


def init_head(head: nn.Module, std: float | None) -> None:
    """Orthogonal output layer with gain `std`: 0.01 keeps a fresh policy near uniform."""
    if std is None:
        return
    for layer in head.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, gain=std)
            nn.init.zeros_(layer.bias)


def _filler(init_fn: str, activation: str | None) -> Callable[[Tensor], object]:
    function = getattr(nn.init, init_fn)
    if init_fn.startswith("kaiming"):
        # torch defines kaiming for rectifiers only; other activations use the relu form.
        name = gain_name(activation)
        nonlinearity = name if name in ("relu", "leaky_relu") else "relu"
        return lambda weight: function(weight, nonlinearity=nonlinearity)
    if init_fn.startswith(("orthogonal", "xavier")):
        gain = nn.init.calculate_gain(gain_name(activation))  # type: ignore[arg-type]
        return lambda weight: function(weight, gain=gain)
    return lambda weight: function(weight)
