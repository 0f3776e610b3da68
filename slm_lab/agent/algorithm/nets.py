"""Nets of algorithms: policy and value, Q values; and the values of a rollout.

Policy and value are separate nets or two heads on one body. With privileged columns
(`Spaces.privileged`) each of two separate nets reads its own part of a row: a critic, which only
helps to learn, may know more than the policy (Pinto et al. 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from slm_lab.agent.algorithm.base import Setup, initialising
from slm_lab.agent.algorithm.distribution import ActionDistribution, Distribution
from slm_lab.agent.learning.learner import NetState, State
from slm_lab.agent.learning.precision import FLOAT32, Precision
from slm_lab.agent.net.mlp import init_head
from slm_lab.agent.net.recurrent import RecurrentNet
from slm_lab.agent.net.rows import inner_net, make_row_net
from slm_lab.agent.preprocessor import RunningMoments
from slm_lab.spec import NetSpec, Problem, SpecError
from slm_lab.types import Rollout, Spaces


def policy_heads(
    distribution: ActionDistribution, spec: NetSpec
) -> tuple[tuple[int, ...], int | None]:
    """(output dims of a policy net, size of its free log-std or None)."""
    if distribution.pdtype == "Beta" and spec.log_std_init is not None:
        raise SpecError([Problem("agent.net.log_std_init", "Beta has no log std. Remove it.")])
    if distribution.spaces.is_continuous and spec.log_std_init is not None:
        dim = distribution.spaces.action_sizes[0]
        return (dim,), dim
    return distribution.head_dims, None


def make_policy_net(distribution: ActionDistribution, spec: NetSpec) -> nn.Module:
    """Build the net of a policy, with the heads that its distribution needs."""
    return make_actor_net(spec, distribution.spaces, *policy_heads(distribution, spec))


def make_actor_net(
    spec: NetSpec, spaces: Spaces, dims: tuple[int, ...], log_std_dim: int | None = None
) -> nn.Module:
    """A net whose heads are a policy's: of a distribution, or the action itself."""
    net = make_row_net(spec, spaces, dims, log_std_dim, masked_heads=True)
    for head in _heads(net)[: len(dims)]:
        init_head(head, spec.actor_init_std)
    return net


class ActorCriticNets:
    """Evaluates pi(.|s) and V(s) under the parameters of a state."""

    def __init__(
        self,
        distribution: ActionDistribution,
        actor: NetSpec,
        critic: NetSpec,
        device: torch.device,
        precision: Precision = FLOAT32,
    ) -> None:
        self._action_distribution = distribution
        self.shared = bool(actor.shared)
        spaces = distribution.spaces
        self._privileged = spaces.privileged
        dims, log_std_dim = policy_heads(distribution, actor)
        policy_spaces = replace(spaces, obs_shape=spaces.policy_obs_shape)
        obeys = {"masked_heads": True}
        if self.shared:
            net = make_row_net(actor, policy_spaces, (*dims, 1), log_std_dim, **obeys)
            nets = {"net": (net, actor)}
            value_head = _heads(net)[len(dims)]
        else:
            net = make_row_net(actor, policy_spaces, dims, log_std_dim, **obeys)
            critic_spaces = replace(spaces, obs_shape=spaces.critic_obs_shape)
            critic_net = make_row_net(critic, critic_spaces, (1,))
            policy, value = inner_net(net), inner_net(critic_net)
            if isinstance(policy, RecurrentNet) and isinstance(value, RecurrentNet):
                value.memory_at = policy.memory_size
            nets = {"net": (net, actor), "critic_net": (critic_net, critic)}
            value_head = _heads(critic_net)[0]
        for head in _heads(net)[: len(dims)]:
            init_head(head, actor.actor_init_std)
        init_head(value_head, critic.critic_init_std)
        self.net_states = [
            NetState(name, net.to(device), spec, precision) for name, (net, spec) in nets.items()
        ]
        self.specs = {net.name: net.spec for net in self.net_states}
        self.modules = {net.name: net.net for net in self.net_states}
        self.seq_len = self.net_states[0].seq_len
        self._value_head = next(m for m in value_head.modules() if isinstance(m, nn.Linear))
        self._num_policy_heads = len(dims)

    @property
    def are_alike(self) -> bool:
        """Whether there are two nets, and neither is more than twice the size of the other."""
        sizes = sorted(net.size for net in self.net_states)
        return len(sizes) == 2 and 2 * sizes[0] >= sizes[1]

    def initial_state(self) -> State:
        """Entries of the nets in a fresh training state."""
        return {k: v for net in self.net_states for k, v in net.initial_state().items()}

    def __call__(
        self, state: State, obs: Tensor, *, training: bool = False
    ) -> tuple[Distribution, Tensor]:
        """obs [N, ...], or [T, B, W] in sequences -> (pi(.|s), V(s) [N])."""
        if self.shared:
            return self.policy_and_value(self.net_states[0](state, obs, training=training))
        policy = self.policy(state, obs, training=training)
        return policy, self.value(state, obs, training=training)

    def policy(self, state: State, obs: Tensor, *, training: bool = False) -> Distribution:
        """pi(.|s) of observations [N, ...]."""
        seen = obs[..., : -self._privileged] if self._privileged else obs
        return self.policy_of_heads(self.net_states[0](state, seen, training=training))

    def policy_of_heads(self, outputs: Sequence[Tensor]) -> Distribution:
        """pi(.|s) from the outputs of the policy net, or of the shared one."""
        if self.shared:
            return self.policy_and_value(outputs)[0]
        return self._action_distribution(outputs)

    def policy_and_value(self, outputs: Sequence[Tensor]) -> tuple[Distribution, Tensor]:
        """pi and V from a shared net: policy heads, value, a free log-std if there is one."""
        n = self._num_policy_heads
        policy = self._action_distribution((*outputs[:n], *outputs[n + 1 :]))
        return policy, outputs[n].squeeze(-1)

    def value(self, state: State, obs: Tensor, *, training: bool = False) -> Tensor:
        """V(s) [N] of observations [N, ...], in the head's units."""
        if self.shared:
            return self(state, obs, training=training)[1]
        seen = obs[..., -self._privileged :] if self._privileged else obs
        return self.net_states[1](state, seen, training=training)[0].squeeze(-1)

    def rescale_value_head(self, scale: Tensor, shift: Tensor) -> None:
        """Replace V by scale * V + shift, exactly."""
        self._value_head.weight.mul_(scale)
        self._value_head.bias.mul_(scale).add_(shift)


def _heads(net: nn.Module) -> list[nn.Module]:
    net = inner_net(net)
    tails = getattr(net, "tails", None)
    if not isinstance(tails, nn.Module):
        fix = f"{type(net).__name__} gives Q values and cannot be a policy. Use MLPNet or ConvNet."
        raise SpecError([Problem("agent.net.type", fix)])
    return list(tails) if isinstance(tails, nn.ModuleList) else [tails]


class Critic:
    """V(s) of a rollout's steps and of their true successors, in reward units.

    With `normalize`, the head predicts targets with running mean and std removed. When those move,
    the head is rescaled so that no prediction changes (PopArt, van Hasselt et al. 2016).
    Predictions are never clamped: that would silently end learning for values beyond the clamp.
    """

    def __init__(self, nets: ActorCriticNets, device: torch.device, *, normalize: bool) -> None:
        self._nets = nets
        self._moments = RunningMoments((), device) if normalize else None
        self._identity = torch.zeros((), device=device), torch.ones((), device=device)

    @torch.no_grad()
    def values(
        self, state: State, rollout: Rollout, value: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(V of each step [T, B], V of each step's true successor [T, B]).

        `value` [(T+1) * B] are those of `rollout.obs`, if they are known already.
        """
        if value is None:
            value = self.value(state, rollout.obs.flatten(0, 1))
        return with_successors(value, self.final_values(state, rollout), rollout.truncated)

    def value(self, state: State, obs: Tensor) -> Tensor:
        """V(s) [N] of observations [N, ...], in reward units."""
        return self.to_reward_units(self._nets.value(state, obs))

    @torch.no_grad()
    def final_values(self, state: State, rollout: Rollout) -> Tensor:
        """V of the true successors of truncated steps, [T, B]; zero at all others."""
        values = torch.zeros_like(rollout.reward)
        if len(rollout.final_index):
            values.view(-1)[rollout.final_index] = self.value(state, rollout.final_obs)
        return values

    def units(self) -> tuple[Tensor, Tensor]:
        """(mean, std) of the head's units: a value is std * output + mean."""
        return self._identity if self._moments is None else self._mean_std()

    def to_head_units(self, value: Tensor) -> Tensor:
        """Convert values in reward units to the units of the head."""
        if self._moments is None:
            return value
        mean, std = self._mean_std()
        return (value - mean) / std

    def to_reward_units(self, output: Tensor) -> Tensor:
        """Convert outputs of the head to reward units."""
        if self._moments is None:
            return output
        mean, std = self._mean_std()
        return output * std + mean

    @torch.no_grad()
    def learn_units(self, target: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        """Update the statistics by new targets: (target, *values) in the new units of the head.

        The head is rescaled with them, so that every prediction stays what it was.
        """
        if self._moments is not None:
            old_mean, old_std = self._mean_std()
            self._moments.update(target.reshape(-1))
            mean, std = self._mean_std()
            self._nets.rescale_value_head(old_std / std, (old_mean - mean) / std)
        return tuple(self.to_head_units(value) for value in (target, *values))

    def state_dict(self) -> State:
        return {} if self._moments is None else self._moments.state_dict()

    def load_state_dict(self, state: State) -> None:
        if self._moments is not None:
            self._moments.load_state_dict(state)

    def _mean_std(self) -> tuple[Tensor, Tensor]:
        assert self._moments is not None
        std = (self._moments.var + 1e-8).sqrt().clamp_min(1e-4)
        return self._moments.mean.float(), std.float()


def with_successors(value: Tensor, final_value: Tensor, truncated: Tensor) -> tuple[Tensor, Tensor]:
    """Values of T + 1 rows of steps -> (those of the T steps, those of their true successors).

    The row after a truncated step begins another episode, so `final_value` stands in for it.
    """
    rows = value.view(-1, truncated.shape[1])
    return rows[:-1], torch.where(truncated, final_value, rows[1:])


def make_q_net(spec: NetSpec, setup: Setup, atoms: int = 1) -> NetState:
    """The net "net" of Q values, one per action, or `atoms` numbers side by side for each."""
    sizes = tuple(size * atoms for size in setup.spaces.action_sizes)
    with initialising(setup.seeds.net):
        net = make_row_net(spec, setup.spaces, sizes, masked_heads=True, atoms=atoms)
    return NetState("net", net.to(setup.device), spec, setup.precision)
