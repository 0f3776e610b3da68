"""TQC: SAC with truncated quantile critics."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slm_lab.spec.algorithm import base
from slm_lab.spec.algorithm.sac import SoftPolicySpec, actor_critic_record, check_no_loss
from slm_lab.spec.block import Count, CountOrZero, Findings, Key, SmallCount


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
        check_no_loss(spec, findings, "TQC, whose loss is the quantile Huber loss")


RECORDS = (
    actor_critic_record(
        "TQC",
        spec_class=TQCSpec,
        implementation="slm_lab.agent.algorithm.tqc:TQC",
        style=base.Style("vermillion", "P"),
        order=85,
    ),
)
