"""What actor-critics that learn from a replay share: critics of (s, a), target nets, the update.

With a policy delay most gradient steps move the critics alone: two graphs over one state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from slm_lab.agent.algorithm.actor import Actor, Choice
from slm_lab.agent.algorithm.base import SavedInParts, Setup, Stateful, initialising
from slm_lab.agent.algorithm.schedule import LearningRates
from slm_lab.agent.learning.learner import (
    Learner,
    NetState,
    ReplayRows,
    State,
    check_finite,
    gradients,
    optimizer_steps,
    replay_minibatches,
)
from slm_lab.agent.net.rows import allowed_actions, draw_allowed, latest_mask, make_row_net
from slm_lab.spec import NetSpec, Spec, batches_per_call, training_start_step
from slm_lab.types import Metrics, ReplayBatch

Values = dict[str, Tensor]
Loss = Callable[[State], tuple[Tensor, Values]]

QValues = tuple[Tensor, ...]  # of each critic


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


class TwinCritic:
    """A pair of critics, or as many as `count` says.

    Continuous ones read (s, a) and give one value, discrete ones read s. A value is `outputs`
    numbers, on an axis of their own if there are more than one.

    With targets they bootstrap from slow copies, as those of SAC and TD3 do. `crossed` critics
    (CrossQ) have them only where their net says so: they read (s, a) and (s', a') in one pass, so
    that batch norm treats both sides alike.
    """

    def __init__(
        self,
        spec: NetSpec,
        setup: Setup,
        *,
        crossed: bool = False,
        spectral_norm: bool = False,
        count: int = 2,
        outputs: int = 1,
    ) -> None:
        spaces = setup.spaces
        actions = spaces.action_sizes[0]
        joined, values = (actions, 1) if spaces.is_continuous else (0, actions)
        out_dim = values * outputs
        # The axes of an output after its rows: actions, unless one is given, and numbers.
        self._axes = (actions,) * (not spaces.is_continuous) + (outputs,) * (outputs > 1)
        nets = [
            make_row_net(spec, spaces, (out_dim,), joined=joined).to(setup.device)
            for _ in range(count)
        ]
        if spectral_norm:
            for net in nets:
                _bound_last_hidden_layer(net)
        self.net_states = [
            NetState(f"q{i}_net", net, spec, setup.precision) for i, net in enumerate(nets, start=1)
        ]
        self._crossed = crossed
        has_targets = not crossed or spec.update_type is not None
        followed = [net.name for net in self.net_states] if has_targets else []
        self.targets = {f"target_{name}": name for name in followed}
        """Names of target nets -> names of the nets that they follow."""

    def current_and_target_q(
        self,
        state: State,
        obs: Tensor,
        action: Tensor | None,
        next_obs: Tensor,
        next_action: Tensor | None,
    ) -> tuple[QValues, QValues]:
        """Q of each critic at (s, a), with gradient, and at (s', a') for the target, without."""
        inputs = _join(obs, action)
        if self._crossed:
            inputs = torch.cat([inputs, _join(next_obs, next_action)])
            frozen = self._frozen(state)  # statistics as they are before they move
            both = self._each(state, inputs, training=True)
            later = self._each(frozen, inputs, training=True) if self.targets else both
            rows = obs.shape[0]
            return tuple(q[:rows] for q in both), tuple(q[rows:].detach() for q in later)
        current = self._each(state, inputs, training=True)
        target = self.values(self._frozen(state), next_obs, next_action)
        return current, tuple(q.detach() for q in target)

    def values(
        self, state: State, obs: Tensor, action: Tensor | None, first: int | None = None
    ) -> QValues:
        """Q of each critic, or of the `first` ones, for the actor's loss: critics in eval mode."""
        return self._each(state, _join(obs, action), first)

    def _frozen(self, state: State) -> State:
        """A state whose critics are the targets; batch statistics move in copies of their own."""
        copies = {}
        if self._crossed and self.targets:
            buffers = tuple(f"{net.name}.buffer." for net in self.net_states)
            copies = {k: value.clone() for k, value in state.items() if k.startswith(buffers)}
        return state | copies | {online: state[target] for target, online in self.targets.items()}

    def _each(
        self, state: State, inputs: Tensor, first: int | None = None, *, training: bool = False
    ) -> QValues:
        """Q of each: [N], or [N, A] for discrete actions, which are no input."""
        return tuple(
            net(state, inputs, training=training)[0].view(-1, *self._axes)
            for net in self.net_states[:first]
        )


def _bound_last_hidden_layer(net: nn.Module) -> None:
    """Give the last Linear before the output spectral norm 1 (Gogianu et al. 2021)."""
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Linear)]
    if len(layers) > 1:
        parametrizations.spectral_norm(layers[-2])


def _join(obs: Tensor, action: Tensor | None) -> Tensor:
    return obs if action is None else torch.cat([obs.flatten(1), action], -1)


class ReplayActorCritic(SavedInParts):
    """Owns an actor, critics, their targets and optimisers; explores at random before it learns.

    A subclass says what the critics and the actor minimise.
    """

    _parts: dict[str, Stateful]

    def __init__(
        self,
        spec: Spec,
        setup: Setup,
        choice: Choice,
        make_policy: Callable[[], nn.Module],
        *,
        has_target_actor: bool = False,
        others: Sequence[NetState] = (),
        more_state: State | None = None,
        **critics: Any,
    ) -> None:
        """`others` are nets that learn beside these; `critics` are options of TwinCritic."""
        own: Any = spec.agent.algorithm
        self._setup, self._batch_size = setup, spec.agent.memory.batch_size
        self._action_dim = setup.spaces.action_sizes[0]
        self._policy_delay, self._random_frames = own.policy_delay, training_start_step(spec)
        with initialising(setup.seeds.net):
            self._actor = NetState(
                "net", make_policy().to(setup.device), spec.agent.net, setup.precision
            )
            self._critics = TwinCritic(spec.agent.critic, setup, **critics)
        nets = [self._actor, *self._critics.net_states]
        self.modules = {net.name: net.net for net in (*nets, *others)}
        self._targets = {"target_net": "net"} if has_target_actor else {}
        self._targets |= self._critics.targets
        state = {k: v for net in (*nets, *others) for k, v in net.initial_state().items()}
        state |= {target: state[online].clone() for target, online in self._targets.items()}
        state |= more_state or {}
        state["td_error"] = torch.zeros(self._batch_size, device=setup.device)
        self._target_update = TargetUpdate(spec.agent.critic, env_steps_per_gradient_step=1.0)
        self.learner, self._critic_learner = (
            Learner(state, step, compile=setup.compile, eager_steps=setup.eager_steps)
            for step in (self._full_step, self._critic_step)
        )
        self._per_call = batches_per_call(spec)
        self._frames_per_update = max(own.training_frequency, setup.num_envs)
        self._rates = LearningRates({n.name: n.spec for n in nets}, self._frames_per_update)
        self._critic_updates = self._updates_before = 0  # in all, and before the latest update
        self._act = Actor(self._actor, choice, state, setup)
        self._random = torch.Generator().manual_seed(setup.seeds.act + 1)
        self._generator = torch.Generator().manual_seed(setup.seeds.learn)
        self._parts = {
            "learner": self.learner,
            "act": self._act,
            "rates": self._rates,
            "target_update": self._target_update,
        }

    def act(self, obs: Tensor, *, frame: int = 0, explore: bool = True) -> Tensor:
        """Actions as the env executes them: in [-1, 1], or class indices."""
        if explore and frame < self._random_frames:
            return self._uniform(obs)
        return self._act(obs, frame=frame, explore=explore)

    def to_env(self, action: Tensor) -> Tensor:
        """Actions that the env takes, which these are already."""
        return action

    def update(self, batch: ReplayBatch, frame: int) -> Metrics:
        """Learn from minibatches of a replay: critics at each, the actor as often as it is due."""
        self.learner.set_coefficients(**self._rates.values(frame), **self._coefficients(frame))
        drawn = replay_minibatches(batch, self._batch_size)
        self._updates_before = self._critic_updates
        td_errors = []
        for rows, noise in zip(drawn, self._learning_noise(len(drawn)), strict=True):
            self._critic_updates += 1
            is_full = self._critic_updates % self._policy_delay == 0
            (self.learner if is_full else self._critic_learner).step(*rows, *noise)
            td_errors.append(self.learner.state["td_error"].clone())
        self._target_update.copy_if_due(self.learner.state, self._targets, frame)
        lr = self._rates.advance(frame, len(drawn) // self._per_call)
        metrics = self._critic_learner.mean_metrics() | self.learner.mean_metrics()
        values = dict(check_finite(metrics, frame)) | {"lr": lr}
        return Metrics(values, opt_steps=len(drawn), td_error=torch.cat(td_errors))

    def target_nets(self) -> dict[str, dict[str, Tensor]]:
        """State dicts of the target nets, by name."""
        state, nets = self.learner.state, {n.name: n for n in self._critics.net_states}
        nets["net"] = self._actor
        pairs = self._targets.items()
        return {target: nets[name].named_parameters(state[target]) for target, name in pairs}

    def targets_kept(self) -> float:
        """Share of the target nets before the latest update that is still in them."""
        before, delay = self._updates_before, self._policy_delay
        return self._target_update.kept(self._critic_updates // delay - before // delay)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "generator": self._generator.get_state(),
            "random": self._random.get_state(),
            "critic_updates": self._critic_updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._generator.set_state(state["generator"])
        self._random.set_state(state["random"])
        self._critic_updates = int(state["critic_updates"])

    def _coefficients(self, frame: int) -> dict[str, float]:
        """Scalars of the training state beside the learning rates of the nets."""
        return {}

    def _learning_noise(self, count: int) -> Iterable[tuple[Tensor, ...]]:
        """Noise that each minibatch of an update needs."""
        raise NotImplementedError

    def _critic_loss(self, state: State, batch: ReplayRows, noise: Sequence[Tensor]) -> Loss:
        """The loss of the critics; of its metrics `rows` are the TD errors."""
        raise NotImplementedError

    def _policy_step(
        self, state: State, obs: Tensor, noise: Sequence[Tensor]
    ) -> tuple[State, Values]:
        """Step the actor, and what belongs to it: (changed entries, metrics)."""
        raise NotImplementedError

    def _full_step(self, state: State, *inputs: Tensor) -> tuple[State, Values]:
        changes, metrics = self._critic_step(state, *inputs)
        rows, noise = ReplayRows.split(inputs)
        moved, of_actor = self._policy_step(state | changes, rows.obs, noise)
        changes |= moved
        changes |= self._target_update.moved(state | changes, self._targets)
        return changes, metrics | of_actor

    def _critic_step(self, state: State, *inputs: Tensor) -> tuple[State, Values]:
        critics = self._critics.net_states
        loss = self._critic_loss(state, *ReplayRows.split(inputs))
        grads, metrics = gradients(loss, state, [critic.name for critic in critics])
        moved, norm = optimizer_steps(critics, state, grads)
        return {"td_error": metrics.pop("rows")} | moved, metrics | {"grad_norm": norm}

    def _uniform(self, obs: Tensor) -> Tensor:
        """Random actions, allowed ones if the env has a mask."""
        spaces, count = self._setup.spaces, len(obs)
        if spaces.mask:
            allowed = allowed_actions(latest_mask(obs, spaces))
            drawn = torch.rand(count, generator=self._random).to(obs.device)
            action = draw_allowed(allowed, drawn)
        elif spaces.is_continuous:
            action = torch.rand(count, self._action_dim, generator=self._random) * 2 - 1
        else:
            action = torch.randint(self._action_dim, (count,), generator=self._random)
        return action.to(self._setup.device)
