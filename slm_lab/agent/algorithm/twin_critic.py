"""Two critics, so that their smaller or mean value can temper overestimation.

`TargetTwin` bootstraps from slow copies (SAC); `CrossTwin` has none: it reads both sides of the TD
error in one batch-normalised pass (CrossQ). Continuous critics read (s, a) and give one value;
discrete ones read s and give a value per action.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from slm_lab.agent.algorithm.target_net import TargetUpdate
from slm_lab.agent.learning.learner import State, Trainable
from slm_lab.agent.net.make import make_net
from slm_lab.types import Spaces

if TYPE_CHECKING:
    from slm_lab.agent.algorithm.setup import Setup
    from slm_lab.spec import NetSpec

Pair = tuple[Tensor, Tensor]


class TwinCritic(Protocol):
    @property
    def trainables(self) -> Sequence[Trainable]: ...
    @property
    def targets(self) -> dict[str, str]:
        """Target net -> the net it follows."""
        ...

    def both_sides(
        self,
        state: State,
        obs: Tensor,
        action: Tensor | None,
        next_obs: Tensor,
        next_action: Tensor | None,
    ) -> tuple[Pair, Pair]:
        """(Q1, Q2) at (s, a), with gradient, and at (s', a') for the target, without."""
        ...

    def values(self, state: State, obs: Tensor, action: Tensor | None) -> Pair:
        """(Q1, Q2) as the actor sees them: critics in eval mode."""
        ...


def make_twin(
    spec: NetSpec, setup: Setup, *, crossed: bool, spectral_norm: bool = False
) -> TwinCritic:
    trainables = make_trainables(spec, setup.spaces, setup.device, spectral_norm=spectral_norm)
    return CrossTwin(trainables) if crossed else TargetTwin(trainables)


def make_trainables(
    spec: NetSpec, spaces: Spaces, device: torch.device, *, spectral_norm: bool = False
) -> list[Trainable]:
    obs_shape, out_dim = spaces.obs_shape, spaces.action_sizes[0]
    if spaces.is_continuous:
        obs_shape, out_dim = (math.prod(obs_shape) + out_dim,), 1
    nets = [make_net(spec, obs_shape, (out_dim,)).to(device) for _ in range(2)]
    if spectral_norm:
        for net in nets:
            _bound_last_hidden_layer(net)
    return [Trainable(f"q{i}_net", net, spec) for i, net in enumerate(nets, start=1)]


def _bound_last_hidden_layer(net: nn.Module) -> None:
    """Spectral norm 1 for the last Linear before the output (Gogianu et al. 2021)."""
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Linear)]
    if len(layers) > 1:
        parametrizations.spectral_norm(layers[-2])


class TargetTwin:
    """Bootstraps from target nets, which start as copies."""

    def __init__(self, trainables: Sequence[Trainable]) -> None:
        self.trainables = trainables
        self.targets = {f"target_{trainable.name}": trainable.name for trainable in self.trainables}

    def both_sides(
        self,
        state: State,
        obs: Tensor,
        action: Tensor | None,
        next_obs: Tensor,
        next_action: Tensor | None,
    ) -> tuple[Pair, Pair]:
        now = self._evaluate(state, obs, action, training=True)
        frozen = state | {online: state[target] for target, online in self.targets.items()}
        later = self._evaluate(frozen, next_obs, next_action, training=False)
        return now, (later[0].detach(), later[1].detach())

    def values(self, state: State, obs: Tensor, action: Tensor | None) -> Pair:
        return self._evaluate(state, obs, action, training=False)

    def _evaluate(
        self, state: State, obs: Tensor, action: Tensor | None, *, training: bool
    ) -> Pair:
        inputs = _join(obs, action)
        first, second = (
            _value(q(state, inputs, training=training)[0], action) for q in self.trainables
        )
        return first, second


class CrossTwin:
    """One pass over (s, a) and (s', a') together, so that both are normalised alike."""

    def __init__(self, trainables: Sequence[Trainable]) -> None:
        self.trainables = trainables
        self.targets: dict[str, str] = {}

    def both_sides(
        self,
        state: State,
        obs: Tensor,
        action: Tensor | None,
        next_obs: Tensor,
        next_action: Tensor | None,
    ) -> tuple[Pair, Pair]:
        inputs = torch.cat([_join(obs, action), _join(next_obs, next_action)])
        rows = obs.shape[0]
        first, second = (
            _value(q(state, inputs, training=True)[0], action) for q in self.trainables
        )
        return (first[:rows], second[:rows]), (first[rows:].detach(), second[rows:].detach())

    def values(self, state: State, obs: Tensor, action: Tensor | None) -> Pair:
        inputs = _join(obs, action)
        first, second = (_value(q(state, inputs)[0], action) for q in self.trainables)
        return first, second


def make_target_update(spec: NetSpec) -> TargetUpdate:
    """SAC moves its targets once per actor update, whatever the pace of the env."""
    return TargetUpdate(spec, env_steps_per_gradient_step=1.0)


def _join(obs: Tensor, action: Tensor | None) -> Tensor:
    return obs if action is None else torch.cat([obs.flatten(1), action], -1)


def _value(output: Tensor, action: Tensor | None) -> Tensor:
    return output if action is None else output.squeeze(-1)
