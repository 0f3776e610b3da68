"""CrossQ."""

from __future__ import annotations

from slm_lab.spec.algorithm import base
from slm_lab.spec.algorithm.sac import SoftActorCriticSpec
from slm_lab.spec.block import Findings
from slm_lab.spec.memory import replay

_ADAM: base.Tree = {"name": "Adam", "lr": 1e-3, "betas": [0.5, 0.999]}


def _renormalized(widths: list[int]) -> base.Tree:
    """CrossQ's critic: batch renormalisation before every layer (Bhatt et al. 2024)."""
    norm = {"LazyBatchRenorm1d": {"momentum": 0.01, "eps": 1e-3, "warmup_steps": 5000}}
    layers = [
        layer
        for width in widths
        for layer in (norm, {"LazyLinear": {"out_features": width}}, {"ReLU": None})
    ]
    return {
        "type": "TorchArcNet",
        "arc": {
            "modules": {"body": {"Sequential": [*layers, norm]}},
            "graph": {"input": "x", "modules": {"body": ["x"]}, "output": "body"},
        },
        "optim_spec": _ADAM,
    }


class CrossQSpec(SoftActorCriticSpec):
    """SAC with batch-renormalised critics and no target nets."""

    def cross_check(self, spec: base.Spec, findings: Findings) -> None:
        super().cross_check(spec, findings)
        if not spec.agent.critic.normalizes_batches:
            findings.warnings.append(
                "agent.critic_net: CrossQ has no target nets and relies on batch normalisation in "
                "its critics, and there is none; set batch_norm to true, or use SoftActorCritic"
            )


RECORDS = (
    base.AlgorithmInfo(
        "CrossQ",
        CrossQSpec,
        "slm_lab.agent.algorithm.sac:SoftActorCritic",
        label="CrossQ",
        style=base.Style("violet", "^"),
        order=90,
        memories=frozenset({"replay"}),
        actions=frozenset({"discrete", "continuous"}),
        critic="block",
        recurrent=False,
        columns=("alpha",),
        seconds_saved=8e-3,
        action_masks=True,
        defaults=base.Defaults(
            replay(256, 1_000_000),
            base.mlp([256, 256], "relu", 1e-3, optim_spec=_ADAM),
            critic_net=_renormalized([256, 256]),
        ),
    ),
)
