"""PPO-clip (Schulman et al. 2017).

Deviations: advantages are normalised per minibatch; the log-ratio is clamped to +-20, far outside
the clip range, so that a wild step cannot overflow; values are in reward units for GAE even when
the head is trained on normalised targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from slm_lab.agent.algorithm.actor import Actor, SampledPolicy
from slm_lab.agent.algorithm.base import SavedInParts, Setup, initialising, make_loss
from slm_lab.agent.algorithm.distribution import Distribution, make_action_distribution
from slm_lab.agent.algorithm.nets import ActorCriticNets, Critic
from slm_lab.agent.algorithm.schedule import LearningRates, scheduled_value
from slm_lab.agent.learning.learner import (
    Learner,
    State,
    Update,
    check_finite,
    gradient_update,
)
from slm_lab.agent.learning.parallel import ParallelLearners
from slm_lab.agent.learning.returns import explained_variance, gae, standardize, symlog
from slm_lab.spec import Spec
from slm_lab.spec.algorithm.ppo import PPOSpec, ppo_minibatch_size
from slm_lab.spec.algorithm.sil import PPOSILSpec
from slm_lab.types import Metrics, Rollout


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


# Images whose activations fit a CPU's caches: forward passes over 2,064 Atari frames took 484 us a
# frame in one go, 299 in chunks of 64 (one core).
CACHED_IMAGES = 64


class FlatRollout(NamedTuple):
    """The rows [N] of a rollout, or of a minibatch of it, whose `obs` may be in sequences."""

    obs: Tensor
    action: Tensor
    old_log_prob: Tensor
    advantage: Tensor
    target: Tensor
    old_value: Tensor


class PPO(SavedInParts):
    """Owns nets, optimisers, schedules. One update = one rollout, several epochs of minibatches."""

    def __init__(self, spec: Spec, setup: Setup) -> None:
        self._spec = own = cast(PPOSpec | PPOSILSpec, spec.agent.algorithm)
        self._minibatch_size = ppo_minibatch_size(spec)
        distribution = make_action_distribution(setup.spaces, own.action_pdtype)
        actor, critic = spec.agent.net, spec.agent.critic
        with initialising(setup.seeds.net):
            self.nets = ActorCriticNets(distribution, actor, critic, setup.device, setup.precision)
        self.modules = self.nets.modules
        self.to_env = distribution.to_env
        self._value_loss = make_loss(critic.loss_spec)
        self.critic = Critic(self.nets, setup.device, normalize=own.normalize_v_targets)
        state = self.nets.initial_state() | {
            "clip_eps": torch.zeros((), device=setup.device),
            "entropy_coef": torch.zeros((), device=setup.device),
            # Running 5th and 95th percentile.
            "advantage_range": torch.zeros(2, device=setup.device),
        }
        if own.target_kl is not None:
            state["is_too_far"] = torch.zeros((), dtype=torch.bool, device=setup.device)
        self.learner = self._make_learner(state, setup)
        self._rates = LearningRates(self.nets.specs, own.rollout_length * setup.num_envs)
        self._generator = torch.Generator().manual_seed(setup.seeds.learn)
        spaces = setup.spaces
        evaluates = self.nets.shared and spaces.has_images and spaces.action_type == "discrete"
        choice = SampledPolicy(
            distribution,
            self.nets.policy_of_heads,
            self.nets.policy_and_value if evaluates else None,
        )
        self.act = Actor(self.nets.net_states[0], choice, state, setup)
        self._parts = {
            "learner": self.learner,
            "critic": self.critic,
            "act": self.act,
            "rates": self._rates,
        }

    @property
    def evaluated(self) -> Sequence[Tensor]:
        """(log-probs, values) of the actions explored last, where acting gives them; or ()."""
        if not self.act.evaluated:
            return ()
        log_prob, output = self.act.evaluated
        return log_prob, self.critic.to_reward_units(output)

    def update(self, rollout: Rollout, frame: int) -> Metrics:
        spec = self._spec
        coefficients = {
            "clip_eps": scheduled_value(spec.clip_eps_spec, frame),
            "entropy_coef": scheduled_value(spec.entropy_coef_spec, frame),
        }
        self.learner.set_coefficients(**coefficients, **self._rates.values(frame))
        rollout = self.evaluate(rollout)
        rows = self._rows(rollout)
        explained = explained_variance(rows.old_value, rows.target)
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
            taken = self._take_steps([(*rows, index) for index in minibatches])
            steps += taken
            if taken < len(minibatches):
                break
        lr = self._rates.advance(frame)
        metrics = check_finite(self.learner.mean_metrics(), frame)
        opt_steps = steps * len(self.nets.net_states)
        values = {**metrics, **coefficients, "explained_variance": explained.item(), "lr": lr}
        return Metrics(values, opt_steps=opt_steps)

    @torch.no_grad()
    def evaluate(self, rollout: Rollout) -> Rollout:
        """Fill in log-probs, values and those of successors, by the nets that acted.

        They have not moved since, so that all steps are computed in one pass; where acting gave the
        log-probs and values, only the states after the last step are new.
        """
        if rollout.next_value is not None:
            return rollout
        state, last = self.learner.state, rollout.obs[-1]
        obs, action = rollout.obs.flatten(0, 1), rollout.action.flatten(0, 1)
        log_prob, value = rollout.log_prob, None
        if log_prob is not None and rollout.value is not None:
            value = torch.cat([rollout.value.flatten(), self.critic.value(state, last)])
        elif self.nets.shared:
            # One pass gives both. The last states were not acted on: any action will do there.
            log_prob, output = self._shared_pass(obs, torch.cat([action, rollout.action[-1]]))
            log_prob, value = log_prob[: len(action)], self.critic.to_reward_units(output)
        else:
            log_prob = self.nets.policy(state, obs[: len(action)]).log_prob(action)
        value, next_value = self.critic.values(state, rollout, value)
        log_prob = log_prob.view_as(rollout.reward)
        return replace(rollout, log_prob=log_prob, value=value, next_value=next_value)

    def loss(self, state: State, *rows_and_index: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Policy, value and entropy terms on the rows that the index selects."""
        rows = self._selected(rows_and_index)
        policy, value = self.nets(state, rows.obs, training=True)
        policy_loss, policy_metrics = self._policy_terms(policy, rows, state)
        value_loss, value_metrics = self._value_term(value, rows, state)
        return policy_loss + value_loss, policy_metrics | value_metrics

    def policy_loss(
        self, state: State, *rows_and_index: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Policy part of the loss, for separate actor and critic nets."""
        rows = self._selected(rows_and_index)
        return self._policy_terms(self.nets.policy(state, rows.obs, training=True), rows, state)

    def value_loss(self, state: State, *rows_and_index: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Value part of the loss, for separate actor and critic nets."""
        rows = self._selected(rows_and_index)
        return self._value_term(self.nets.value(state, rows.obs, training=True), rows, state)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._generator.set_state(state["generator"])

    def _take_steps(self, batches: Sequence[tuple[Tensor, ...]]) -> int:
        """Learn from minibatches until the policy is too far: the number of steps taken."""
        if self._spec.target_kl is None:
            self.learner.steps(batches)
            return len(batches)
        for taken, batch in enumerate(batches):
            self.learner.step(*batch)
            if self.learner.state["is_too_far"].item():
                return taken
        return len(batches)

    @torch.no_grad()
    def _rows(self, rollout: Rollout) -> FlatRollout:
        assert rollout.log_prob is not None
        obs, action = rollout.obs[:-1].flatten(0, 1), rollout.action.flatten(0, 1)
        return FlatRollout(obs, action, rollout.log_prob.flatten(), *self._advantages(rollout))

    def _selected(self, rows_and_index: tuple[Tensor, ...]) -> FlatRollout:
        """The minibatch that the last tensor, an index of rows, selects from the others."""
        obs, *others, index = rows_and_index
        seen = self.nets.net_states[0].in_sequences(obs[index])
        return FlatRollout(seen, *(column[index] for column in others))

    def _advantages(self, rollout: Rollout) -> tuple[Tensor, Tensor, Tensor]:
        """Flat [N] advantages, and value targets and values in the units of the value head."""
        value, next_value = rollout.value, rollout.next_value
        assert value is not None
        assert next_value is not None
        spec, truncated = self._spec, rollout.truncated
        if spec.num_unrolls > 1:  # where one ends, the value of the next state stands for the rest
            step = torch.arange(1, len(value) + 1, device=value.device)
            truncated = truncated | (step % spec.time_horizon == 0).unsqueeze(1)
        ends = rollout.terminated, truncated
        advantage = gae(rollout.reward, value, next_value, *ends, spec.gamma, spec.lam)
        target = advantage + value
        target, value = self.critic.learn_units(target, value)
        return advantage.flatten(), target.flatten(), value.flatten()

    def _shared_pass(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """(log-probs of the actions, outputs of the value head) of a shared net."""
        size = CACHED_IMAGES if obs.dim() == 4 and obs.device.type == "cpu" else len(obs)
        chunks = zip(torch.split(obs, size), torch.split(action, size), strict=True)
        passes = [
            (policy.log_prob(actions), value)
            for rows, actions in chunks
            for policy, value in [self.nets(self.learner.state, rows)]
        ]
        log_prob, value = (torch.cat(column) for column in zip(*passes, strict=True))
        return log_prob, value

    def _make_learner(self, state: State, setup: Setup) -> Learner:
        """One for all, or one for each of two nets of like size when there is a thread for each."""
        nets, target_kl = self.nets.net_states, self._spec.target_kl
        is_one = setup.threads == 1 or setup.device.type != "cpu" or not self.nets.are_alike
        # A critic on a thread of its own would not know where to stop.
        if is_one or target_kl is not None:
            update = self._tracking_range(gradient_update(nets, self.loss))
            update = update if target_kl is None else unless_too_far(update, target_kl)
            return Learner(state, update, compile=setup.compile, eager_steps=setup.eager_steps)
        policy_update = self._tracking_range(gradient_update(nets[:1], self.policy_loss))
        updates = policy_update, gradient_update(nets[1:], self.value_loss)
        learners = [
            Learner(state, update, compile=setup.compile, eager_steps=setup.eager_steps)
            for update in updates
        ]
        return ParallelLearners(learners, setup.threads)

    def _tracking_range(self, policy_update: Update) -> Update:
        """The update of a policy, after that of the percentiles its advantages are scaled by."""
        if self._spec.normalize_advantages != "percentile":
            return policy_update

        def update(state: State, *rows_and_index: Tensor) -> tuple[State, dict[str, Tensor]]:
            advantage = self._selected(rows_and_index).advantage
            percentiles = torch.quantile(advantage, advantage.new_tensor([0.05, 0.95]))
            moved = {"advantage_range": state["advantage_range"].lerp(percentiles, 0.01)}
            changes, metrics = policy_update(state | moved, *rows_and_index)
            return changes | moved, metrics

        return update

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


def unless_too_far(update: Update, target_kl: float) -> Update:
    """The update, which changes nothing where the KL of its minibatch exceeds the target.

    The KL is known only on the way to the gradient, in one compiled step with the optimiser's.
    """

    def guarded(state: State, *rows_and_index: Tensor) -> tuple[State, dict[str, Tensor]]:
        changes, metrics = update(state, *rows_and_index)
        is_too_far = metrics["approx_kl"] > target_kl
        kept = {key: torch.where(is_too_far, state[key], new) for key, new in changes.items()}
        return kept | {"is_too_far": is_too_far}, metrics

    return guarded


def shuffled_minibatches(
    steps: int,
    envs: int,
    size: int,
    seq_len: int | None,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, ...]:
    """Row indices t * B + b of a rollout, in minibatches of `size`, without replacement.

    With sequences, whole ones are drawn: a minibatch is [L, size / L] flattened.
    """
    length = seq_len or 1
    sequences = steps // length * envs
    # Drawn on the CPU, so that one seed means one order everywhere; one copy for all minibatches.
    order = torch.randperm(sequences, generator=generator).to(device)
    # A remainder of a few rows would take a step as large as the others, so it is left out.
    per_batch = size // length
    order = order[: sequences - sequences % per_batch]
    if seq_len is None:
        return torch.split(order, size)
    first = order // envs * (length * envs) + order % envs
    time = torch.arange(length, device=device).unsqueeze(1) * envs
    return tuple((time + start).flatten() for start in torch.split(first, per_batch))
