"""TD3 (Fujimoto et al. 2018), as a file of one's own: nothing in slm_lab knows of it.

    cd examples && slm-lab run td3.yaml td3_pendulum train

Twin critics bound the value from below, the target policy is smoothed by clipped noise, and the
policy moves once per `policy_delay` steps of the critics.
"""

from typing import Any

import torch
from torch import Tensor

from slm_lab.extend import (
    POLYAK,
    Actor,
    AlgorithmInfo,
    Choice,
    Count,
    Defaults,
    Key,
    Learner,
    LearningRates,
    Metrics,
    NetState,
    NonNegative,
    OffPolicySpec,
    ReplayBatch,
    SavedInParts,
    Setup,
    Spec,
    State,
    TargetUpdate,
    TwinCritic,
    check_finite,
    gradients,
    initialising,
    make_loss,
    make_net,
    mlp,
    optimizer_steps,
    replay,
    replay_minibatches,
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


class TD3(SavedInParts):
    """Owns actor, critics and their targets. An update of all of them is one graph."""

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
        self._spec: Any = spec.agent.algorithm
        self._batch_size = spec.agent.memory.batch_size
        net, spaces, self._device = spec.agent.net, setup.spaces, setup.device
        self._dim = spaces.action_sizes[0]
        given = self._spec.training_start_step
        self._random_frames = max(1000, self._batch_size) if given is None else given
        with initialising(setup.seeds.net):
            actor = make_net(net, spaces.obs_shape, (self._dim,)).to(setup.device)
            self._actor = NetState("net", actor, net, setup.precision)
            self._critics = TwinCritic(net, setup, crossed=False)
        nets = [self._actor, *self._critics.net_states]
        self.modules = {each.name: each.net for each in nets}
        self._targets = {"target_net": "net"} | self._critics.targets
        state = {key: value for each in nets for key, value in each.initial_state().items()}
        state |= {target: state[online].clone() for target, online in self._targets.items()}
        state["td_error"] = torch.zeros(self._batch_size, device=setup.device)
        # Two graphs over one state: most updates move the critics alone.
        self.learner = Learner(
            state, self._full_step, compile=setup.compile, eager_steps=setup.eager_steps
        )
        self._critic_learner = Learner(
            state, self._critic_step, compile=setup.compile, eager_steps=setup.eager_steps
        )
        self._row_loss = make_loss(net.loss_spec, reduction="none")
        self._target_update = TargetUpdate(net, env_steps_per_gradient_step=1.0)
        frames = max(self._spec.training_frequency, setup.num_envs)
        self._rates = LearningRates({each.name: each.spec for each in nets}, frames)
        self._act = Actor(
            self._actor, NoisyPolicy(self._spec.explore_noise, self._dim), state, setup
        )
        self._random = torch.Generator().manual_seed(setup.seeds.act + 1)
        self._generator = torch.Generator().manual_seed(setup.seeds.learn)
        self._updates = 0
        self._parts = {
            "learner": self.learner,
            "act": self._act,
            "rates": self._rates,
            "target_update": self._target_update,
        }

    def act(self, obs: Tensor, *, frame: int = 0, explore: bool = True) -> Tensor:
        if explore and frame < self._random_frames:
            action = torch.rand(len(obs), self._dim, generator=self._random) * 2 - 1
            return action.to(self._device)
        return self._act(obs, explore=explore)

    def to_env(self, action: Tensor) -> Tensor:
        return action

    def update(self, batch: ReplayBatch, frame: int) -> Metrics:
        self.learner.set_coefficients(**self._rates.values(frame))
        drawn = replay_minibatches(batch, self._batch_size)
        shape = (len(drawn), self._batch_size, self._dim)
        noise = torch.randn(shape, generator=self._generator).to(self._device)
        td_errors = []
        for rows, each in zip(drawn, noise, strict=True):
            self._updates += 1
            is_full = self._updates % self._spec.policy_delay == 0
            (self.learner if is_full else self._critic_learner).step(*rows, each)
            td_errors.append(self.learner.state["td_error"].clone())
        self._target_update.copy_if_due(self.learner.state, self._targets, frame)
        lr = self._rates.advance(frame, len(drawn))
        metrics = self._critic_learner.mean_metrics() | self.learner.mean_metrics()
        values = dict(check_finite(metrics, frame)) | {"lr": lr}
        return Metrics(values, opt_steps=len(drawn), td_error=torch.cat(td_errors))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "random": self._random.get_state(),
            "generator": self._generator.get_state(),
            "updates": self._updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._random.set_state(state["random"])
        self._generator.set_state(state["generator"])
        self._updates = int(state["updates"])

    # The update, pure

    def _full_step(self, state: State, obs: Tensor, *rows: Tensor) -> tuple[State, Values]:
        changes, metrics = self._critic_step(state, obs, *rows)
        after = state | changes

        def loss(state: State) -> tuple[Tensor, Values]:
            action = self._actor(state, obs, training=True)[0].tanh()
            loss = -self._critics.values(state, obs, action)[0].mean()
            return loss, {"policy_loss": loss}

        grads, of_actor = gradients(loss, after, ["net"])
        changes |= self._actor.optimizer_step(after, grads["net"])[0]
        changes |= self._target_update.moved(state | changes, self._targets)
        return changes, metrics | {"policy_loss": of_actor["policy_loss"]}

    def _critic_step(
        self,
        state: State,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        next_obs: Tensor,
        discount: Tensor,
        weight: Tensor,
        noise: Tensor,
    ) -> tuple[State, Values]:
        clip = self._spec.target_noise_clip
        noise = (self._spec.target_noise * noise).clamp(-clip, clip)
        of_target = self._actor(state | {"net": state["target_net"]}, next_obs)[0]
        next_action = (of_target.tanh() + noise).clamp(-1, 1)

        def loss(state: State) -> tuple[Tensor, Values]:
            (q1, q2), next_q = self._critics.current_and_target_q(
                state, obs, action, next_obs, next_action
            )
            target = reward + discount * torch.min(*next_q)
            rows = self._row_loss(q1, target) + self._row_loss(q2, target)
            return (weight * rows).mean(), {"q_value": q1.mean(), "rows": target - (q1 + q2) / 2}

        critics = self._critics.net_states
        grads, metrics = gradients(loss, state, [critic.name for critic in critics])
        moved, norm = optimizer_steps(critics, state, grads)
        return {"td_error": metrics.pop("rows")} | moved, metrics | {"grad_norm": norm}
