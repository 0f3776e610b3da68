"""DuelingMLPNet (Wang et al. 2016): Q = V + A - mean A."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from slm_lab.agent.net.heads import dueling
from slm_lab.agent.net.init import init_weights
from slm_lab.agent.net.mlp import body_layers
from slm_lab.spec import Problem, SpecError

if TYPE_CHECKING:
    from slm_lab.spec import DuelingMLPNetSpec


class DuelingMLPNet(nn.Module):
    """One stream says how good a state is, the other how much better each action is there."""

    def __init__(
        self,
        spec: DuelingMLPNetSpec,
        obs_shape: tuple[int, ...],
        out_dims: Sequence[int],
        log_std_dim: int | None = None,
    ) -> None:
        super().__init__()
        if len(out_dims) != 1:
            problem = Problem(
                "agent.net.type", "a dueling net has one head of Q values. Use MLPNet."
            )
            raise SpecError([problem])
        in_dim = math.prod(obs_shape)
        self.model_body = nn.Sequential(*body_layers(spec, in_dim))
        features = spec.hid_layers[-1] if spec.hid_layers else in_dim
        self.v = nn.Linear(features, 1)
        self.adv = nn.Linear(features, out_dims[0])
        init_weights(self, spec.init_fn, spec.hid_layers_activation)

    def forward(self, obs: Tensor) -> tuple[Tensor, ...]:
        features = self.model_body(obs.flatten(1).float())
        return (dueling(self.v(features), self.adv(features)),)
