"""TD3 (Fujimoto et al. 2018), and DDPG (Lillicrap et al. 2016) as its plain form.

A deterministic policy climbs its critic. TD3 keeps the critic from flattering it: the smallest of
two values is the target, its action is smoothed by noise, and the policy moves once per
`policy_delay` steps of the critics. DDPG is the same update with one critic, no noise and no delay.
Deviation: DDPG, too, explores by Gaussian noise, where its paper has an Ornstein-Uhlenbeck process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.algorithm.actor import Actor, Choice, Heads
from slm_lab.agent.algorithm.base import SavedInParts, Setup, initialising, make_loss
from slm_lab.agent.algorithm.nets import TargetUpdate, TwinCritic, make_actor_net
from slm_lab.agent.algorithm.schedule import LearningRates, scheduled_value
from slm_lab.agent.learning.learner import (
    Learner,
    NetState,
    State,
    check_finite,
    gradients,
    optimizer_steps,
    replay_minibatches,
)
from slm_lab.spec import ScheduleSpec, Spec, batches_per_call, training_start_step
from slm_lab.spec.algorithm.td3 import TD3Spec
from slm_lab.types import Metrics, ReplayBatch

Values = dict[str, Tensor]


def smoothed_action(action: Tensor, noise: Tensor, clip: float) -> Tensor:
    """clip(pi(s') + clip(noise, -c, c), -1, 1), eq. 14 of Fujimoto et al. 2018."""
    return (action + noise.clamp(-clip, clip)).clamp(-1.0, 1.0)


def clipped_double_target(reward: Tensor, discount: Tensor, next_q: Sequence[Tensor]) -> Tensor:
    """r + discount * min_i Q_i(s', a'), eq. 10; of one critic, the target of DDPG. All are [N]."""
    return reward + discount * torch.stack(tuple(next_q)).amin(0)


def policy_loss(q_value: Tensor) -> Tensor:
    """-E[Q(s, pi(s))], whose gradient is the deterministic policy gradient (Silver et al. 2014)."""
    return -q_value.mean()


class NoisyAction(Choice):
    """tanh of the net's output, and Gaussian noise around it while exploring."""

    noise_kind = "normal"

    def __init__(self, schedule: ScheduleSpec, setup: Setup) -> None:
        self._schedule = schedule
        self.noise_dim = setup.spaces.action_sizes[0]
        self._std = torch.zeros((), device=setup.device)

    def __call__(self, heads: Heads, *inputs: Tensor) -> tuple[Tensor, ...]:
        std, noise = inputs
        return ((heads[0].tanh() + std * noise).clamp(-1.0, 1.0),)

    def greedy(self, heads: Heads) -> Tensor:
        return heads[0].tanh()

    def inputs(self, noise: Tensor, frame: int) -> tuple[Tensor, ...]:
        return self._std.fill_(self.explore_var(frame)), noise

    def in_numpy(self, heads: list[np.ndarray], noise: Tensor, frame: int) -> Tensor:
        action = np.tanh(heads[0]) + np.float32(self.explore_var(frame)) * noise.numpy()
        return torch.from_numpy(action.clip(-1.0, 1.0))

    def explore_var(self, frame: int) -> float:
        """The std of the noise."""
        return scheduled_value(self._schedule, frame)


class TD3(SavedInParts):
    """Owns actor, critics, their targets and optimisers. An update of all of them is one graph."""

    def __init__(self, spec: Spec, setup: Setup) -> None:
        self._spec = own = cast(TD3Spec, spec.agent.algorithm)
        self._batch_size = spec.agent.memory.batch_size
        actor, critic = spec.agent.net, spec.agent.critic
        self._setup = setup
        self._action_dim = setup.spaces.action_sizes[0]
        self._random_frames = training_start_step(spec)
        with initialising(setup.seeds.net):
            policy_net = make_actor_net(actor, setup.spaces, (self._action_dim,)).to(setup.device)
            self._actor = NetState("net", policy_net, actor, setup.precision)
            self._critics = TwinCritic(critic, setup, crossed=False, count=own.num_critics)
        nets = [self._actor, *self._critics.net_states]
        self.modules = {net.name: net.net for net in nets}
        self._targets = {"target_net": "net"} | self._critics.targets
        state = {key: value for net in nets for key, value in net.initial_state().items()}
        state |= {target: state[online].clone() for target, online in self._targets.items()}
        state["td_error"] = torch.zeros(self._batch_size, device=setup.device)
        self._target_update = TargetUpdate(critic, env_steps_per_gradient_step=1.0)
        self._row_loss = make_loss(critic.loss_spec, reduction="none")
        # Two graphs over one state: with a policy delay most updates move the critics alone.
        self.learner, self._critic_learner = (
            Learner(state, step, compile=setup.compile, eager_steps=setup.eager_steps)
            for step in (self._full_step, self._critic_step)
        )
        self._per_call = batches_per_call(spec)
        frames = max(own.training_frequency, setup.num_envs)
        self._rates = LearningRates({net.name: net.spec for net in nets}, frames)
        self._critic_updates = self._updates_before = 0  # in all, and before the latest update
        self._exploration = NoisyAction(own.explore_var_spec, setup)
        self._act = Actor(self._actor, self._exploration, state, setup)
        self._random = torch.Generator().manual_seed(setup.seeds.act + 1)
        self._generator = torch.Generator().manual_seed(setup.seeds.learn)
        self._parts = {
            "learner": self.learner,
            "act": self._act,
            "rates": self._rates,
            "target_update": self._target_update,
        }

    def act(self, obs: Tensor, *, frame: int = 0, explore: bool = True) -> Tensor:
        """Actions in [-1, 1], as the env executes them."""
        if explore and frame < self._random_frames:
            action = torch.rand(len(obs), self._action_dim, generator=self._random) * 2 - 1
            return action.to(self._setup.device)
        return self._act(obs, frame=frame, explore=explore)

    def to_env(self, action: Tensor) -> Tensor:
        return action

    def update(self, batch: ReplayBatch, frame: int) -> Metrics:
        self.learner.set_coefficients(**self._rates.values(frame))
        drawn = replay_minibatches(batch, self._batch_size)
        self._updates_before = self._critic_updates
        td_errors = []
        for rows, noise in zip(drawn, self._target_noise(len(drawn)), strict=True):
            self._critic_updates += 1
            is_full = self._critic_updates % self._spec.policy_delay == 0
            (self.learner if is_full else self._critic_learner).step(*rows, noise)
            td_errors.append(self.learner.state["td_error"].clone())
        self._target_update.copy_if_due(self.learner.state, self._targets, frame)
        lr = self._rates.advance(frame, len(drawn) // self._per_call)
        metrics = self._critic_learner.mean_metrics() | self.learner.mean_metrics()
        own = {"explore_var": self._exploration.explore_var(frame), "lr": lr}
        values = dict(check_finite(metrics, frame)) | own
        return Metrics(values, opt_steps=len(drawn), td_error=torch.cat(td_errors))

    def target_nets(self) -> dict[str, dict[str, Tensor]]:
        state, nets = self.learner.state, (self._actor, *self._critics.net_states)
        pairs = zip(self._targets, nets, strict=True)
        return {name: net.named_parameters(state[name]) for name, net in pairs}

    def targets_kept(self) -> float:
        """Share of the target nets before the latest update that is still in them."""
        before, delay = self._updates_before, self._spec.policy_delay
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

    # The update, pure

    def _full_step(self, state: State, *rows: Tensor) -> tuple[State, Values]:
        changes, metrics = self._critic_step(state, *rows)
        moved, of_actor = self._actor_step(state | changes, rows[0])
        changes |= moved
        changes |= self._target_update.moved(state | changes, self._targets)
        return changes, metrics | of_actor

    def _critic_step(
        self,
        state: State,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        next_obs: Tensor,
        discount: Tensor,
        weight: Tensor,
        noise: Tensor,
    ) -> tuple[State, Values]:
        slow = state | {"net": state["target_net"]}
        next_action = smoothed_action(
            self._actor(slow, next_obs)[0].tanh(), noise, self._spec.target_noise_clip
        )

        def loss(state: State) -> tuple[Tensor, Values]:
            now, later = self._critics.current_and_target_q(
                state, obs, action, next_obs, next_action
            )
            target = clipped_double_target(reward, discount, later)
            rows = torch.stack([self._row_loss(q, target) for q in now]).sum(0)
            td_error = target - torch.stack(now).mean(0)
            return (weight * rows).mean(), {"q_value": now[0].mean(), "rows": td_error}

        critics = self._critics.net_states
        grads, metrics = gradients(loss, state, [critic.name for critic in critics])
        moved, norm = optimizer_steps(critics, state, grads)
        return {"td_error": metrics.pop("rows")} | moved, metrics | {"grad_norm": norm}

    def _actor_step(self, state: State, obs: Tensor) -> tuple[State, Values]:
        def loss(state: State) -> tuple[Tensor, Values]:
            action = self._actor(state, obs, training=True)[0].tanh()
            loss = policy_loss(self._critics.values(state, obs, action, first=1)[0])
            return loss, {"policy_loss": loss}

        grads, metrics = gradients(loss, state, ["net"])
        changes, _ = self._actor.optimizer_step(state, grads["net"])
        return changes, {"policy_loss": metrics["policy_loss"]}

    def _target_noise(self, count: int) -> Sequence[Tensor]:
        """Noise on the actions of the target policy, for each minibatch of an update."""
        device, std = self._setup.device, self._spec.target_noise
        if not std:  # nothing is drawn
            return [torch.zeros((), device=device)] * count
        shape = (count, self._batch_size, self._action_dim)
        return (std * torch.randn(shape, generator=self._generator)).to(device).unbind(0)
