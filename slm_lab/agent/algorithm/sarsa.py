"""SARSA: on-policy TD(0) on Q values (Sutton & Barto, section 6.4), with a net.

The target needs the action that was really taken next. The newest step has none yet, and after a
truncation the next action belongs to another episode: both rows are left out of the loss.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from slm_lab.agent.algorithm.actor import Actor, QExploration
from slm_lab.agent.algorithm.base import SavedInParts, Setup, make_loss, on_policy_learner
from slm_lab.agent.algorithm.nets import make_q_net
from slm_lab.agent.algorithm.schedule import LearningRates
from slm_lab.agent.learning.learner import State, check_finite
from slm_lab.spec import Spec
from slm_lab.spec.algorithm.sarsa import SARSASpec
from slm_lab.types import Metrics, Rollout


def sarsa_target(
    reward: Tensor, q_value: Tensor, terminated: Tensor, truncated: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """(r_t + gamma * Q(s_{t+1}, a_{t+1}), whether row t has a target). All [T, B]."""
    following = torch.cat([q_value[1:], torch.zeros_like(q_value[:1])])
    target = reward + gamma * following * ~terminated
    is_last = torch.zeros_like(terminated)
    is_last[-1] = True
    return target, terminated | ~(truncated | is_last)


class SARSA(SavedInParts):
    """Owns the Q net, its optimiser and exploration schedule. One update = one gradient step."""

    def __init__(self, spec: Spec, setup: Setup) -> None:
        self._spec = own = cast(SARSASpec, spec.agent.algorithm)
        net = spec.agent.net
        self._q = make_q_net(net, setup)
        self.modules = {"net": self._q.net}
        state = self._q.initial_state()
        self._row_loss = make_loss(net.loss_spec, reduction="none")
        self.learner = on_policy_learner([self._q], state, self.loss, setup)
        self._rates = LearningRates({"net": net}, own.training_frequency * setup.num_envs)
        self._exploration = QExploration(own, setup)
        self.act = Actor(self._q, self._exploration, state, setup)
        self._parts = {"learner": self.learner, "act": self.act, "rates": self._rates}

    def to_env(self, action: Tensor) -> Tensor:
        return action

    def evaluate(self, rollout: Rollout) -> Rollout:
        """Keep the weights that acted in the rollout; see `acting_weights`."""
        self.learner.keep_acting_weights()
        return rollout

    def update(self, rollout: Rollout, frame: int) -> Metrics:
        self.learner.set_coefficients(**self._rates.values(frame))
        self.learner.step(
            rollout.obs[:-1], rollout.action, rollout.reward, rollout.terminated, rollout.truncated
        )
        lr = self._rates.advance(frame)
        metrics = check_finite(self.learner.mean_metrics(), frame)
        values = {**metrics, "explore_var": self._exploration.explore_var(frame), "lr": lr}
        return Metrics(values, opt_steps=1)

    def loss(
        self,
        state: State,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        terminated: Tensor,
        truncated: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        q_values = self._q(state, self._q.time_major(obs), training=True)[0]
        q_values = q_values.view(*reward.shape, -1)
        q_value = q_values.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        target, counts = sarsa_target(
            reward, q_value.detach(), terminated, truncated, self._spec.gamma
        )
        rows = self._row_loss(q_value, target) * counts
        return rows.sum() / counts.sum().clamp_min(1), {"q_value": q_value.mean()}
