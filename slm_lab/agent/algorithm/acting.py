"""Sampling actions from a policy net, one batched call per env step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from slm_lab.agent.algorithm.distribution import Distribution, Family, Noise
from slm_lab.agent.compiler import Compiled
from slm_lab.agent.learner import State

PolicyOfState = Callable[[State, Tensor], Distribution]
PolicyOfModule = Callable[[Tensor], Distribution]


class PolicyActor:
    """Draws from pi(.|obs) with its own stream of noise.

    Eager acting calls the module, whose parameters view the training state; compiled acting passes
    that state to the same policy written as a pure function.
    """

    def __init__(
        self,
        family: Family,
        pure: PolicyOfState,
        module: PolicyOfModule,
        state: State,
        *,
        num_envs: int,
        seed: int,
        device: torch.device,
        compile: bool,
    ) -> None:
        self._module = module
        self._pure = pure
        self._noise = Noise(family.noise_kind, (num_envs, family.noise_dim), seed, device)
        # The policy net's own entries: every further input would cost a little at each call.
        own = {k: v for k, v in state.items() if k == "net" or k.startswith("net.buffer.")}
        self._keys = list(own)
        self._tensors = tuple(own.values())
        self._native = Compiled(self._sample, enabled=True, fixed=1 + len(own)) if compile else None

    def __call__(self, obs: Tensor, *, frame: int = 0, explore: bool = True) -> Tensor:
        """obs [B, ...] -> actions [B, ...] as sampled; the mode of the policy if not exploring."""
        # No parameter requires a gradient outside a learning step, so none is recorded here.
        if not explore:
            return self._module(obs).mode()
        noise = self._noise()
        if self._native is None:
            return self._module(obs).sample(noise)
        return self._native(noise, *self._tensors, obs)[0]

    def state_dict(self) -> dict[str, Tensor]:
        return self._noise.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._noise.load_state_dict(state)

    def _sample(self, noise: Tensor, *inputs: Tensor) -> tuple[Tensor]:
        state = dict(zip(self._keys, inputs[:-1], strict=True))
        return (self._pure(state, inputs[-1]).sample(noise),)
