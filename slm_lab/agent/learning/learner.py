"""Learner: a pure update and the state that it moves, compiled or eager from the same code.

A net's parameters live in one flat vector that the module's own parameters view, so acting sees
every update without a copy. The training state is a dictionary of tensors (parameters, optimiser
slots, coefficients); an update is a pure function of it:

    update(state, *batch) -> (changed entries of the state, metrics)

Coefficients such as the learning rate or the clip range are tensors in that state, so that a
schedule changes a value and never the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from slm_lab.agent.learning.compiler import Compiled, CompileMode
from slm_lab.agent.learning.optimizer import make_optimizer
from slm_lab.agent.learning.precision import (
    FLOAT32,
    SCALE,
    Precision,
    RoundedProducts,
    scale_entries,
    skip_overflow,
    unscaled,
)
from slm_lab.error import LabError
from slm_lab.spec import NetSpec
from slm_lab.types import ReplayBatch

State = dict[str, Tensor]
"""A training state: flat parameters, optimiser slots, buffers and coefficients by name."""
Update = Callable[..., tuple[State, dict[str, Tensor]]]

_ACTING = "acting."  # begins the keys of weights that a worker acted with


class NetState:
    """A net as a flat vector, and its optimiser. Its name is its key in the training state."""

    def __init__(
        self, name: str, net: nn.Module, spec: NetSpec, precision: Precision = FLOAT32
    ) -> None:
        self.name = name
        self.net = net.eval()
        self.spec = spec
        self.precision = precision
        self._rounded = precision.rounded_weights(net)
        self.optimizer = make_optimizer(spec.optim_spec)
        named = list(net.named_parameters())
        self._names = [key for key, _ in named]
        self._shapes = [p.shape for _, p in named]
        self._sizes = [p.numel() for _, p in named]
        self._unit_weights = _layer_weights(net) if spec.unit_weights else frozenset()
        self._flat = self._projected(torch.cat([p.detach().reshape(-1) for _, p in named]))
        is_matrix = [torch.full((p.numel(),), float(p.dim() > 1)) for _, p in named]
        self._decay_mask = torch.cat(is_matrix).to(self._flat.device)
        self.seq_len: int | None = getattr(net, "seq_len", None)
        self._noise_sizes = {
            f"{name}.buffer.{path}.noise": int(layer.noise_size)
            for path, layer in net.named_modules()
            if isinstance(getattr(layer, "noise_size", None), int)
        }
        for (_, parameter), view in zip(named, self._views(self._flat), strict=True):
            parameter.data = view
            parameter.requires_grad_(False)

    @property
    def size(self) -> int:
        """Parameters of the net."""
        return self._flat.numel()

    @property
    def rounds(self) -> bool:
        """Whether some products are computed in half precision."""
        return bool(self._rounded)

    def initial_state(self) -> State:
        """The flat vector under the net's name; slots, buffers and lr under `name.*`."""
        slots = self.optimizer.init(self._flat)
        state = {
            self.name: self._flat,
            f"{self.name}.lr": torch.zeros((), device=self._flat.device),
        }
        if self.optimizer.decay:
            state[f"{self.name}.decay_mask"] = self._decay_mask
        state |= {f"{self.name}.slot.{key}": value for key, value in slots.items()}
        if self.precision.scales_gradients:
            state |= scale_entries(self._flat.device)
        return state | {
            f"{self.name}.buffer.{key}": value
            for key, value in self.net.named_buffers()
            if value.numel()  # noise is empty until a call is given some
        }

    def __call__(
        self,
        state: Mapping[str, Tensor],
        *inputs: Tensor,
        training: bool = False,
        exact: bool = False,
    ) -> tuple[Tensor, ...]:
        """The net's outputs under the parameters of `state`.

        `training` matters to norm layers alone: it makes them use, and follow, batch statistics.
        With `exact` all products are float32, whatever the precision.
        """
        tensors = self.named_parameters(state[self.name])
        prefix = f"{self.name}.buffer."
        tensors |= {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        self.net.train(training)
        outputs: tuple[Tensor, ...]
        if exact or not self._rounded:
            outputs = functional_call(self.net, tensors, inputs)
        else:
            weights = [tensors[name] for name in self._rounded]
            with RoundedProducts(weights, self.precision.dtype):
                outputs = functional_call(self.net, tensors, inputs)
        self.net.eval()
        return outputs

    @property
    def noise_size(self) -> int:
        """Numbers that the noise of a noisy net consists of."""
        return sum(self._noise_sizes.values())

    def with_noise(self, state: Mapping[str, Tensor], noise: Tensor) -> State:
        """The state under which this net has noisy weights: noise [noise_size], or [N, ...]."""
        pieces = torch.split(noise, list(self._noise_sizes.values()), -1)
        return {**state, **dict(zip(self._noise_sizes, pieces, strict=True))}

    def time_major(self, steps: Tensor) -> Tensor:
        """Consecutive steps [T, B, ...] as this net reads them: rows, or in time if recurrent."""
        return steps.flatten(0, 1) if self.seq_len is None else steps

    def in_sequences(self, rows: Tensor) -> Tensor:
        """Rows [N, ...] as this net reads them; if recurrent they are [L, N / L] flattened."""
        return rows if self.seq_len is None else rows.view(self.seq_len, -1, *rows.shape[1:])

    def own_entries(self, state: Mapping[str, Tensor]) -> State:
        """Entries of a state that the net's outputs depend on: its parameters and buffers."""
        prefix = f"{self.name}.buffer."
        return {k: v for k, v in state.items() if k == self.name or k.startswith(prefix)}

    def named_parameters(self, flat: Tensor) -> dict[str, Tensor]:
        """A flat vector of this net's layout as the entries of a state dict."""
        return dict(zip(self._names, self._views(flat), strict=True))

    def optimizer_step(self, state: State, gradient: Tensor) -> tuple[State, Tensor]:
        """Clip by global norm, then one optimiser step: (changed entries, norm before clipping)."""
        norm = gradient.square().sum().sqrt()
        if self.spec.clip_grad_val is not None:
            gradient = gradient * (self.spec.clip_grad_val / (norm + 1e-6)).clamp(max=1.0)
        prefix = f"{self.name}.slot."
        slots = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        lr, mask = state[f"{self.name}.lr"], state.get(f"{self.name}.decay_mask")
        flat, slots = self.optimizer.update(state[self.name], gradient, slots, lr, mask)
        changes = {self.name: self._projected(flat)} | {
            prefix + key: value for key, value in slots.items()
        }
        return skip_overflow(state, changes, norm) if SCALE in state else (changes, norm)

    def _projected(self, flat: Tensor) -> Tensor:
        """Parameters in which each row of the `unit_weights` has norm 1."""
        if not self._unit_weights:
            return flat
        pieces = [
            value / value.flatten(1).norm(dim=1).clamp_min(1e-12).view(-1, *[1] * (value.dim() - 1))
            if name in self._unit_weights
            else value
            for name, value in self.named_parameters(flat).items()
        ]
        return torch.cat([piece.reshape(-1) for piece in pieces])

    def _views(self, flat: Tensor) -> list[Tensor]:
        pieces = torch.split(flat, self._sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]


def _layer_weights(net: nn.Module) -> frozenset[str]:
    """Names of the weights of Linear and convolution layers, those that are computed left out."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    owners = [
        f"{path}.weight".lstrip(".") for path, m in net.named_modules() if isinstance(m, kinds)
    ]
    return frozenset(owners) & {name for name, _ in net.named_parameters()}


def gradients(
    loss: Callable[[State], tuple[Tensor, dict[str, Tensor]]], state: State, names: Sequence[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Differentiate `loss(state)` with respect to the named entries: (gradients, metrics)."""
    with torch.enable_grad():
        leaves = {name: state[name].detach().requires_grad_() for name in names}
        value, metrics = loss(state | leaves)
        scaled = value * state[SCALE] if SCALE in state else value
        grads = torch.autograd.grad(scaled, list(leaves.values()))
    if SCALE in state:
        grads = unscaled(grads, state[SCALE])
    detached = {key: metric.detach() for key, metric in metrics.items()}
    return dict(zip(names, grads, strict=True)), {"loss": value.detach()} | detached


def acting_weights(net_states: Sequence[NetState], state: State) -> State:
    """Entries for copies of the nets as they acted, while other workers move the nets on."""
    return {_ACTING + t.name: state[t.name].clone() for t in net_states}


def gradient_update(
    net_states: Sequence[NetState],
    loss: Callable[..., tuple[Tensor, dict[str, Tensor]]],
    *,
    at_acting_weights: bool = False,
) -> Update:
    """Build the usual update: one loss over disjoint nets, each stepped by its own optimiser.

    A policy gradient holds for the policy that acted. With `at_acting_weights` it is computed at
    the weights of `acting_weights` and moves those that the workers share (Mnih et al. 2016).
    """

    def update(state: State, *batch: Tensor) -> tuple[State, dict[str, Tensor]]:
        names = [net_state.name for net_state in net_states]
        point = state
        if at_acting_weights:
            point = state | {name: state[_ACTING + name] for name in names}
        grads, metrics = gradients(lambda leaves: loss(leaves, *batch), point, names)
        changes, norm = optimizer_steps(net_states, state, grads)
        return changes, metrics | {"grad_norm": norm}

    return update


def optimizer_steps(
    net_states: Sequence[NetState], state: State, grads: Mapping[str, Tensor]
) -> tuple[State, Tensor]:
    """Step every net by its own optimiser: (changed entries, mean norm before clipping)."""
    changes: State = {}
    norms = []
    for net_state in net_states:
        moved, norm = net_state.optimizer_step(state, grads[net_state.name])
        changes |= moved
        norms.append(norm)
    return changes, torch.stack(norms).mean()


class Learner:
    """Owns a training state, applies an update to it in place, keeps running sums of metrics."""

    def __init__(
        self,
        state: State,
        update: Update,
        *,
        compile: CompileMode | None,
        eager_steps: int = 0,
    ) -> None:
        """The first `eager_steps` gradient steps are eager; later ones are compiled meanwhile."""
        self.state = state
        self._update = update
        self._keys = list(state)
        self._metric_names: list[str] = []
        self._sums: Tensor | None = None
        self._count = 0
        self._compiled = None
        if compile is not None:
            self._compiled = Compiled(self._apply, mode=compile, fixed=1 + len(self._keys))
        self._eager_steps = eager_steps if self._compiled is not None else 0

    @property
    def is_compiled(self) -> bool:
        """Whether steps are compiled, or will be."""
        return self._compiled is not None and self._compiled.is_compiled

    @property
    def is_native(self) -> bool:
        """Whether steps run natively already."""
        return self._compiled is not None and self._compiled.is_native

    def step(self, *batch: Tensor) -> None:
        """Apply the update to one minibatch."""
        sums = self._sums if self._sums is not None else self._metric_sums(batch)
        step = self._compiled or self._apply
        if self._eager_steps and self._compiled is not None:
            if self._steps_taken() < self._eager_steps:
                self._compiled.compile_beside(sums, *self.state.values(), *batch)
                step = self._apply
            else:
                self._eager_steps = 0
        step(sums, *self.state.values(), *batch)
        self._count += 1

    def steps(self, batches: Sequence[tuple[Tensor, ...]]) -> None:
        """Apply the update to each minibatch in turn."""
        for batch in batches:
            self.step(*batch)

    def set_coefficients(self, **values: float) -> None:
        """Write today's coefficients, such as a learning rate, into the state."""
        for name, value in values.items():
            self.state[name].fill_(value)

    def keep_acting_weights(self) -> None:
        """Copy the present nets, which acted in the rollout collected so far."""
        for key, value in self.state.items():
            if key.startswith(_ACTING):
                value.copy_(self.state[key.removeprefix(_ACTING)])

    def mean_metrics(self) -> dict[str, float]:
        """Mean metrics of the steps since the last call; empties the sums."""
        if self._sums is None or self._count == 0:
            return {}
        sums, count = self._sums.tolist(), self._count
        self._sums.zero_()
        self._count = 0
        return {name: sum / count for name, sum in zip(self._metric_names, sums, strict=True)}

    def state_dict(self) -> dict[str, Tensor]:
        return {key: value.clone() for key, value in self.shared_state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for key, value in self.shared_state.items():
            value.copy_(state[key])
        self.keep_acting_weights()

    @property
    def shared_state(self) -> State:
        """The state without the weights that a worker acted with, which are its own."""
        return {k: v for k, v in self.state.items() if not k.startswith(_ACTING)}

    def _steps_taken(self) -> float:
        """Gradient steps so far, by the optimiser that has taken most; saved with the state."""
        steps = [value for key, value in self.state.items() if key.endswith(".slot.step")]
        return max(float(step) for step in steps)

    def _apply(self, sums: Tensor, *tensors: Tensor) -> tuple[Tensor]:
        state = dict(zip(self._keys, tensors[: len(self._keys)], strict=True))
        changes, metrics = self._update(state, *tensors[len(self._keys) :])
        for key, value in changes.items():
            state[key].copy_(value)
        sums.add_(torch.stack([metric.to(sums.dtype) for metric in metrics.values()]))
        return (sums,)

    def _metric_sums(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Learn the metric names from one evaluation on copies, before anything is compiled."""
        copies = {key: value.clone() for key, value in self.state.items()}
        with torch.no_grad():
            _, metrics = self._update(copies, *batch)
        self._metric_names = list(metrics)
        self._sums = torch.zeros(len(metrics), device=next(iter(copies.values())).device)
        return self._sums


class ReplayRows(NamedTuple):
    """The columns [N, ...] of a ReplayBatch that a gradient step reads."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor
    weight: Tensor

    @classmethod
    def split(cls, inputs: Sequence[Tensor]) -> tuple[ReplayRows, Sequence[Tensor]]:
        """The inputs of a gradient step as these columns, and the noise that follows them."""
        count = len(cls._fields)
        return cls(*inputs[:count]), inputs[count:]


def replay_minibatches(batch: ReplayBatch, size: int) -> list[Sequence[Tensor]]:
    """Minibatches of the columns of `ReplayRows`."""
    return minibatches([getattr(batch, name) for name in ReplayRows._fields], size)


def minibatches(columns: Sequence[Tensor], size: int) -> list[Sequence[Tensor]]:
    """Split columns [k * size, ...] into k minibatches of columns [size, ...]."""
    if columns[0].shape[0] == size:
        return [columns]
    return list(zip(*(torch.split(column, size) for column in columns), strict=True))


class DivergenceError(LabError, RuntimeError):
    """A metric or a parameter became infinite or NaN."""

    exit_code = 1

    def __init__(self, frame: int, bad: Mapping[str, float], finite: Mapping[str, float]) -> None:
        self.frame = frame
        self.terms = dict(bad)
        terms = ", ".join(f"{name} = {value}" for name, value in bad.items())
        others = ", ".join(f"{name} = {value:.4g}" for name, value in finite.items())
        super().__init__(
            f"training diverged at frame {frame}: {terms} (still finite: {others or 'nothing'}). "
            "Try a smaller learning rate or agent.net.clip_grad_val, or env.normalize_reward."
        )

    def explain(self, cause: str) -> None:
        """Put the cause, if it was found, in the place of advice that would not help."""
        if cause:
            terms = ", ".join(f"{name} = {value}" for name, value in self.terms.items())
            self.args = (f"{cause} Training diverged by it at frame {self.frame}: {terms}",)


def check_finite(metrics: Mapping[str, float], frame: int) -> Mapping[str, float]:
    """Return the metrics, or raise DivergenceError if one is infinite or NaN."""
    bad = {name: value for name, value in metrics.items() if not math.isfinite(value)}
    if bad:
        raise DivergenceError(frame, bad, {k: v for k, v in metrics.items() if k not in bad})
    return metrics


def check_parameters(state: Mapping[str, Tensor], frame: int) -> None:
    """Raise DivergenceError for infinite parameters, which may precede an infinite loss."""
    vectors = {name: value for name, value in state.items() if value.is_floating_point()}
    # A sum is finite only if every term is. A random agent has none.
    sums = [value.sum() for value in vectors.values()]
    if not sums or math.isfinite(torch.stack(sums).sum().item()):
        return
    bad = {name: math.nan for name, value in vectors.items() if not bool(value.isfinite().all())}
    if bad:
        raise DivergenceError(frame, bad, {})
