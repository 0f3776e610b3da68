"""Random: uniform actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slm_lab.spec.algorithm.base import AlgorithmInfo, AlgorithmSpec, Defaults, Pace, Style

if TYPE_CHECKING:
    from slm_lab.spec.schema import Spec


class RandomSpec(AlgorithmSpec):
    """Uniform actions: the baseline that every score is measured against."""

    def pace(self, spec: Spec) -> Pace:
        return Pace(spec.env.num_envs, 0)


RECORDS = (
    AlgorithmInfo(
        "Random",
        RandomSpec,
        "slm_lab.agent.algorithm.random:Random",
        label="Random",
        style=Style("grey", "."),
        order=1000,
        memories=frozenset({"rollout", "episodes", "replay"}),
        learns=False,
        defaults=Defaults({"name": "OnPolicyBatchReplay"}, {"type": "MLPNet", "hid_layers": []}),
    ),
)
