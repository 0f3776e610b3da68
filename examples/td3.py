"""TD3 (Fujimoto et al. 2018), as a file of one's own: nothing in slm_lab knows of it.

    cd examples && slm-lab run td3.yaml td3_pendulum train

Twin critics bound the value from below, the target policy is smoothed by clipped noise, and the
policy moves once per `policy_delay` steps of the critics. `ReplayActorCritic` brings what SAC and
its kin share: random first steps, replayed minibatches, the delay, target nets, all that is saved.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from slm_lab.extend import (
    POLYAK,
    AlgorithmInfo,
    Choice,
    Count,
    Defaults,
    Key,
    NonNegative,
    OffPolicySpec,
    ReplayActorCritic,
    ReplayRows,
    Setup,
    Spec,
    State,
    gradients,
    make_loss,
    make_net,
    mlp,
    replay,
)

Values = dict[str, Tensor]


class TD3Spec(OffPolicySpec):
    """Twin delayed deep deterministic policy gradient."""

    policy_delay: Count = Key(2, "Critic updates per actor and target update.")
    explore_noise: NonNegative = Key(0.1, "Std of the noise that is added to actions.")
    target_noise: NonNegative = Key(0.2, "Std of the noise on actions of the target policy.")
    target_noise_clip: NonNegative = Key(0.5, "Largest size of that noise.")


class NoisyPolicy(Choice):
    """tanh of the net's output, plus Gaussian noise while exploring."""

    noise_kind = "normal"

    def __init__(self, std: float, action_dim: int) -> None:
        self._std, self.noise_dim = std, action_dim

    def __call__(self, heads: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        return ((heads[0].tanh() + self._std * inputs[0]).clamp(-1, 1),)

    def greedy(self, heads: Any) -> Tensor:
        return heads[0].tanh()

    def in_numpy(self, heads: Any, noise: Tensor, frame: int) -> Tensor:
        return self([torch.from_numpy(heads[0])], noise)[0]


class TD3(ReplayActorCritic):
    """An actor and two critics, each followed by a target net."""

    record = AlgorithmInfo(
        "TD3",
        TD3Spec,
        memories=frozenset({"replay"}),
        actions=frozenset({"continuous"}),
        target_net=True,
        recurrent=False,
        seconds_saved=6e-3,
        defaults=Defaults(replay(256, 1_000_000), mlp([256, 256], "relu", 1e-3), target=POLYAK),
    )

    def __init__(self, spec: Spec, setup: Setup) -> None:
        self._own: Any = spec.agent.algorithm
        net, shape, dim = spec.agent.net, setup.spaces.obs_shape, setup.spaces.action_sizes[0]
        super().__init__(
            spec,
            setup,
            NoisyPolicy(self._own.explore_noise, dim),
            lambda: make_net(net, shape, (dim,)),
            has_target_actor=True,
        )
        self._row_loss = make_loss(net.loss_spec, reduction="none")

    def _learning_noise(self, count: int) -> Iterable[tuple[Tensor, ...]]:
        """Noise on the target policy's actions, for each of so many minibatches."""
        shape, clip = (count, self._batch_size, self._action_dim), self._own.target_noise_clip
        noise = self._own.target_noise * torch.randn(shape, generator=self._generator)
        return zip(noise.clamp(-clip, clip).to(self._setup.device), strict=True)

    # Pure functions of the training state

    def _critic_loss(self, state: State, batch: ReplayRows, noise: Sequence[Tensor]) -> Any:
        target_actor = state | {"net": state["target_net"]}
        action = self._actor(target_actor, batch.next_obs)[0].tanh()
        next_action = (action + noise[0]).clamp(-1, 1)

        def loss(state: State) -> tuple[Tensor, Values]:
            (q1, q2), next_q = self._critics.current_and_target_q(
                state, batch.obs, batch.action, batch.next_obs, next_action
            )
            target = batch.reward + batch.discount * torch.min(*next_q)
            rows = self._row_loss(q1, target) + self._row_loss(q2, target)
            td_error = target - (q1 + q2) / 2
            return (batch.weight * rows).mean(), {"q_value": q1.mean(), "rows": td_error}

        return loss

    def _policy_step(
        self, state: State, obs: Tensor, noise: Sequence[Tensor]
    ) -> tuple[State, Values]:
        def loss(state: State) -> tuple[Tensor, Values]:
            action = self._actor(state, obs, training=True)[0].tanh()
            loss = -self._critics.values(state, obs, action)[0].mean()
            return loss, {"policy_loss": loss}

        grads, metrics = gradients(loss, state, ["net"])
        changes, _ = self._actor.optimizer_step(state, grads["net"])
        return changes, {"policy_loss": metrics["policy_loss"]}
