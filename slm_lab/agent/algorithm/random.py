"""Uniformly random actions: the baseline of every score."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from slm_lab.agent.algorithm.base import Setup
from slm_lab.agent.learning.learner import Learner
from slm_lab.agent.net.rows import allowed_actions, draw_allowed, latest_mask
from slm_lab.spec import Spec
from slm_lab.types import Metrics, Rollout


class Random:
    """Owns nothing but a stream of random numbers; an update only counts."""

    def __init__(self, spec: Spec, setup: Setup) -> None:
        self._spaces = setup.spaces
        self._generator = torch.Generator().manual_seed(setup.seeds.act)
        self.modules: dict[str, nn.Module] = {}
        self.learner = Learner({}, lambda state, *batch: ({}, {}), compile=None)

    def act(self, obs: Tensor, *, frame: int = 0, explore: bool = True) -> Tensor:
        count, sizes = obs.shape[0], self._spaces.action_sizes
        if self._spaces.is_continuous:
            return torch.rand(count, sizes[0], generator=self._generator) * 2 - 1
        if self._spaces.action_type == "multi_binary":
            return torch.randint(2, (count, sizes[0]), generator=self._generator)
        if self._spaces.mask:
            masks = torch.split(latest_mask(obs, self._spaces), list(sizes), -1)
            draws = [
                draw_allowed(allowed_actions(mask), torch.rand(count, generator=self._generator))
                for mask in masks
            ]
        else:
            draws = [torch.randint(n, (count,), generator=self._generator) for n in sizes]
        return draws[0] if self._spaces.action_type == "discrete" else torch.stack(draws, -1)

    def to_env(self, action: Tensor) -> Tensor:
        return action

    def update(self, rollout: Rollout, frame: int) -> Metrics:
        return Metrics({}, opt_steps=1)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["generator"])
