"""The DQN family: VanillaDQN (no target net), DQN (Mnih et al. 2015), DoubleDQN (van Hasselt 2016).

Deviation: a target net starts as a copy of the online net.

A noisy net (Fortunato et al. 2018) draws noise for each env that acts. A gradient step has three
draws: for the loss, for the values of the next state, and for the choice of the next action.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from slm_lab.agent.algorithm.actor import Actor, Noise, QExploration
from slm_lab.agent.algorithm.base import SavedInParts, Setup, make_loss
from slm_lab.agent.algorithm.nets import make_q_net
from slm_lab.agent.algorithm.replay_actor_critic import TargetUpdate
from slm_lab.agent.algorithm.schedule import LearningRates
from slm_lab.agent.learning.learner import (
    Learner,
    ReplayRows,
    State,
    check_finite,
    gradients,
    replay_minibatches,
)
from slm_lab.spec import Spec
from slm_lab.spec.algorithm.dqn import DQNSpec
from slm_lab.types import Metrics, ReplayBatch


def td_target(reward: Tensor, discount: Tensor, next_q: Tensor, next_q_select: Tensor) -> Tensor:
    """r + discount * Q(s', argmax_a Q_select(s', a)). Rewards [N], Q values [N, A].

    Selecting with the evaluating net itself is the maximum of DQN; selecting with the online net
    and evaluating with the target net is Double DQN.
    """
    best = next_q_select.argmax(-1, keepdim=True)
    return reward + discount * next_q.gather(-1, best).squeeze(-1)


class DQN(SavedInParts):
    """Owns the Q net, its target, optimiser and exploration schedule.

    The net says the mean of each action's return; of a `DistributionalDQN` it says more.
    """

    atoms = 1  # numbers that the net gives of each action

    def __init__(self, spec: Spec, setup: Setup) -> None:
        self._spec = own = cast(DQNSpec, spec.agent.algorithm)
        self._setup, self._is_double = setup, own.is_double
        self._batch_size = size = spec.agent.memory.batch_size
        self._targets = {"target_net": "net"} if spec.agent.algorithm_info.target_net else {}
        net = spec.agent.net
        self._q = make_q_net(net, setup, self.atoms)
        self.modules = {"net": self._q.net}
        state = self._q.initial_state() | {"td_error": torch.zeros(size, device=setup.device)}
        if self._targets:
            state["target_net"] = state["net"].clone()
        self._row_loss = make_loss(net.loss_spec, reduction="none")
        gradient_steps = own.training_iter * own.training_batch_iter  # per training call
        env_steps = own.training_frequency / setup.num_envs
        self._target_update = TargetUpdate(
            net, env_steps_per_gradient_step=env_steps / gradient_steps
        )
        self._latest_steps = 0  # gradient steps of the latest update
        self.learner = Learner(
            state, self._step, compile=setup.compile, eager_steps=setup.eager_steps
        )
        self._rates = LearningRates({"net": net}, max(own.training_frequency, setup.num_envs))
        self._exploration = QExploration(own, setup, None if self.atoms == 1 else self.q_value)
        self.act = Actor(self._q, self._exploration, state, setup)
        self._parts = {
            "learner": self.learner,
            "act": self.act,
            "rates": self._rates,
            "target_update": self._target_update,
        }
        self._noise = None
        if self._q.noise_size:
            shape = 2 + self._is_double, self._q.noise_size
            self._noise = self._parts["noise"] = Noise(
                "factors", shape, setup.seeds.learn, setup.device
            )

    def q_value(self, outputs: Tensor) -> Tensor:
        """Outputs of the net -> Q values [N, A]."""
        return outputs

    def target(
        self, reward: Tensor, discount: Tensor, next_outputs: Tensor, next_q_select: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(what each row learns, metrics of it)."""
        return td_target(reward, discount, next_outputs, next_q_select), {}

    def row_loss(
        self, outputs: Tensor, action: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(loss, Q value, TD error or what else priorities are made of) of each row."""
        q_value = outputs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return self._row_loss(q_value, target), q_value, target - q_value

    def to_env(self, action: Tensor) -> Tensor:
        return action

    def update(self, batch: ReplayBatch, frame: int) -> Metrics:
        self.learner.set_coefficients(**self._rates.values(frame))
        self._target_update.copy_if_due(self.learner.state, self._targets, frame)
        td_errors = []
        for rows in replay_minibatches(batch, self._batch_size):
            for _ in range(self._spec.training_batch_iter):
                self.learner.step(*rows, *(() if self._noise is None else (self._noise(),)))
            td_errors.append(self.learner.state["td_error"].clone())
        lr = self._rates.advance(frame, len(td_errors) // self._spec.training_iter)
        metrics = check_finite(self.learner.mean_metrics(), frame)
        values = {**metrics, "explore_var": self._exploration.explore_var(frame), "lr": lr}
        td_error = torch.cat(td_errors) if len(td_errors) > 1 else td_errors[0]
        self._latest_steps = len(td_errors) * self._spec.training_batch_iter
        return Metrics(values, opt_steps=self._latest_steps, td_error=td_error)

    def target_nets(self) -> dict[str, dict[str, Tensor]]:
        state = self.learner.state
        return {name: self._q.named_parameters(state[name]) for name in self._targets}

    def targets_kept(self) -> float:
        """Share of the target net before the latest update that is still in it."""
        return self._target_update.kept(self._latest_steps)

    def _step(self, state: State, *inputs: Tensor) -> tuple[State, dict[str, Tensor]]:
        (obs, action, reward, next_obs, discount, weight), noises = ReplayRows.split(inputs)
        noise = noises[0] if noises else None
        obs = self._q.in_sequences(obs)
        if self._spec.n_step == 1:
            # After several rewards successors skip and repeat steps, so they are no sequences: each
            # is read alone, from the recurrent state stored with it.
            next_obs = self._q.in_sequences(next_obs)
        target, of_target = self._td_target(state, reward, next_obs, discount, noise)

        def loss(state: State) -> tuple[Tensor, dict[str, Tensor]]:
            outputs = self._q(state, obs, training=True)[0]
            rows, q_value, td_error = self.row_loss(outputs, action, target)
            metrics = {"q_value": q_value.mean(), **of_target, "td_error_rows": td_error}
            return (weight * rows).mean(), metrics

        grads, metrics = gradients(loss, self._with_noise(state, noise, 0), ["net"])
        changes, norm = self._q.optimizer_step(state, grads["net"])
        changes["td_error"] = metrics.pop("td_error_rows")
        changes |= self._target_update.moved(state | changes, self._targets)
        return changes, metrics | {"grad_norm": norm}

    def _td_target(
        self,
        state: State,
        reward: Tensor,
        next_obs: Tensor,
        discount: Tensor,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        slow = {**state, "net": state["target_net"]} if self._targets else state
        target = select = self._q(self._with_noise(slow, noise, 1), next_obs)[0]
        if self._is_double:
            select = self._q(self._with_noise(state, noise, 2), next_obs)[0]
        return self.target(reward, discount, target, self.q_value(select))

    def _with_noise(self, state: State, noise: Tensor | None, use: int) -> State:
        return state if noise is None else self._q.with_noise(state, noise[use])
