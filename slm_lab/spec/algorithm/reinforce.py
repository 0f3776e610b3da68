"""REINFORCE."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slm_lab.spec.algorithm.base import (
    AlgorithmInfo,
    Defaults,
    OnPolicySpec,
    ScheduleSpec,
    Style,
    mlp,
)
from slm_lab.spec.block import Flag, NonNegative


class ReinforceSpec(OnPolicySpec):
    """Monte-Carlo policy gradient."""

    name: Literal["Reinforce"] = Field(description="Algorithm name.")
    entropy_coef_spec: ScheduleSpec | None = Field(
        default=None, description="Schedule of the entropy bonus; null is none."
    )
    center_return: Flag = Field(default=False, description="Subtract the batch mean from returns.")
    policy_loss_coef: NonNegative = Field(default=1.0, description="Weight of the policy loss.")


RECORDS = (
    AlgorithmInfo(
        name="Reinforce",
        spec_class=ReinforceSpec,
        implementation="slm_lab.agent.algorithm.reinforce:Reinforce",
        label="REINFORCE",
        style=Style("sky", "o"),
        order=10,
        memories=frozenset({"rollout", "episodes"}),
        columns=("entropy_coef", "entropy"),
        defaults=Defaults({"name": "OnPolicyReplay"}, mlp([64], "relu", 2e-3)),
    ),
)
