"""REINFORCE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from slm_lab.spec.algorithm.base import (
    AlgorithmInfo,
    Defaults,
    DiscountedSpec,
    Pace,
    ScheduleSpec,
    Style,
    Tree,
    mlp,
    one_update_per_episode,
    pace_of_steps,
)
from slm_lab.spec.block import Count, Flag, NonNegative
from slm_lab.spec.memory.base import MemoryKind

if TYPE_CHECKING:
    from slm_lab.spec.schema import Spec


class ReinforceSpec(DiscountedSpec):
    """Monte-Carlo policy gradient."""

    name: Literal["Reinforce"] = Field(description="Algorithm name.")
    training_frequency: Count = Field(
        default=32,
        description="Env steps between updates; episodes with OnPolicyReplay, 1 unless given.",
    )
    entropy_coef_spec: ScheduleSpec | None = Field(
        default=None, description="Schedule of the entropy bonus; null is none."
    )
    center_return: Flag = Field(default=False, description="Subtract the batch mean from returns.")
    policy_loss_coef: NonNegative = Field(default=1.0, description="Weight of the policy loss.")

    @classmethod
    def fill(cls, tree: Tree, kind: MemoryKind | None, env: Mapping[str, Any]) -> None:
        one_update_per_episode(tree, kind)

    def pace(self, spec: Spec) -> Pace:
        return pace_of_steps(spec, self.training_frequency)


RECORDS = (
    AlgorithmInfo(
        name="Reinforce",
        spec_class=ReinforceSpec,
        implementation="slm_lab.agent.algorithm.reinforce:Reinforce",
        label="REINFORCE",
        style=Style("sky", "o"),
        order=10,
        memories=frozenset({"rollout", "episodes"}),
        actions=frozenset({"discrete", "multi_discrete", "multi_binary", "continuous"}),
        columns=("entropy_coef", "entropy"),
        defaults=Defaults({"name": "OnPolicyReplay"}, mlp([64], "relu", 2e-3)),
    ),
)
