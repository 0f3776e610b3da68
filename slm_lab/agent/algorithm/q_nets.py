"""Q nets: the net of DQN and SARSA, pairs of critics, and what moves target nets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from slm_lab.agent.algorithm.base import Setup, initialising
from slm_lab.agent.learning.learner import NetState, State
from slm_lab.agent.net.mlp import make_net

if TYPE_CHECKING:
    from slm_lab.spec import NetSpec

Pair = tuple[Tensor, Tensor]


def polyak(target: Tensor, online: Tensor, share: float) -> Tensor:
    """(1 - share) * target + share * online; `polyak_coef` is the share of the new weights."""
    return target.lerp(online, share)


class TargetUpdate:
    """Moves target nets: a polyak step with each gradient step, or a copy once per N frames.

    A spec gives `polyak_coef` per env step. The share of a gradient step is adjusted so that the
    target lags by the same number of env steps, however many of them lie between gradient steps.
    """

    def __init__(self, spec: NetSpec, *, env_steps_per_gradient_step: float) -> None:
        self.is_polyak = spec.update_type == "polyak"
        self.share = 1 - (1 - (spec.polyak_coef or 0.0)) ** env_steps_per_gradient_step
        self._every = spec.update_frequency or 1.0
        self._copied_at = 0
        self._has_copied = False

    def copy_if_due(self, state: State, pairs: dict[str, str], frame: int) -> None:
        """Replace targets (keys) by online nets (values) once per `update_frequency` frames."""
        self._has_copied = not self.is_polyak and frame // self._every != self._copied_at
        if not self._has_copied:
            return
        self._copied_at = int(frame // self._every)
        for target, online in pairs.items():
            state[target].copy_(state[online])

    def kept(self, steps: int) -> float:
        """Share of the old targets that is left in them after an update of `steps` moving steps."""
        return (1 - self.share) ** steps if self.is_polyak else float(not self._has_copied)

    def state_dict(self) -> dict[str, int]:
        return {"copied_at": self._copied_at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._copied_at = int(state["copied_at"])

    def moved(self, state: State, pairs: dict[str, str]) -> State:
        """Targets after one gradient step; nothing where they are copied instead."""
        if not self.is_polyak:
            return {}
        return {t: polyak(state[t], state[online], self.share) for t, online in pairs.items()}


def make_q_net(spec: NetSpec, setup: Setup) -> NetState:
    """The net "net" of Q values, one per action."""
    with initialising(setup.seeds.net):
        net = make_net(spec, setup.spaces.obs_shape, setup.spaces.action_sizes)
    return NetState("net", net.to(setup.device), spec)


class TwinCritic:
    """A pair of critics. Continuous ones read (s, a) and give one value, discrete ones read s.

    With targets (SAC) they bootstrap from slow copies. `crossed` critics (CrossQ) have none: they
    read (s, a) and (s', a') in one pass, so that batch norm treats both sides alike.
    """

    def __init__(
        self, spec: NetSpec, setup: Setup, *, crossed: bool, spectral_norm: bool = False
    ) -> None:
        spaces = setup.spaces
        obs_shape, out_dim = spaces.obs_shape, spaces.action_sizes[0]
        if spaces.is_continuous:
            obs_shape, out_dim = (math.prod(obs_shape) + out_dim,), 1
        nets = [make_net(spec, obs_shape, (out_dim,)).to(setup.device) for _ in range(2)]
        if spectral_norm:
            for net in nets:
                _bound_last_hidden_layer(net)
        self.net_states = [NetState(f"q{i}_net", net, spec) for i, net in enumerate(nets, start=1)]
        self._crossed = crossed
        followed = [] if crossed else [net.name for net in self.net_states]
        self.targets = {f"target_{name}": name for name in followed}
        """Names of target nets -> names of the nets that they follow."""

    def current_and_target_q(
        self,
        state: State,
        obs: Tensor,
        action: Tensor | None,
        next_obs: Tensor,
        next_action: Tensor | None,
    ) -> tuple[Pair, Pair]:
        """(Q1, Q2) at (s, a), with gradient, and at (s', a') for the target, without."""
        inputs = _join(obs, action)
        if self._crossed:
            inputs = torch.cat([inputs, _join(next_obs, next_action)])
            first, second = self._pair(state, inputs, action, training=True)
            rows = obs.shape[0]
            return (first[:rows], second[:rows]), (first[rows:].detach(), second[rows:].detach())
        current = self._pair(state, inputs, action, training=True)
        frozen = state | {online: state[target] for target, online in self.targets.items()}
        target = self.values(frozen, next_obs, next_action)
        return current, (target[0].detach(), target[1].detach())

    def values(self, state: State, obs: Tensor, action: Tensor | None) -> Pair:
        """(Q1, Q2) for the actor's loss: critics in eval mode."""
        return self._pair(state, _join(obs, action), action)

    def _pair(
        self, state: State, inputs: Tensor, action: Tensor | None, *, training: bool = False
    ) -> Pair:
        """(Q1, Q2): [N], or [N, A] for discrete actions, which are no input (`action` is None)."""
        first, second = (net(state, inputs, training=training)[0] for net in self.net_states)
        return (first, second) if action is None else (first.squeeze(-1), second.squeeze(-1))


def _bound_last_hidden_layer(net: nn.Module) -> None:
    """Give the last Linear before the output spectral norm 1 (Gogianu et al. 2021)."""
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Linear)]
    if len(layers) > 1:
        parametrizations.spectral_norm(layers[-2])


def _join(obs: Tensor, action: Tensor | None) -> Tensor:
    return obs if action is None else torch.cat([obs.flatten(1), action], -1)
