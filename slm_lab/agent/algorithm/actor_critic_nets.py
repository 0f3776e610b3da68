"""Policy and value nets of the actor-critic family: separate, or two heads on one body.

With privileged columns (`Spaces.privileged`) each of two separate nets reads its own part of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from slm_lab.agent.algorithm.distribution import Distribution, Family
from slm_lab.agent.algorithm.privileged import seen_by_critic, seen_by_policy
from slm_lab.agent.algorithm.sequence import sequence_length
from slm_lab.agent.learning.learner import State, Trainable
from slm_lab.agent.net.bidirectional import BidirectionalNet
from slm_lab.agent.net.init import init_head
from slm_lab.agent.net.make import make_net
from slm_lab.agent.net.recurrent import RecurrentNet
from slm_lab.spec import Problem, SpecError

if TYPE_CHECKING:
    from slm_lab.spec import NetSpec


def policy_heads(family: Family, spec: NetSpec) -> tuple[tuple[int, ...], int | None]:
    """(output dims of a policy net, size of its free log-std or None)."""
    if family.pdtype == "Beta" and spec.log_std_init is not None:
        raise SpecError([Problem("agent.net.log_std_init", "Beta has no log std. Remove it.")])
    if family.spaces.is_continuous and spec.log_std_init is not None:
        dim = family.spaces.action_sizes[0]
        return (dim,), dim
    return family.head_dims, None


def make_policy_net(family: Family, spec: NetSpec) -> nn.Module:
    dims, log_std_dim = policy_heads(family, spec)
    net = make_net(spec, family.spaces.obs_shape, dims, log_std_dim)
    for head in _heads(net)[: len(dims)]:
        init_head(head, spec.actor_init_std)
    return net


class ActorCriticNets:
    """Evaluates pi(.|s) and V(s) under the parameters of a state."""

    def __init__(
        self, family: Family, actor: NetSpec, critic: NetSpec, device: torch.device
    ) -> None:
        self._family = family
        self.shared = bool(actor.shared)
        self.seq_len = sequence_length(actor)
        self._privileged = family.spaces.privileged
        dims, log_std_dim = policy_heads(family, actor)
        if self.shared:
            net = make_net(actor, family.spaces.policy_obs_shape, (*dims, 1), log_std_dim)
            nets = {"net": (net, actor)}
            value_head = _heads(net)[len(dims)]
        else:
            net = make_net(actor, family.spaces.policy_obs_shape, dims, log_std_dim)
            memory_at = net.memory_size if isinstance(net, RecurrentNet | BidirectionalNet) else 0
            critic_net = make_net(critic, family.spaces.critic_obs_shape, (1,), memory_at=memory_at)
            nets = {"net": (net, actor), "critic_net": (critic_net, critic)}
            value_head = _heads(critic_net)[0]
        for head in _heads(net)[: len(dims)]:
            init_head(head, actor.actor_init_std)
        init_head(value_head, critic.critic_init_std)
        self.trainables = [
            Trainable(name, net.to(device), spec) for name, (net, spec) in nets.items()
        ]
        self._value_head = next(m for m in value_head.modules() if isinstance(m, nn.Linear))
        self._num_policy_heads = len(dims)

    @property
    def specs(self) -> dict[str, NetSpec]:
        return {trainable.name: trainable.spec for trainable in self.trainables}

    @property
    def modules(self) -> dict[str, nn.Module]:
        return {trainable.name: trainable.net for trainable in self.trainables}

    @property
    def are_alike(self) -> bool:
        """Whether there are two nets, and neither is more than twice the size of the other."""
        sizes = sorted(trainable.size for trainable in self.trainables)
        return len(sizes) == 2 and 2 * sizes[0] >= sizes[1]

    def initial_state(self) -> State:
        return {k: v for trainable in self.trainables for k, v in trainable.initial_state().items()}

    def __call__(
        self, state: State, obs: Tensor, *, training: bool = False
    ) -> tuple[Distribution, Tensor]:
        """obs [N, ...], or [T, B, W] in sequences -> (pi(.|s), V(s) [N])."""
        outputs = self.trainables[0](
            state, seen_by_policy(obs, self._privileged), training=training
        )
        if self.shared:
            return self.judgement_of_heads(outputs)
        judged = seen_by_critic(obs, self._privileged)
        value = self.trainables[1](state, judged, training=training)[0]
        return self._family(outputs), value.squeeze(-1)

    def policy(self, state: State, obs: Tensor, *, training: bool = False) -> Distribution:
        seen = seen_by_policy(obs, self._privileged)
        return self.policy_of_heads(self.trainables[0](state, seen, training=training))

    def policy_of_heads(self, outputs: Sequence[Tensor]) -> Distribution:
        """pi(.|s) from the outputs of the policy net, or of the shared one."""
        return self.judgement_of_heads(outputs)[0] if self.shared else self._family(outputs)

    def value(self, state: State, obs: Tensor, *, training: bool = False) -> Tensor:
        if self.shared:
            return self(state, obs, training=training)[1]
        seen = seen_by_critic(obs, self._privileged)
        return self.trainables[1](state, seen, training=training)[0].squeeze(-1)

    def rescale_value_head(self, scale: Tensor, shift: Tensor) -> None:
        """Replace V by scale * V + shift, exactly: what PopArt does when its statistics move."""
        self._value_head.weight.mul_(scale)
        self._value_head.bias.mul_(scale).add_(shift)

    def judgement_of_heads(self, outputs: Sequence[Tensor]) -> tuple[Distribution, Tensor]:
        """pi and V from a shared net: policy heads, value, a free log-std if there is one."""
        n = self._num_policy_heads
        return self._family((*outputs[:n], *outputs[n + 1 :])), outputs[n].squeeze(-1)


def _heads(net: nn.Module) -> list[nn.Module]:
    tails = getattr(net, "tails", None)
    if not isinstance(tails, nn.Module):
        fix = f"{type(net).__name__} gives Q values and cannot be a policy. Use MLPNet or ConvNet."
        raise SpecError([Problem("agent.net.type", fix)])
    return list(tails) if isinstance(tails, nn.ModuleList) else [tails]
