"""Advantage actor-critic (Mnih et al. 2016), with GAE, n-step or whole-rollout returns.

Deviation: advantages are standardised over the batch unless the spec says otherwise.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor

from slm_lab.agent.algorithm.actor import Actor, SampledPolicy
from slm_lab.agent.algorithm.base import (
    SavedInParts,
    Setup,
    initialising,
    make_loss,
    on_policy_learner,
)
from slm_lab.agent.algorithm.distribution import make_action_distribution
from slm_lab.agent.algorithm.nets import ActorCriticNets, Critic, with_successors
from slm_lab.agent.algorithm.schedule import LearningRates, scheduled_value
from slm_lab.agent.learning.compiler import Compiled
from slm_lab.agent.learning.learner import Learner, State, check_finite, gradient_update
from slm_lab.agent.learning.returns import (
    discounted_returns,
    explained_variance,
    gae,
    n_step_returns,
    standardize,
)
from slm_lab.spec import Problem, Spec, SpecError
from slm_lab.spec.algorithm.a2c import ActorCriticSpec
from slm_lab.spec.algorithm.sil import SILSpec
from slm_lab.types import Metrics, Rollout


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """-E[log pi(a|s) A], whose gradient is the negated policy gradient. Inputs are [N]."""
    return -(log_prob * advantage).mean()


class EvaluatedRollout(NamedTuple):
    """Rows [N] of a rollout, evaluated by the nets that acted."""

    obs: Tensor  # [T, B, ...] for a recurrent net
    action: Tensor
    advantage: Tensor
    target: Tensor  # in the units of the value head
    explained_variance: Tensor


class ActorCritic(SavedInParts):
    """Owns nets, optimisers, schedules. One update = one gradient step on one rollout."""

    def __init__(self, spec: Spec, setup: Setup) -> None:
        self._spec = own = cast(ActorCriticSpec | SILSpec, spec.agent.algorithm)
        if own.normalize_advantages == "percentile":
            fix = "percentile is for PPO. Use standardize or none."
            raise SpecError([Problem("agent.algorithm.normalize_advantages", fix)])
        distribution = make_action_distribution(setup.spaces, own.action_pdtype)
        self.to_env = distribution.to_env
        actor, critic = spec.agent.net, spec.agent.critic
        with initialising(setup.seeds.net):
            self.nets = ActorCriticNets(distribution, actor, critic, setup.device, setup.precision)
        self.modules = self.nets.modules
        self._value_loss = make_loss(critic.loss_spec)
        self.critic = Critic(self.nets, setup.device, normalize=own.normalize_v_targets)
        state = self.nets.initial_state() | {"entropy_coef": torch.zeros((), device=setup.device)}
        nets = self.nets.net_states
        self.learner = on_policy_learner(nets, state, self.loss, setup)
        # Extra steps move the critic alone (or a shared net), over the same state.
        self._critic_learner = Learner(
            state,
            gradient_update(nets[-1:], self.critic_loss),
            compile=setup.compile,
            eager_steps=setup.eager_steps,
        )
        self._value_entries = nets[-1].own_entries(state)
        fixed = len(self._value_entries) + 2  # and the units of the head
        self._evaluate = Compiled(self._targets_and_advantages, mode=setup.compile, fixed=fixed)
        self._rates = LearningRates(self.nets.specs, own.rollout_length * setup.num_envs)
        choice = SampledPolicy(distribution, self.nets.policy_of_heads)
        self.act = Actor(self.nets.net_states[0], choice, state, setup)
        self._parts = {
            "learner": self.learner,
            "critic": self.critic,
            "act": self.act,
            "rates": self._rates,
        }

    def evaluate(self, rollout: Rollout) -> EvaluatedRollout:
        """Evaluate a rollout by the present nets: those that acted in it."""
        self.learner.keep_acting_weights()
        obs = self.nets.net_states[0].time_major(rollout.obs[:-1])
        return EvaluatedRollout(obs, rollout.action.flatten(0, 1), *self._advantages(rollout))

    def update(self, batch: Rollout | EvaluatedRollout, frame: int) -> Metrics:
        entropy_coef = scheduled_value(self._spec.entropy_coef_spec, frame)
        self.learner.set_coefficients(entropy_coef=entropy_coef, **self._rates.values(frame))
        rows = self.evaluate(batch) if isinstance(batch, Rollout) else batch
        self.learner.step(rows.obs, rows.action, rows.advantage, rows.target)
        for _ in range(self._spec.critic_iter):
            self._critic_learner.step(rows.obs, rows.target)
        lr = self._rates.advance(frame)
        metrics = check_finite(self.learner.mean_metrics(), frame)
        explained = rows.explained_variance.item()
        values = {
            **metrics,
            "entropy_coef": entropy_coef,
            "explained_variance": explained,
            "lr": lr,
        }
        steps = len(self.nets.net_states) + self._spec.critic_iter
        return Metrics(values, opt_steps=steps)

    def loss(
        self, state: State, obs: Tensor, action: Tensor, advantage: Tensor, target: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        spec = self._spec
        policy, value = self.nets(state, obs, training=True)
        entropy = policy.entropy().mean()
        policy_loss = spec.policy_loss_coef * policy_gradient_loss(
            policy.log_prob(action), advantage
        )
        value_loss = spec.val_loss_coef * self._value_loss(value, target)
        loss = policy_loss + value_loss - state["entropy_coef"] * entropy
        return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}

    def critic_loss(
        self, state: State, obs: Tensor, target: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        value = self.nets.value(state, obs, training=True)
        return self._spec.val_loss_coef * self._value_loss(value, target), {}

    @torch.no_grad()
    def _advantages(self, rollout: Rollout) -> tuple[Tensor, Tensor, Tensor]:
        """Flat [N] advantages, value targets in the units of the value head, and how much of the
        targets' variance the values explain."""
        target, advantage, explained = self._evaluate(
            *self.critic.units(),
            *self._value_entries.values(),
            rollout.obs,
            rollout.reward,
            self.critic.final_values(self.learner.state, rollout),
            rollout.terminated,
            rollout.truncated,
        )
        (target,) = self.critic.learn_units(target)
        return advantage, target, explained

    def _targets_and_advantages(
        self, mean: Tensor, std: Tensor, *inputs: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A pure function of the critic and a rollout, in reward units; flat [N]."""
        spec = self._spec
        state = dict(zip(self._value_entries, inputs[:-5], strict=True))
        obs, reward, final_value, terminated, truncated = inputs[-5:]
        ends = terminated, truncated
        predicted = self.nets.value(state, obs.flatten(0, 1)) * std + mean
        value, next_value = with_successors(predicted, final_value, truncated)
        if spec.lam is not None:
            target = value + gae(reward, value, next_value, *ends, spec.gamma, spec.lam)
        elif spec.num_step_returns is not None:
            target = n_step_returns(reward, next_value, *ends, spec.gamma, spec.num_step_returns)
        else:
            target = discounted_returns(reward, next_value, *ends, spec.gamma)
        advantage = target - value
        explained = explained_variance(value, target)
        if spec.normalize_advantages == "standardize":
            advantage = standardize(advantage)
        return target.flatten(), advantage.flatten(), explained
