"""SARSA."""

from __future__ import annotations

from slm_lab.spec.algorithm import base
from slm_lab.spec.algorithm.dqn import Q_NET, ValueBasedSpec
from slm_lab.spec.block import Findings


class SARSASpec(base.OnPolicySpec, ValueBasedSpec):
    """On-policy TD(0) on Q values."""

    def cross_check(self, spec: base.Spec, findings: Findings) -> None:
        if self.training_frequency == 1 and spec.agent.memory_info.kind == "rollout":
            findings.warnings.append(
                "agent.algorithm.training_frequency: 1 leaves SARSA without next actions, so it "
                "learns from terminations alone; use 2 or more, such as 32"
            )


RECORDS = (
    base.AlgorithmInfo(
        "SARSA",
        SARSASpec,
        "slm_lab.agent.algorithm.sarsa:SARSA",
        label="SARSA",
        style=base.Style("brown", "s"),
        order=20,
        memories=frozenset({"rollout", "episodes"}),
        actions=frozenset({"discrete"}),
        columns=("explore_var", "q_value"),
        action_masks=True,
        defaults=base.Defaults({"name": "OnPolicyBatchReplay"}, Q_NET),
    ),
)
