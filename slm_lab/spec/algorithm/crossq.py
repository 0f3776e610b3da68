"""CrossQ."""

from __future__ import annotations

from slm_lab.spec.algorithm import base
from slm_lab.spec.algorithm.sac import SoftActorCriticSpec, actor_critic_record, critic_block
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
    """SAC whose critics read both sides of the TD error in one batch, and need no target nets."""

    @property
    def crosses(self) -> bool:
        return True

    def cross_check(self, spec: base.Spec, findings: Findings) -> None:
        super().cross_check(spec, findings)
        _check_target(spec, findings)
        if not spec.agent.critic.normalizes_batches:
            findings.warnings.append(
                "agent.critic_net: CrossQ has no target nets and relies on batch normalisation in "
                "its critics, and there is none; set batch_norm to true, or use SoftActorCritic"
            )


def _check_target(spec: base.Spec, findings: Findings) -> None:
    """Report keys of target nets that do not say all: they have no defaults here."""
    net = spec.agent.critic
    block = critic_block(spec)
    needed = {"polyak": "polyak_coef", "replace": "update_frequency"}
    if net.update_type is not None:
        key = needed[net.update_type]
        if getattr(net, key) is None:
            fix = f"missing; CrossQ's target nets follow as {block}.{key} says"
            findings.problem(f"{block}.{key}", fix)
        return
    for kind, key in needed.items():
        if getattr(net, key) is not None:
            fix = f"{block}.update_type: {kind} gives it some; without it, remove this key"
            findings.problem(f"{block}.{key}", f"CrossQ has no target nets. {fix}")


RECORDS = (
    actor_critic_record(
        "CrossQ",
        spec_class=CrossQSpec,
        implementation="slm_lab.agent.algorithm.sac:SoftActorCritic",
        style=base.Style("violet", "^"),
        order=90,
        actions=frozenset({"discrete", "continuous"}),
        target_net=False,
        action_masks=True,
        defaults=base.Defaults(
            replay(256, 1_000_000),
            base.mlp([256, 256], "relu", 1e-3, optim_spec=_ADAM),
            critic_net=_renormalized([256, 256]),
        ),
    ),
)
