"""Soft actor-critic: continuous (Haarnoja et al. 2018) and discrete (Christodoulou 2019); CrossQ.

CrossQ (Bhatt et al. 2024) is the same update with crossed critics. Discrete actions use exact
expectations over actions and the mean of the two critics: with a handful of actions the minimum
underestimates. The usual target entropy of 0.98 ln|A| is out of reach, so the ratio is lower, and
can be annealed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import cast

import torch
from torch import Tensor, nn

from slm_lab.agent.algorithm.actor import SampledPolicy
from slm_lab.agent.algorithm.base import Setup, make_loss
from slm_lab.agent.algorithm.distribution import Categorical, TanhNormal, make_action_distribution
from slm_lab.agent.algorithm.nets import make_policy_net
from slm_lab.agent.algorithm.replay_actor_critic import Loss, ReplayActorCritic, Values
from slm_lab.agent.algorithm.schedule import LearningRate
from slm_lab.agent.algorithm.soft_return import CategoricalReturn, Outputs, SoftReturn
from slm_lab.agent.learning.learner import NetState, ReplayRows, State, gradients
from slm_lab.agent.learning.returns import symlog
from slm_lab.agent.net.rows import allowed_actions, latest_mask
from slm_lab.spec import Spec
from slm_lab.spec.algorithm.crossq import CrossQSpec
from slm_lab.spec.algorithm.sac import SoftActorCriticSpec
from slm_lab.types import Metrics, ReplayBatch


def actor_loss(q_value: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    """E[alpha log pi(a|s) - Q(s, a)], actions reparameterised."""
    return (alpha * log_prob - q_value).mean()


def actor_loss_discrete(q_values: Tensor, log_probs: Tensor, alpha: Tensor) -> Tensor:
    """E[sum_a pi(a|s) (alpha log pi(a|s) - Q(s, a))]."""
    return (log_probs.exp() * (alpha * log_probs - q_values)).sum(-1).mean()


def alpha_loss(log_alpha: Tensor, entropy: Tensor, target_entropy: Tensor) -> Tensor:
    """alpha * (entropy - target): minimising it lowers alpha while entropy is above its target."""
    return (log_alpha.exp() * (entropy - target_entropy).detach()).mean()


def soft_target(
    reward: Tensor, discount: Tensor, next_q: Tensor, next_log_prob: Tensor, alpha: Tensor
) -> Tensor:
    """r + discount * (Q(s', a') - alpha log pi(a'|s')), continuous."""
    return reward + discount * (next_q - alpha * next_log_prob)


def soft_target_discrete(
    reward: Tensor, discount: Tensor, next_q: Tensor, next_log_probs: Tensor, alpha: Tensor
) -> Tensor:
    """r + discount * E_pi[Q(s', .) - alpha log pi(.|s')], exact. Q and log-probs are [N, A]."""
    soft = next_q - alpha * next_log_probs
    return reward + discount * (next_log_probs.exp() * soft).sum(-1)


class LogAlpha(nn.Module):
    """The temperature, learned in log space."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor([math.log(alpha)]))


class ScalarReturn:
    """The mean of the return, learned by regression, in symlog space if the spec says so."""

    size = 1
    num_critics = 2

    def __init__(self, row_loss: Callable[[Tensor, Tensor], Tensor], *, in_symlog: bool) -> None:
        self._row_loss = row_loss
        self._in_symlog = in_symlog

    def mean(self, output: Tensor) -> Tensor:
        return output

    def policy_value(self, q_values: Outputs) -> Tensor:
        return torch.min(*q_values)

    def target(
        self, reward: Tensor, discount: Tensor, later: Outputs, log_prob: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Values]:
        return soft_target(reward, discount, torch.min(*later), log_prob, alpha), {}

    def target_discrete(
        self, reward: Tensor, discount: Tensor, later: Outputs, log_probs: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Values]:
        next_q = (later[0] + later[1]) / 2
        return soft_target_discrete(reward, discount, next_q, log_probs, alpha), {}

    def target_mean(self, target: Tensor) -> Tensor:
        return target

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        if self._in_symlog:
            return self._row_loss(symlog(output), symlog(target))
        return self._row_loss(output, target)


class SoftActorCritic(ReplayActorCritic):
    """An actor-critic with a temperature. An update of all of them is one graph."""

    def __init__(self, spec: Spec, setup: Setup) -> None:
        self._spec = own = cast(SoftActorCriticSpec | CrossQSpec, spec.agent.algorithm)
        actor, spaces = spec.agent.net, setup.spaces
        self._is_discrete = not spaces.is_continuous
        self._action_distribution = distribution = make_action_distribution(
            spaces, None if self._is_discrete else "NormalTanh"
        )
        self._return = self._make_return(spec)
        unclipped = actor.model_copy(update={"clip_grad_val": None})
        self._alpha = NetState("log_alpha", LogAlpha(own.init_alpha).to(setup.device), unclipped)
        scalars = ("target_entropy", "fixed_alpha", "entropy_ema")
        state = {name: torch.zeros((), device=setup.device) for name in scalars}
        if self._is_discrete:
            # The penalty holds entropy near its past: a fresh policy is near uniform, not certain.
            state["entropy_ema"].fill_(math.log(spaces.action_sizes[0]))
        super().__init__(
            spec,
            setup,
            SampledPolicy(distribution, squashed=not self._is_discrete),
            lambda: make_policy_net(distribution, actor),
            others=[self._alpha],
            more_state=state,
            crossed=own.crosses,
            spectral_norm=own.spectral_norm,
            count=self._return.num_critics,
            outputs=self._return.size,
        )
        alpha_lr = actor.optim_spec.lr if own.alpha_lr is None else own.alpha_lr
        schedule = actor.lr_scheduler_spec
        self._alpha_rate = LearningRate(alpha_lr, schedule, self._frames_per_update)
        self._parts["alpha_rate"] = self._alpha_rate

    def update(self, batch: ReplayBatch, frame: int) -> Metrics:
        metrics = super().update(batch, frame)
        self._alpha_rate.advance(frame, metrics.opt_steps // self._per_call)
        if "alpha" in metrics.values:
            return metrics
        # No step of this update moved the policy.
        alpha = float(self._current_alpha(self.learner.state))
        return replace(metrics, values={**metrics.values, "alpha": alpha})

    def target_entropy(self, frame: int) -> float:
        spec = self._spec
        if spec.target_entropy != "auto":
            return float(spec.target_entropy)
        if not self._is_discrete:
            return -float(self._action_dim)
        anneal = spec.entropy_anneal
        end = anneal.start_ratio if anneal.end_ratio is None else anneal.end_ratio
        progress = min(1.0, frame / anneal.frames) if anneal.frames else 0.0
        ratio = anneal.start_ratio + (end - anneal.start_ratio) * progress
        return ratio * math.log(self._action_dim)

    def fixed_alpha(self, frame: int) -> float:
        spec = self._spec
        if spec.fixed_alpha is None:
            return 0.0
        if not spec.alpha_anneal_frames:
            return spec.fixed_alpha
        return spec.fixed_alpha * max(0.0, 1 - frame / spec.alpha_anneal_frames)

    def _coefficients(self, frame: int) -> dict[str, float]:
        return {
            "target_entropy": self.target_entropy(frame),
            "fixed_alpha": self.fixed_alpha(frame),
            "log_alpha.lr": self._alpha_rate.value(frame),
        }

    def _learning_noise(self, count: int) -> list[tuple[Tensor, ...]]:
        """Pairs of noise, for next actions and for actions, of each minibatch of an update."""
        shape = (count, 2, self._batch_size, self._action_dim)
        if self._is_discrete:  # expectations are exact: nothing is drawn
            empty = torch.zeros((), device=self._setup.device)
            return [(empty, empty)] * count
        noise = torch.randn(shape, generator=self._generator).to(self._setup.device)
        return [(pair[0], pair[1]) for pair in noise.unbind(0)]

    # The update, pure

    def _critic_loss(self, state: State, batch: ReplayRows, noise: Sequence[Tensor]) -> Loss:
        alpha = self._current_alpha(state)
        obs, action, reward, next_obs, discount, weight = batch
        policy = self._policy(state, next_obs)

        def loss(state: State) -> tuple[Tensor, Values]:
            if isinstance(policy, Categorical):
                now, later = self._critics.current_and_target_q(state, obs, None, next_obs, None)
                target, metrics = self._return.target_discrete(
                    reward, discount, later, policy.log_probs(), alpha
                )
                now = tuple(_of_action(output, action) for output in now)
            else:
                u = policy.sample(noise[0])
                now, later = self._critics.current_and_target_q(
                    state, obs, action, next_obs, u.tanh()
                )
                target, metrics = self._return.target(
                    reward, discount, later, policy.log_prob(u), alpha
                )
            rows = reduce(add, [self._return.loss(output, target) for output in now])
            q_values = [self._return.mean(output) for output in now]
            td_error = self._return.target_mean(target) - reduce(add, q_values) / len(now)
            metrics |= {"q_value": q_values[0].mean(), "rows": td_error}
            return (weight * rows).mean(), metrics

        return loss

    def _policy_step(
        self, state: State, obs: Tensor, noise: Sequence[Tensor]
    ) -> tuple[State, Values]:
        changes, metrics, entropy = self._actor_step(state, obs, noise[1])
        changes |= self._alpha_step(state | changes, entropy, self._reachable(obs))
        return changes, metrics

    def _actor_step(self, state: State, obs: Tensor, noise: Tensor) -> tuple[State, Values, Tensor]:
        alpha = self._current_alpha(state)

        def loss(state: State) -> tuple[Tensor, Values]:
            policy = self._policy(state, obs, training=True)
            if isinstance(policy, Categorical):
                q1, q2 = self._q_values(state, obs, None)
                loss = actor_loss_discrete(((q1 + q2) / 2).detach(), policy.log_probs(), alpha)
                entropy = policy.entropy()
                drift = state["entropy_ema"] - entropy.mean()
                loss = loss + self._spec.entropy_penalty_coef * 0.5 * drift.square()
            else:
                u = policy.sample(noise)
                log_prob = policy.log_prob(u)
                q_value = self._return.policy_value(self._q_values(state, obs, u.tanh()))
                loss = actor_loss(q_value, log_prob, alpha)
                entropy = -log_prob
            return loss, {"policy_loss": loss, "entropy": entropy.mean(), "rows": entropy}

        grads, metrics = gradients(loss, state, ["net"])
        metrics.pop("loss")
        entropy = metrics.pop("rows")
        changes, _ = self._actor.optimizer_step(state, grads["net"])
        changes["entropy_ema"] = state["entropy_ema"].lerp(entropy.mean(), 0.01)
        return changes, metrics | {"alpha": alpha.clone()}, entropy

    def _alpha_step(self, state: State, entropy: Tensor, reachable: Tensor | None = None) -> State:
        if self._spec.fixed_alpha is not None:
            return {}
        target_entropy = state["target_entropy"]
        if reachable is not None:
            target_entropy = target_entropy * reachable

        def loss(state: State) -> tuple[Tensor, Values]:
            return alpha_loss(state["log_alpha"], entropy, target_entropy), {}

        grads, _ = gradients(loss, state, ["log_alpha"])
        changes, _ = self._alpha.optimizer_step(state, grads["log_alpha"])
        bounds = self._spec.log_alpha_min, self._spec.log_alpha_max
        return changes | {"log_alpha": changes["log_alpha"].clamp(*bounds)}

    def _reachable(self, obs: Tensor) -> Tensor | None:
        """The share of the largest entropy that the allowed actions of each row can reach."""
        if not self._setup.spaces.mask or self._spec.target_entropy != "auto":
            return None
        allowed = allowed_actions(latest_mask(obs, self._setup.spaces)).sum(-1)
        return allowed.log() / math.log(self._action_dim)

    def _make_return(self, spec: Spec) -> SoftReturn:
        row_loss = make_loss(spec.agent.critic.loss_spec, reduction="none")
        scalar = ScalarReturn(row_loss, in_symlog=self._spec.symlog)
        critic = self._spec.critic
        return CategoricalReturn(critic, scalar) if critic.is_categorical else scalar

    def _q_values(self, state: State, obs: Tensor, action: Tensor | None) -> Outputs:
        return tuple(self._return.mean(each) for each in self._critics.values(state, obs, action))

    def _policy(
        self, state: State, obs: Tensor, *, training: bool = False
    ) -> Categorical | TanhNormal:
        policy = self._action_distribution(self._actor(state, obs, training=training))
        assert isinstance(policy, Categorical | TanhNormal)
        return policy

    def _current_alpha(self, state: State) -> Tensor:
        if self._spec.fixed_alpha is not None:
            return state["fixed_alpha"]
        return state["log_alpha"].exp().squeeze()


def _of_action(output: Tensor, action: Tensor) -> Tensor:
    """What an output for all actions, [N, A] or [N, A, K], says of one action [N]."""
    chosen = action.view(-1, 1, *[1] * (output.dim() - 2)).expand(-1, 1, *output.shape[2:])
    return output.gather(1, chosen).squeeze(1)
