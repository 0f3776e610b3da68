"""Sampling actions from a policy net, one batched call per env step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from slm_lab.agent.algorithm.distribution import Distribution, Family, Noise
from slm_lab.agent.algorithm.privileged import seen_by_policy
from slm_lab.agent.algorithm.setup import Setup
from slm_lab.agent.compiler import Compiled
from slm_lab.agent.learner import State, Trainable
from slm_lab.agent.net.small_batch import Forward, numpy_forward

PolicyOfHeads = Callable[[Sequence[Tensor]], Distribution]


class PolicyActor:
    """Draws from pi(.|obs) with its own stream of noise.

    Three ways to the same policy: a small MLP on few rows in NumPy; else the module, whose
    parameters view the training state; or, compiled, a pure function of that state.
    """

    def __init__(
        self, family: Family, net: Trainable, policy: PolicyOfHeads, state: State, setup: Setup
    ) -> None:
        self._net = net
        self._policy = policy
        shape = (setup.num_envs, family.noise_dim)
        self._noise = Noise(family.noise_kind, shape, setup.seeds.act, setup.device)
        self._numpy = numpy_way(net.net, setup)
        self._is_categorical = setup.spaces.action_type == "discrete"
        self._privileged = setup.spaces.privileged
        # The policy net's own entries: every further input would cost a little at each call.
        own = net.own_entries(state)
        self._keys = list(own)
        self._tensors = tuple(own.values())
        mode = setup.compile_act if self._numpy is None else None
        self._native = Compiled(self._sample, mode=mode, fixed=1 + len(own)) if mode else None

    def __call__(self, obs: Tensor, *, frame: int = 0, explore: bool = True) -> Tensor:
        """obs [B, ...] -> actions [B, ...] as sampled; the mode of the policy if not exploring."""
        obs = seen_by_policy(obs, self._privileged)
        # No parameter requires a gradient outside a learning step, so none is recorded here.
        if not explore:
            return self._policy(self._net.net(obs)).mode()
        noise = self._noise()
        if self._numpy is not None:
            heads = self._numpy(obs.numpy())
            if self._is_categorical:  # drawn in NumPy too, as Categorical.sample does
                return torch.from_numpy((heads[0] + noise.numpy()).argmax(-1))
            return self._policy([torch.from_numpy(head) for head in heads]).sample(noise)
        if self._native is None:
            return self._policy(self._net.net(obs)).sample(noise)
        return self._native(noise, *self._tensors, obs)[0]

    def state_dict(self) -> dict[str, Tensor]:
        return self._noise.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._noise.load_state_dict(state)

    def _sample(self, noise: Tensor, *inputs: Tensor) -> tuple[Tensor]:
        state = dict(zip(self._keys, inputs[:-1], strict=True))
        return (self._policy(self._net(state, inputs[-1])).sample(noise),)


def numpy_way(net: nn.Module, setup: Setup) -> Forward | None:
    """The net's forward pass in NumPy, where that is the fastest way to act."""
    if setup.device.type != "cpu" or setup.spaces.obs_dtype != "float32":
        return None
    return numpy_forward(net, setup.num_envs)
