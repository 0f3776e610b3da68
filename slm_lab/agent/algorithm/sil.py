"""Self-imitation learning (Oh et al. 2018) beside A2C or PPO.

After each update of the base algorithm, past steps whose return exceeded what the critic expects
are imitated: a plain policy-gradient step, without PPO's ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from slm_lab.agent.algorithm.a2c import ActorCritic
from slm_lab.agent.algorithm.base import Setup
from slm_lab.agent.algorithm.ppo import PPO
from slm_lab.agent.learning.learner import (
    Learner,
    State,
    check_finite,
    gradient_update,
    minibatches,
)
from slm_lab.spec import Spec
from slm_lab.spec.algorithm.sil import PPOSILSpec, SILSpec
from slm_lab.types import ImitationBatch, Metrics, PastBatch


def sil_losses(
    log_prob: Tensor, value: Tensor, return_: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(policy loss, value loss, (R - V)+), eq. 2 and 3. Inputs are [N].

    Steps that went no better than expected have no advantage and teach nothing.
    """
    advantage = (return_ - value).clamp_min(0)
    policy_loss = -(weight * log_prob * advantage.detach()).mean()
    value_loss = 0.5 * (weight * advantage.square()).mean()
    return policy_loss, value_loss, advantage.detach()


class SelfImitation:
    """A base algorithm, and a second learner over the base's own state."""

    def __init__(self, spec: Spec, setup: Setup) -> None:
        self._spec = own = cast(SILSpec | PPOSILSpec, spec.agent.algorithm)
        base = (PPO if isinstance(own, PPOSILSpec) else ActorCritic)(spec, setup)
        self._base = base
        self.modules, self.learner = base.modules, base.learner
        self.act, self.to_env = base.act, base.to_env
        self.state_dict, self.load_state_dict = base.state_dict, base.load_state_dict
        self._batch_size = spec.agent.memory.batch_size
        # The same tensors under the same names, and one more for the advantages of a batch.
        device = base.learner.state["net"].device
        state = base.learner.state | {"advantage": torch.zeros(self._batch_size, device=device)}
        imitate = gradient_update(base.nets.net_states, self.loss)

        def update(state: State, *rows: Tensor) -> tuple[State, dict[str, Tensor]]:
            changes, metrics = imitate(state, *rows)
            return changes | {"advantage": metrics.pop("rows")}, metrics

        self._imitation = Learner(state, update, compile=setup.compile)

    @property
    def evaluated(self) -> Sequence[Tensor]:
        return getattr(self._base, "evaluated", ())

    def evaluate(self, batch: ImitationBatch) -> ImitationBatch:
        """Evaluate the rollout of the batch by the nets that acted in it."""
        evaluated: Any = self._base.evaluate(batch.rollout)  # in the form that the base learns from
        return replace(batch, rollout=evaluated)

    def update(self, batch: ImitationBatch, frame: int) -> Metrics:
        metrics = self._base.update(batch.rollout, frame)
        if batch.past is None:
            return metrics
        advantage = self._imitate(batch.past)
        sil = {f"sil_{k}": v for k, v in self._imitation.mean_metrics().items()}
        steps = self._spec.training_iter * self._spec.training_batch_iter
        return Metrics(
            {**metrics.values, **check_finite(sil, frame)},
            opt_steps=metrics.opt_steps + steps,
            td_error=advantage,
        )

    def loss(
        self, state: State, obs: Tensor, action: Tensor, return_: Tensor, weight: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        policy, value = self._base.nets(state, obs, training=True)
        policy_loss, value_loss, advantage = sil_losses(
            policy.log_prob(action), value, return_, weight
        )
        loss = self._spec.sil_policy_loss_coef * policy_loss
        loss = loss + self._spec.sil_val_loss_coef * value_loss
        return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "rows": advantage}

    def _imitate(self, past: PastBatch) -> Tensor:
        return_ = self._base.critic.to_head_units(past.return_)
        advantages = []
        columns = (past.obs, past.action, return_, past.weight)
        for rows in minibatches(columns, self._batch_size):
            for _ in range(self._spec.training_batch_iter):
                self._imitation.step(*rows)
            advantages.append(self._imitation.state["advantage"].clone())
        return torch.cat(advantages)
