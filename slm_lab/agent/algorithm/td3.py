"""TD3 (Fujimoto et al. 2018), and DDPG (Lillicrap et al. 2016) as its plain form.

A deterministic policy climbs its critic. TD3 keeps the critic from flattering it: the smallest of
two values is the target, its action is smoothed by noise, and the policy moves once per
`policy_delay` steps of the critics. DDPG is the same update with one critic, no noise and no delay.
Deviation: DDPG, too, explores by Gaussian noise, where its paper has an Ornstein-Uhlenbeck process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.algorithm.actor import Choice, Heads
from slm_lab.agent.algorithm.base import Setup, make_loss
from slm_lab.agent.algorithm.nets import make_actor_net
from slm_lab.agent.algorithm.replay_actor_critic import Loss, ReplayActorCritic, Values
from slm_lab.agent.algorithm.schedule import scheduled_value
from slm_lab.agent.learning.learner import ReplayRows, State, gradients
from slm_lab.spec import ScheduleSpec, Spec
from slm_lab.spec.algorithm.td3 import TD3Spec
from slm_lab.types import Metrics, ReplayBatch


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


class TD3(ReplayActorCritic):
    """An actor-critic whose actor, too, has a target. An update of all of them is one graph."""

    def __init__(self, spec: Spec, setup: Setup) -> None:
        self._spec = own = cast(TD3Spec, spec.agent.algorithm)
        net, spaces = spec.agent.net, setup.spaces
        self._exploration = NoisyAction(own.explore_var_spec, setup)
        super().__init__(
            spec,
            setup,
            self._exploration,
            lambda: make_actor_net(net, spaces, (spaces.action_sizes[0],)),
            has_target_actor=True,
            count=own.num_critics,
        )
        self._row_loss = make_loss(spec.agent.critic.loss_spec, reduction="none")

    def update(self, batch: ReplayBatch, frame: int) -> Metrics:
        metrics = super().update(batch, frame)
        explore_var = self._exploration.explore_var(frame)
        return replace(metrics, values={**metrics.values, "explore_var": explore_var})

    def _learning_noise(self, count: int) -> Iterable[tuple[Tensor, ...]]:
        """Noise on the actions of the target policy, for each minibatch of an update."""
        device, std = self._setup.device, self._spec.target_noise
        if not std:  # nothing is drawn
            return [(torch.zeros((), device=device),)] * count
        shape = (count, self._batch_size, self._action_dim)
        return zip((std * torch.randn(shape, generator=self._generator)).to(device), strict=True)

    def _critic_loss(self, state: State, batch: ReplayRows, noise: Sequence[Tensor]) -> Loss:
        obs, action, reward, next_obs, discount, weight = batch
        slow = state | {"net": state["target_net"]}
        next_action = smoothed_action(
            self._actor(slow, next_obs)[0].tanh(), noise[0], self._spec.target_noise_clip
        )

        def loss(state: State) -> tuple[Tensor, Values]:
            now, later = self._critics.current_and_target_q(
                state, obs, action, next_obs, next_action
            )
            target = clipped_double_target(reward, discount, later)
            rows = torch.stack([self._row_loss(q, target) for q in now]).sum(0)
            td_error = target - torch.stack(now).mean(0)
            return (weight * rows).mean(), {"q_value": now[0].mean(), "rows": td_error}

        return loss

    def _policy_step(
        self, state: State, obs: Tensor, noise: Sequence[Tensor]
    ) -> tuple[State, Values]:
        def loss(state: State) -> tuple[Tensor, Values]:
            action = self._actor(state, obs, training=True)[0].tanh()
            loss = policy_loss(self._critics.values(state, obs, action, first=1)[0])
            return loss, {"policy_loss": loss}

        grads, metrics = gradients(loss, state, ["net"])
        changes, _ = self._actor.optimizer_step(state, grads["net"])
        return changes, {"policy_loss": metrics["policy_loss"]}
