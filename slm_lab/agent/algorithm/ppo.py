"""PPO-clip (Schulman et al. 2017).

Deviations: advantages are normalised per minibatch; the log-ratio is clamped to +-20, far outside
the clip range, so that a wild step cannot overflow; values are in reward units for GAE even when
the head is trained on normalised targets (critic.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from slm_lab.agent.algorithm.acting import PolicyActor, Recall
from slm_lab.agent.algorithm.actor_critic_nets import ActorCriticNets
from slm_lab.agent.algorithm.critic import Critic
from slm_lab.agent.algorithm.distribution import Distribution, make_family
from slm_lab.agent.algorithm.loss import make_loss
from slm_lab.agent.algorithm.returns import gae, standardize
from slm_lab.agent.algorithm.schedule import LearningRates, scheduled_value
from slm_lab.agent.algorithm.sequence import from_rows, shuffled_minibatches
from slm_lab.agent.algorithm.setup import Setup
from slm_lab.agent.learning.divergence import check_finite
from slm_lab.agent.learning.learner import Learner, State, Update, descent
from slm_lab.agent.learning.parallel_learners import ParallelLearners
from slm_lab.agent.learning.seeds import initialising
from slm_lab.spec import ppo_minibatch_size
from slm_lab.types import Metrics, Rollout

if TYPE_CHECKING:
    from slm_lab.spec import NetSpec, PPOSILSpec, PPOSpec, Spec


def ppo_policy_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip_eps: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped surrogate, eq. 7, negated to descend. Inputs are [N]."""
    log_ratio = (log_prob - old_log_prob).clamp(-20, 20)
    ratio = log_ratio.exp()
    surrogate = torch.min(ratio * advantage, ratio.clamp(1 - clip_eps, 1 + clip_eps) * advantage)
    return -surrogate.mean(), {
        "clip_frac": ((ratio - 1).abs() > clip_eps).float().mean(),
        "approx_kl": (ratio - 1 - log_ratio).mean(),  # Schulman's low-variance estimator
    }


def clipped_value_loss(
    value: Tensor, old_value: Tensor, target: Tensor, clip_eps: Tensor
) -> Tensor:
    """Half the larger squared error: of the value, or of one kept near the old value."""
    near = old_value + (value - old_value).clamp(-clip_eps, clip_eps)
    return 0.5 * torch.max((value - target).square(), (near - target).square()).mean()


def symlog(x: Tensor) -> Tensor:
    """sign(x) ln(1 + |x|): compresses large magnitudes, near-linear around zero."""
    return x.sign() * x.abs().log1p()


# What a CPU's caches hold of a convolutional net's activations at once: forward passes over 2,064
# Atari frames took 484 us a frame in one go, 299 in chunks of 64 (one core).
CACHED_IMAGES = 64


class FlatRollout(NamedTuple):
    """The rows [N] of a rollout, or of a minibatch of it."""

    obs: Tensor
    action: Tensor
    old_log_prob: Tensor
    advantage: Tensor
    target: Tensor
    old_value: Tensor

    def at(self, index: Tensor) -> FlatRollout:
        return FlatRollout(*(column[index] for column in self))


class PPO:
    """Owns nets, optimisers, schedules. One update = one rollout, several epochs of minibatches."""

    @classmethod
    def build(cls, spec: Spec, setup: Setup) -> PPO:
        algorithm: Any = spec.agent.algorithm
        agent = spec.agent
        return cls(algorithm, agent.net, agent.critic, setup, ppo_minibatch_size(spec))

    def __init__(
        self,
        spec: PPOSpec | PPOSILSpec,
        actor: NetSpec,
        critic: NetSpec,
        setup: Setup,
        minibatch_size: int,
    ) -> None:
        self._spec = spec
        self._minibatch_size = minibatch_size
        self._family = make_family(setup.spaces, spec.action_pdtype)
        with initialising(setup.seeds.net):
            self.nets = ActorCriticNets(self._family, actor, critic, setup.device)
        self.modules = self.nets.modules
        self._value_loss = make_loss(critic.loss_spec)
        self.critic = Critic(self.nets, setup.device, normalize=spec.normalize_v_targets)
        state = self.nets.initial_state() | {
            "clip_eps": torch.zeros((), device=setup.device),
            "entropy_coef": torch.zeros((), device=setup.device),
            "advantage_range": torch.zeros(
                2, device=setup.device
            ),  # running 5th and 95th percentile
        }
        self.learner = self._make_learner(state, setup)
        self._rates = LearningRates(self.nets.specs, spec.time_horizon * setup.num_envs)
        self._generator = torch.Generator().manual_seed(setup.seeds.learn)
        policy_net = self.nets.trainables[0]
        spaces = setup.spaces
        self._recall = None
        if self.nets.shared and spaces.is_image and spaces.action_type == "discrete":
            judgement = self.nets.judgement_of_heads
            self._recall = Recall(judgement, spec.time_horizon, setup.num_envs, setup.device)
        self.act = PolicyActor(
            self._family, policy_net, self.nets.policy_of_heads, state, setup, self._recall
        )

    def to_env(self, action: Tensor) -> Tensor:
        return self._family.to_env(action)

    def update(self, rollout: Rollout, frame: int) -> Metrics:
        spec = self._spec
        clip_eps = scheduled_value(spec.clip_eps_spec, frame)
        entropy_coef = scheduled_value(spec.entropy_coef_spec, frame)
        self.learner.set_coefficients(
            clip_eps=clip_eps, entropy_coef=entropy_coef, **self._rates.values(frame)
        )
        if rollout.log_prob is None:
            rollout = self.evaluate(rollout)
        rows = self._rows(rollout)
        length, envs = rollout.reward.shape
        steps = 0
        for epoch in range(spec.training_epoch):
            if epoch and spec.recompute_advantages:
                value, next_value = self.critic.values(self.learner.state, rollout)
                rollout = replace(rollout, value=value, next_value=next_value)
                rows = FlatRollout(*rows[:3], *self._advantages(rollout))
            minibatches = shuffled_minibatches(
                length,
                envs,
                self._minibatch_size,
                self.nets.seq_len,
                self._generator,
                rollout.reward.device,
            )
            self.learner.steps([(*rows, index) for index in minibatches])
            steps += len(minibatches)
        lr = self._rates.mean(frame)
        self._rates.advance(frame)
        metrics = check_finite(self.learner.mean_metrics(), frame)
        values = dict(metrics) | {
            "clip_eps": clip_eps,
            "entropy_coef": entropy_coef,
            "lr": lr,
        }
        return Metrics(values, opt_steps=steps * len(self.nets.trainables))

    @torch.no_grad()
    def evaluate(self, rollout: Rollout) -> Rollout:
        """The rollout with log-probs and values of the present nets: those that acted in it."""
        log_prob, predicted = self._log_probs_and_values(rollout)
        value, next_value = self.critic.values(self.learner.state, rollout, predicted)
        log_prob = log_prob.view_as(rollout.reward)
        return replace(rollout, log_prob=log_prob, value=value, next_value=next_value)

    def loss(self, state: State, *rows_and_index: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Policy, value and entropy terms on the rows that the index selects."""
        rows = self._minibatch(rows_and_index)
        policy, value = self.nets(state, from_rows(rows.obs, self.nets.seq_len), training=True)
        policy_loss, of_policy = self._policy_terms(policy, rows, state)
        value_loss, of_value = self._value_term(value, rows, state)
        return policy_loss + value_loss, of_policy | of_value

    def policy_loss(
        self, state: State, *rows_and_index: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What of the loss moves a policy net of its own."""
        rows = self._minibatch(rows_and_index)
        obs = from_rows(rows.obs, self.nets.seq_len)
        return self._policy_terms(self.nets.policy(state, obs, training=True), rows, state)

    def value_loss(self, state: State, *rows_and_index: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """What of the loss moves a critic of its own."""
        rows = self._minibatch(rows_and_index)
        obs = from_rows(rows.obs, self.nets.seq_len)
        return self._value_term(self.nets.value(state, obs, training=True), rows, state)

    def state_dict(self) -> dict[str, Any]:
        return {
            "learner": self.learner.state_dict(),
            "critic": self.critic.state_dict(),
            "act": self.act.state_dict(),
            "rates": self._rates.state_dict(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        self.critic.load_state_dict(state["critic"])
        self.act.load_state_dict(state["act"])
        self._rates.load_state_dict(state["rates"])
        self._generator.set_state(state["generator"])

    @torch.no_grad()
    def _rows(self, rollout: Rollout) -> FlatRollout:
        assert rollout.log_prob is not None
        obs, action = rollout.obs[:-1].flatten(0, 1), rollout.action.flatten(0, 1)
        return FlatRollout(obs, action, rollout.log_prob.flatten(), *self._advantages(rollout))

    def _advantages(self, rollout: Rollout) -> tuple[Tensor, Tensor, Tensor]:
        """Flat [N] advantages, and value targets and values in the units of the value head."""
        value, next_value = rollout.value, rollout.next_value
        assert value is not None
        assert next_value is not None
        advantage = gae(
            rollout.reward,
            value,
            next_value,
            rollout.terminated,
            rollout.truncated,
            self._spec.gamma,
            self._spec.lam,
        )
        target = advantage + value
        self.critic.observe_targets(target)
        target, value = self.critic.to_head_units(target, value)
        return advantage.flatten(), target.flatten(), value.flatten()

    def _log_probs_and_values(self, rollout: Rollout) -> tuple[Tensor, Tensor | None]:
        """log pi(a|s) [T * B], and the value head's outputs for all T + 1 rows if they come along.

        The policy has not moved since it acted, so all of them can be computed at once.
        """
        obs, action = rollout.obs[:-1].flatten(0, 1), rollout.action.flatten(0, 1)
        state = self.learner.state
        if not self.nets.shared:
            return self.nets.policy(state, obs).log_prob(action), None
        if self._recall is not None and (recalled := self._recall.take(rollout.action)):
            log_prob, value = (column.flatten() for column in recalled)
            return log_prob, torch.cat([value, self.nets.value(state, rollout.obs[-1])])
        # One pass of a shared net gives the values too. Its last row was not acted on: any action
        # will do there.
        seen, acted = rollout.obs.flatten(0, 1), torch.cat([action, rollout.action[-1]])
        size = CACHED_IMAGES if seen.dim() == 4 and seen.device.type == "cpu" else len(seen)
        passes = [
            (policy.log_prob(chosen), value)
            for images, chosen in zip(
                torch.split(seen, size), torch.split(acted, size), strict=True
            )
            for policy, value in [self.nets(state, images)]
        ]
        log_prob, predicted = (torch.cat(column) for column in zip(*passes, strict=True))
        return log_prob[: len(action)], predicted

    def _make_learner(self, state: State, setup: Setup) -> Learner | ParallelLearners:
        """One for all, or one for each of two nets of like size when there is a thread for each."""
        trainables = self.nets.trainables
        if setup.threads == 1 or setup.device.type != "cpu" or not self.nets.are_alike:
            update = self._tracking_range(descent(trainables, self.loss))
            return Learner(state, update, compile=setup.compile)
        policy, critic = trainables
        of_policy = self._tracking_range(descent([policy], self.policy_loss))
        of_critic = descent([critic], self.value_loss)
        learners = [Learner(state, u, compile=setup.compile) for u in (of_policy, of_critic)]
        return ParallelLearners(learners, setup.threads)

    def _tracking_range(self, descend: Update) -> Update:
        """The update of a policy, after that of the percentiles its advantages are scaled by."""
        if self._spec.normalize_advantages != "percentile":
            return descend

        def update(state: State, *rows_and_index: Tensor) -> tuple[State, dict[str, Tensor]]:
            advantage = self._minibatch(rows_and_index).advantage
            percentiles = torch.quantile(advantage, advantage.new_tensor([0.05, 0.95]))
            moved = {"advantage_range": state["advantage_range"].lerp(percentiles, 0.01)}
            changes, metrics = descend(state | moved, *rows_and_index)
            return changes | moved, metrics

        return update

    def _minibatch(self, rows_and_index: tuple[Tensor, ...]) -> FlatRollout:
        *rows, index = rows_and_index
        return FlatRollout(*rows).at(index)

    def _policy_terms(
        self, policy: Distribution, rows: FlatRollout, state: State
    ) -> tuple[Tensor, dict[str, Tensor]]:
        entropy = policy.entropy().mean()
        policy_loss, metrics = ppo_policy_loss(
            policy.log_prob(rows.action),
            rows.old_log_prob,
            self._normalized(rows.advantage, state["advantage_range"]),
            state["clip_eps"],
        )
        loss = policy_loss - state["entropy_coef"] * entropy
        return loss, metrics | {"policy_loss": policy_loss, "entropy": entropy}

    def _value_term(
        self, value: Tensor, rows: FlatRollout, state: State
    ) -> tuple[Tensor, dict[str, Tensor]]:
        old_value, target = rows.old_value, rows.target
        if self._spec.symlog:
            value, old_value, target = symlog(value), symlog(old_value), symlog(target)
        if self._spec.clip_vloss:
            loss = clipped_value_loss(value, old_value, target, state["clip_eps"])
        else:
            loss = self._value_loss(value, target)
        loss = self._spec.val_loss_coef * loss
        return loss, {"value_loss": loss}

    def _normalized(self, advantage: Tensor, low_high: Tensor) -> Tensor:
        if self._spec.normalize_advantages == "standardize":
            return standardize(advantage)
        if self._spec.normalize_advantages == "percentile":
            # Only large spreads are scaled down: small, noisy advantages are not blown up.
            return advantage / (low_high[1] - low_high[0]).clamp_min(1.0)
        return advantage
