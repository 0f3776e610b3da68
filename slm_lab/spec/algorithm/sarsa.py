"""SARSA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from slm_lab.spec.algorithm.base import (
    AlgorithmInfo,
    Defaults,
    Pace,
    Style,
    Tree,
    one_update_per_episode,
    pace_of_steps,
)
from slm_lab.spec.algorithm.dqn import Q_NET, ValueBasedSpec
from slm_lab.spec.block import Count, Findings
from slm_lab.spec.memory.base import MemoryKind

if TYPE_CHECKING:
    from slm_lab.spec.schema import Spec


class SARSASpec(ValueBasedSpec):
    """On-policy TD(0) on Q values."""

    name: Literal["SARSA"] = Field(description="Algorithm name.")
    training_frequency: Count = Field(
        default=32,
        description="Env steps between updates; episodes with OnPolicyReplay, 1 unless given.",
    )

    @classmethod
    def fill(cls, tree: Tree, kind: MemoryKind | None, env: Mapping[str, Any]) -> None:
        super().fill(tree, kind, env)
        one_update_per_episode(tree, kind)

    def pace(self, spec: Spec) -> Pace:
        return pace_of_steps(spec, self.training_frequency)

    def cross_check(self, spec: Spec, findings: Findings) -> None:
        if self.training_frequency == 1 and spec.agent.memory_info.kind == "rollout":
            findings.warnings.append(
                "agent.algorithm.training_frequency: 1 leaves SARSA without next actions, so it "
                "learns from terminations alone; use 2 or more, such as 32"
            )


RECORDS = (
    AlgorithmInfo(
        name="SARSA",
        spec_class=SARSASpec,
        implementation="slm_lab.agent.algorithm.sarsa:SARSA",
        label="SARSA",
        style=Style("brown", "s"),
        order=20,
        memories=frozenset({"rollout", "episodes"}),
        actions=frozenset({"discrete"}),
        columns=("explore_var",),
        defaults=Defaults({"name": "OnPolicyBatchReplay"}, Q_NET),
    ),
)
