"""TQC: SAC with truncated quantile critics."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slm_lab.spec.algorithm import base
from slm_lab.spec.algorithm.sac import SAC_COLUMNS, SoftPolicySpec
from slm_lab.spec.block import Count, CountOrZero, Findings, Key, SmallCount
from slm_lab.spec.memory import replay
from slm_lab.spec.net import POLYAK
from slm_lab.spec.optim import LossSpec


class TQCSpec(SoftPolicySpec):
    """SAC whose critics learn quantiles of the return; the target leaves out the largest."""

    num_critics: Count = Key(2, "Critics, whose quantiles make one mixture; 5 in the paper.")
    num_quantiles: Annotated[SmallCount, Field(ge=2)] = Key(25, "Quantiles of each critic.")
    top_quantiles_to_drop_per_net: CountOrZero = Key(
        2, "Largest quantiles that the target leaves out, for each critic; more bounds values more."
    )

    def cross_check(self, spec: base.Spec, findings: Findings) -> None:
        super().cross_check(spec, findings)
        if self.top_quantiles_to_drop_per_net >= self.num_quantiles:
            found = f"found {self.top_quantiles_to_drop_per_net}"
            fix = f"expected less than num_quantiles = {self.num_quantiles}, or nothing is left"
            findings.problem("agent.algorithm.top_quantiles_to_drop_per_net", f"{found}; {fix}")
        if spec.agent.critic.loss_spec != LossSpec():
            block = "net" if spec.agent.critic is spec.agent.net else "critic_net"
            fix = "has no effect on TQC, whose loss is the quantile Huber loss. Remove it"
            findings.problem(f"agent.{block}.loss_spec", fix)


RECORDS = (
    base.AlgorithmInfo(
        "TQC",
        TQCSpec,
        "slm_lab.agent.algorithm.tqc:TQC",
        label="TQC",
        style=base.Style("vermillion", "P"),
        order=85,
        memories=frozenset({"replay"}),
        actions=frozenset({"continuous"}),
        critic="block",
        target_net=True,
        recurrent=False,
        columns=SAC_COLUMNS,
        seconds_saved=8e-3,
        defaults=base.Defaults(
            replay(256, 1_000_000), base.mlp([256, 256], "relu", 3e-4), target=POLYAK
        ),
    ),
)
