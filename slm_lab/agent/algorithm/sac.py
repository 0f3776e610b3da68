"""Soft actor-critic: continuous (Haarnoja et al. 2018) and discrete (Christodoulou 2019); CrossQ.

CrossQ (Bhatt et al. 2024) is the same update with crossed critics. Discrete actions use exact
expectations over actions and the mean of the two critics: with a handful of actions the minimum
underestimates. The usual target entropy of 0.98 ln|A| is out of reach, so the ratio is lower, and
can be annealed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any, cast

import torch
from torch import Tensor, nn

from slm_lab.agent.algorithm.actor import Actor, SampledPolicy
from slm_lab.agent.algorithm.base import SavedInParts, Setup, initialising, make_loss
from slm_lab.agent.algorithm.distribution import Categorical, TanhNormal, make_action_distribution
from slm_lab.agent.algorithm.nets import TargetUpdate, TwinCritic, make_policy_net
from slm_lab.agent.algorithm.schedule import LearningRate, LearningRates
from slm_lab.agent.algorithm.soft_return import (
    CategoricalReturn,
    Outputs,
    ScalarReturn,
    SoftReturn,
    Values,
)
from slm_lab.agent.learning.learner import (
    Learner,
    NetState,
    State,
    check_finite,
    gradients,
    optimizer_steps,
    replay_minibatches,
)
from slm_lab.agent.net.rows import allowed_actions, draw_allowed, latest_mask
from slm_lab.spec import CrossQSpec, SoftActorCriticSpec, Spec
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


class LogAlpha(nn.Module):
    """The temperature, learned in log space."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor([math.log(alpha)]))


class SoftActorCritic(SavedInParts):
    """Owns actor, critics, temperature, optimisers. An update of all of them is one graph."""

    def __init__(self, spec: Spec, setup: Setup) -> None:
        self._spec = own = cast(SoftActorCriticSpec | CrossQSpec, spec.agent.algorithm)
        self._batch_size = batch_size = spec.agent.memory.batch_size
        actor, critic = spec.agent.net, spec.agent.critic
        self._is_discrete = not setup.spaces.is_continuous
        self._action_distribution = make_action_distribution(
            setup.spaces, None if self._is_discrete else "NormalTanh"
        )
        given = own.training_start_step
        self._random_frames = max(1000, batch_size) if given is None else given
        self._return = self._make_return(spec)
        with initialising(setup.seeds.net):
            policy_net = make_policy_net(self._action_distribution, actor).to(setup.device)
            self._actor = NetState("net", policy_net, actor, setup.precision)
            is_crossed = own.name == "CrossQ"
            self._critics = TwinCritic(
                critic,
                setup,
                crossed=is_crossed,
                spectral_norm=own.spectral_norm,
                count=self._return.num_critics,
                outputs=self._return.size,
            )
        log_alpha = LogAlpha(own.init_alpha).to(setup.device)
        unclipped = actor.model_copy(update={"clip_grad_val": None})
        self._alpha = NetState("log_alpha", log_alpha, unclipped)
        nets = [self._actor, *self._critics.net_states]
        self.modules = {net.name: net.net for net in (*nets, self._alpha)}
        state = self._initial_state([*nets, self._alpha], setup)
        self._target_update = TargetUpdate(critic, env_steps_per_gradient_step=1.0)
        # Two graphs over one state: with a policy delay most updates move the critics alone.
        self.learner = Learner(
            state, self._full_step, compile=setup.compile, eager_steps=setup.eager_steps
        )
        self._critic_learner = Learner(
            state, self._critic_step, compile=setup.compile, eager_steps=setup.eager_steps
        )
        self._per_call = own.training_iter or min(setup.num_envs, own.training_frequency)
        frames = max(own.training_frequency, setup.num_envs)
        self._rates = LearningRates({t.name: t.spec for t in nets}, frames)
        alpha_lr = actor.optim_spec.lr if own.alpha_lr is None else own.alpha_lr
        self._alpha_rate = LearningRate(alpha_lr, actor.lr_scheduler_spec, frames)
        self._critic_updates = self._updates_before = 0  # in all, and before the latest update
        self._action_dim = setup.spaces.action_sizes[0]
        self._setup = setup
        self._random = torch.Generator().manual_seed(setup.seeds.act + 1)
        self._generator = torch.Generator().manual_seed(setup.seeds.learn)
        choice = SampledPolicy(self._action_distribution, squashed=not self._is_discrete)
        self._act = Actor(self._actor, choice, state, setup)
        self._parts = {
            "learner": self.learner,
            "act": self._act,
            "rates": self._rates,
            "target_update": self._target_update,
            "alpha_rate": self._alpha_rate,
        }

    def act(self, obs: Tensor, *, frame: int = 0, explore: bool = True) -> Tensor:
        """Actions as the env executes them: squashed to [-1, 1], or class indices."""
        if explore and frame < self._random_frames:
            return self._uniform(obs)
        return self._act(obs, explore=explore)

    def to_env(self, action: Tensor) -> Tensor:
        return action

    def update(self, batch: ReplayBatch, frame: int) -> Metrics:
        alpha_rate = {"log_alpha.lr": self._alpha_rate.value(frame)}
        self.learner.set_coefficients(
            target_entropy=self.target_entropy(frame),
            fixed_alpha=self.fixed_alpha(frame),
            **self._rates.values(frame),
            **alpha_rate,
        )
        drawn = replay_minibatches(batch, self._batch_size)
        self._updates_before = self._critic_updates
        td_errors = []
        for rows, noise in zip(drawn, self._learning_noise(len(drawn)), strict=True):
            self._critic_updates += 1
            is_full = self._critic_updates % self._spec.policy_delay == 0
            (self.learner if is_full else self._critic_learner).step(*rows, *noise)
            td_errors.append(self.learner.state["td_error"].clone())
        self._target_update.copy_if_due(self.learner.state, self._critics.targets, frame)
        calls = len(drawn) // self._per_call
        lr = self._rates.advance(frame, calls)
        self._alpha_rate.advance(frame, calls)
        metrics = self._critic_learner.mean_metrics() | self.learner.mean_metrics()
        values = dict(check_finite(metrics, frame)) | {"lr": lr}
        if "alpha" not in values:  # no step of this update moved the policy
            values["alpha"] = float(self._current_alpha(self.learner.state))
        return Metrics(values, opt_steps=len(drawn), td_error=torch.cat(td_errors))

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

    def target_nets(self) -> dict[str, dict[str, Tensor]]:
        state = self.learner.state
        pairs = zip(self._critics.targets, self._critics.net_states, strict=False)  # CrossQ: none
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

    def _initial_state(self, nets: Sequence[NetState], setup: Setup) -> State:
        state = {k: v for net in nets for k, v in net.initial_state().items()}
        state |= {target: state[online].clone() for target, online in self._critics.targets.items()}
        scalars = ("target_entropy", "fixed_alpha", "entropy_ema")
        state |= {name: torch.zeros((), device=setup.device) for name in scalars}
        if self._is_discrete:
            # The penalty holds entropy near its past: a fresh policy is near uniform, not certain.
            state["entropy_ema"].fill_(math.log(setup.spaces.action_sizes[0]))
        return state | {"td_error": torch.zeros(self._batch_size, device=setup.device)}

    # The update, pure

    def _full_step(self, state: State, *rows: Tensor) -> tuple[State, Values]:
        changes, metrics = self._critic_step(state, *rows)
        moved, actor_metrics, entropy = self._actor_step(state | changes, rows[0], rows[-1])
        changes |= moved
        changes |= self._alpha_step(state | changes, entropy, self._reachable(rows[0]))
        changes |= self._target_update.moved(state | changes, self._critics.targets)
        return changes, metrics | actor_metrics

    def _critic_step(
        self,
        state: State,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        next_obs: Tensor,
        discount: Tensor,
        weight: Tensor,
        next_noise: Tensor,
        _noise: Tensor,
    ) -> tuple[State, Values]:
        alpha = self._current_alpha(state)
        policy = self._policy(state, next_obs)

        def loss(state: State) -> tuple[Tensor, Values]:
            if isinstance(policy, Categorical):
                now, later = self._critics.current_and_target_q(state, obs, None, next_obs, None)
                target, metrics = self._return.target_discrete(
                    reward, discount, later, policy.log_probs(), alpha
                )
                now = tuple(_of_action(output, action) for output in now)
            else:
                u = policy.sample(next_noise)
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

        critics = self._critics.net_states
        grads, metrics = gradients(loss, state, [critic.name for critic in critics])
        moved, norm = optimizer_steps(critics, state, grads)
        return {"td_error": metrics.pop("rows")} | moved, metrics | {"grad_norm": norm}

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
        if self._spec.critic.is_categorical:
            return CategoricalReturn(self._spec.critic)
        row_loss = make_loss(spec.agent.critic.loss_spec, reduction="none")
        return ScalarReturn(row_loss, in_symlog=self._spec.symlog)

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

    # Randomness

    def _uniform(self, obs: Tensor) -> Tensor:
        count = obs.shape[0]
        if self._setup.spaces.mask:
            allowed = allowed_actions(latest_mask(obs, self._setup.spaces))
            drawn = torch.rand(count, generator=self._random).to(obs.device)
            action = draw_allowed(allowed, drawn)
        elif self._is_discrete:
            action = torch.randint(self._action_dim, (count,), generator=self._random)
        else:
            action = torch.rand(count, self._action_dim, generator=self._random) * 2 - 1
        return action.to(self._setup.device)

    def _learning_noise(self, count: int) -> list[tuple[Tensor, Tensor]]:
        """Pairs of noise, for next actions and for actions, of each minibatch of an update."""
        shape = (count, 2, self._batch_size, self._action_dim)
        if self._is_discrete:  # expectations are exact: nothing is drawn
            empty = torch.zeros((), device=self._setup.device)
            return [(empty, empty)] * count
        noise = torch.randn(shape, generator=self._generator).to(self._setup.device)
        return [(pair[0], pair[1]) for pair in noise.unbind(0)]


def _of_action(output: Tensor, action: Tensor) -> Tensor:
    """What an output for all actions, [N, A] or [N, A, K], says of one action [N]."""
    chosen = action.view(-1, 1, *[1] * (output.dim() - 2)).expand(-1, 1, *output.shape[2:])
    return output.gather(1, chosen).squeeze(1)
