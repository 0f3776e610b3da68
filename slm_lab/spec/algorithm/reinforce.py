"""REINFORCE."""

from __future__ import annotations

from slm_lab.spec.algorithm.base import (
    AlgorithmInfo,
    Defaults,
    OnPolicySpec,
    ScheduleSpec,
    Style,
    mlp,
)
from slm_lab.spec.block import Flag, Key, NonNegative


class ReinforceSpec(OnPolicySpec):
    """Monte-Carlo policy gradient."""

    entropy_coef_spec: ScheduleSpec | None = Key(
        None, "Schedule of the entropy bonus; null is none."
    )
    center_return: Flag = Key(False, "Subtract the batch mean from returns.")
    policy_loss_coef: NonNegative = Key(1.0, "Weight of the policy loss.")


RECORDS = (
    AlgorithmInfo(
        "Reinforce",
        ReinforceSpec,
        "slm_lab.agent.algorithm.reinforce:Reinforce",
        label="REINFORCE",
        style=Style("sky", "o"),
        order=10,
        memories=frozenset({"rollout", "episodes"}),
        columns=("entropy_coef", "entropy"),
        defaults=Defaults({"name": "OnPolicyReplay"}, mlp([64], "relu", 2e-3)),
    ),
)
