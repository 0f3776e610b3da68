"""REINFORCE."""

from __future__ import annotations

from slm_lab.spec.algorithm import base
from slm_lab.spec.block import Flag, Key, NonNegative


class ReinforceSpec(base.OnPolicySpec):
    """Monte-Carlo policy gradient."""

    entropy_coef_spec: base.ScheduleSpec | None = Key(
        None, "Schedule of the entropy bonus; null is none."
    )
    center_return: Flag = Key(False, "Subtract the batch mean from returns.")
    policy_loss_coef: NonNegative = Key(1.0, "Weight of the policy loss.")


RECORDS = (
    base.AlgorithmInfo(
        "Reinforce",
        ReinforceSpec,
        "slm_lab.agent.algorithm.reinforce:Reinforce",
        label="REINFORCE",
        style=base.Style("sky", "o"),
        order=10,
        memories=frozenset({"rollout", "episodes"}),
        columns=("entropy_coef", "entropy", "policy_loss"),
        action_masks=True,
        defaults=base.Defaults({"name": "OnPolicyReplay"}, base.mlp([64], "relu", 2e-3)),
    ),
)
