"""REINFORCE (Williams 1992) with reward-to-go and standardised returns.

Without a critic, the return after a truncation (by a time limit or the end of the rollout) is
unknown. Counting it as zero would make the last states look bad, so the running mean of all returns
stands in for it.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from slm_lab.agent.algorithm.a2c import policy_gradient_loss
from slm_lab.agent.algorithm.actor import Actor, SampledPolicy
from slm_lab.agent.algorithm.base import SavedInParts, Setup, initialising, on_policy_learner
from slm_lab.agent.algorithm.distribution import make_action_distribution
from slm_lab.agent.algorithm.nets import make_policy_net
from slm_lab.agent.algorithm.schedule import LearningRates, scheduled_value
from slm_lab.agent.learning.learner import NetState, State, check_finite
from slm_lab.agent.learning.returns import discounted_returns, standardize
from slm_lab.agent.preprocessor import RunningMoments
from slm_lab.spec import Spec
from slm_lab.spec.algorithm.reinforce import ReinforceSpec
from slm_lab.types import Metrics, Rollout


class Reinforce(SavedInParts):
    """Owns the policy net, its optimiser and schedules. One update = one gradient step."""

    def __init__(self, spec: Spec, setup: Setup) -> None:
        self._spec = own = cast(ReinforceSpec, spec.agent.algorithm)
        net = spec.agent.net
        self._action_distribution = make_action_distribution(setup.spaces, own.action_pdtype)
        with initialising(setup.seeds.net):
            policy_net = make_policy_net(self._action_distribution, net).to(setup.device)
        self._net = NetState("net", policy_net, net, setup.precision)
        self.modules = {"net": self._net.net}
        state = self._net.initial_state() | {"entropy_coef": torch.zeros((), device=setup.device)}
        self.learner = on_policy_learner([self._net], state, self.loss, setup)
        self._rates = LearningRates({"net": net}, own.training_frequency * setup.num_envs)
        self._returns_seen = RunningMoments((), setup.device)
        self.to_env = self._action_distribution.to_env
        self.act = Actor(self._net, SampledPolicy(self._action_distribution), state, setup)
        self._parts = {
            "learner": self.learner,
            "returns": self._returns_seen,
            "act": self.act,
            "rates": self._rates,
        }

    def evaluate(self, rollout: Rollout) -> Rollout:
        """Keep the weights that acted in the rollout; see `acting_weights`."""
        self.learner.keep_acting_weights()
        return rollout

    def update(self, rollout: Rollout, frame: int) -> Metrics:
        entropy_coef = scheduled_value(self._spec.entropy_coef_spec, frame)
        self.learner.set_coefficients(entropy_coef=entropy_coef, **self._rates.values(frame))
        obs = self._net.time_major(rollout.obs[:-1])
        self.learner.step(obs, rollout.action.flatten(0, 1), self._advantage(rollout))
        lr = self._rates.advance(frame)
        metrics = check_finite(self.learner.mean_metrics(), frame)
        return Metrics(dict(metrics) | {"entropy_coef": entropy_coef, "lr": lr}, opt_steps=1)

    def loss(
        self, state: State, obs: Tensor, action: Tensor, advantage: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        policy = self._action_distribution(self._net(state, obs, training=True))
        entropy = policy.entropy().mean()
        policy_loss = self._spec.policy_loss_coef * policy_gradient_loss(
            policy.log_prob(action), advantage
        )
        return policy_loss - state["entropy_coef"] * entropy, {
            "policy_loss": policy_loss,
            "entropy": entropy,
        }

    def _advantage(self, rollout: Rollout) -> Tensor:
        unknown_tail = self._returns_seen.mean.float().expand_as(rollout.reward)
        returns = discounted_returns(
            rollout.reward, unknown_tail, rollout.terminated, rollout.truncated, self._spec.gamma
        )
        self._returns_seen.update(returns.reshape(-1))
        if self._spec.center_return:
            returns = returns - returns.mean()
        return standardize(returns).flatten()
