"""Random: uniform actions."""

from __future__ import annotations

from slm_lab.spec.algorithm import base


class RandomSpec(base.AlgorithmSpec):
    """Uniform actions: the baseline that every score is measured against."""

    def pace(self, spec: base.Spec) -> base.Pace:
        return base.Pace(spec.env.num_envs, 0)


RECORDS = (
    base.AlgorithmInfo(
        "Random",
        RandomSpec,
        "slm_lab.agent.algorithm.random:Random",
        label="Random",
        style=base.Style("grey", "."),
        order=1000,
        memories=frozenset({"rollout", "episodes", "replay"}),
        learns=False,
        action_masks=True,
        defaults=base.Defaults(
            {"name": "OnPolicyBatchReplay"}, {"type": "MLPNet", "hid_layers": []}
        ),
    ),
)
