"""PPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from slm_lab.spec.algorithm import base
from slm_lab.spec.algorithm.a2c import ACTOR_CRITIC, AdvantageKeys
from slm_lab.spec.block import Count, Findings, Flag, Fraction, Key, Positive
from slm_lab.spec.memory import MemoryKind

ROLLOUT = 2048
"""Transitions of a rollout, over all envs, where a spec does not say."""
PPO_COLUMNS = (
    "clip_eps",
    "entropy",
    "policy_loss",
    "value_loss",
    "approx_kl",
    "clip_frac",
    "explained_variance",
)
PPO_NET = base.mlp([64, 64], "tanh", 3e-4, **ACTOR_CRITIC)


class PPOSpec(AdvantageKeys):
    """Proximal policy optimisation with a clipped objective."""

    lam: Fraction = Key(0.95, "Lambda of GAE, 0 to 1.")
    clip_eps_spec: base.ScheduleSpec = Field(
        default_factory=lambda: base.ScheduleSpec(name="no_decay", start_val=0.2),
        description="Schedule of the clip range; a constant 0.2 unless given.",
    )
    time_horizon: Count = Key(
        2048, "Rollout length in steps of each env; unless given, 2,048 steps over all envs."
    )
    num_unrolls: Count = Key(
        1,
        "Unrolls of time_horizon steps in a rollout. Advantages sum TD errors within an unroll, so "
        "that a longer rollout needs no longer traces.",
    )
    training_epoch: Count = Key(10, "Passes over each rollout.")
    minibatch_size: Count = Key(64, "Transitions per gradient step.")
    target_kl: Positive | None = Key(
        None,
        "Approximate KL from the policy that acted above which a minibatch is not learned from and "
        "ends its update; null is no limit. Stable-Baselines3 stops at 1.5 times its target_kl.",
    )
    clip_vloss: Flag = Key(False, "Clip the value's change by the clip range.")
    symlog: Flag = Key(False, "Compare values and targets in symlog space.")
    recompute_advantages: Flag = Key(False, "Recompute values and advantages before each epoch.")

    @classmethod
    def fill(
        cls,
        tree: base.Tree,
        kind: MemoryKind | None,
        env: Mapping[str, Any],
        net: Mapping[str, Any],
    ) -> None:
        num_envs = env.get("num_envs") or 1
        counts_envs = isinstance(num_envs, int) and num_envs > 0
        if kind != "episodes" and tree.get("time_horizon") is None and counts_envs:
            # 2,048 steps in all as in Stable-Baselines3, but never fewer than 128 of an env.
            tree["time_horizon"] = max(128, ROLLOUT // num_envs // 64 * 64)

    @property
    def rollout_length(self) -> int:
        """Steps of each env in a rollout."""
        return self.time_horizon * self.num_unrolls

    def pace(self, spec: base.Spec) -> base.Pace:
        rows = self.rollout_length * spec.env.num_envs
        return base.Pace(rows, self.training_epoch * rows // ppo_minibatch_size(spec))

    def step_rows(self, spec: base.Spec) -> int:
        return ppo_minibatch_size(spec)

    def cross_check(self, spec: base.Spec, findings: Findings) -> None:
        horizon, num_envs = self.time_horizon, spec.env.num_envs
        base.check_multiple("agent.algorithm.time_horizon", horizon, spec, findings)
        rollout = self.rollout_length * num_envs
        sizes = {"num_envs": num_envs, "time_horizon": horizon}
        if self.num_unrolls > 1:
            sizes["num_unrolls"] = self.num_unrolls
        keys = " * ".join(sizes)
        given, used = self.minibatch_size, ppo_minibatch_size(spec)
        if used != given:
            fault = "exceeds" if given > rollout else "does not divide"
            product = f"{keys} = {' * '.join(map(str, sizes.values()))} = {rollout}"
            found = f"agent.algorithm.minibatch_size: {given} {fault} {product}"
            findings.warnings.append(f"{found}; {used} is used")
        base.warn_if_never(rollout, keys, spec, findings)


def ppo_minibatch_size(spec: base.Spec) -> int:
    """Transitions per gradient step of PPO: as given where that divides the rollout evenly.

    Otherwise the rollout is cut into as many minibatches as fit, each as large as it can be. The
    minibatches of a recurrent net hold whole sequences.
    """
    algorithm = spec.agent.algorithm
    if not isinstance(algorithm, PPOSpec):
        raise TypeError(f"{algorithm.name} has no minibatches; only PPO and PPOSIL do")
    rollout = spec.env.num_envs * algorithm.rollout_length
    if algorithm.minibatch_size >= rollout:
        return rollout
    unit = spec.agent.net.sequence_length or 1
    units, given = rollout // unit, max(1, algorithm.minibatch_size // unit)
    return units // (units // given) * unit


RECORDS = (
    base.AlgorithmInfo(
        "PPO",
        PPOSpec,
        "slm_lab.agent.algorithm.ppo:PPO",
        label="PPO",
        style=base.Style("blue", "o"),
        order=60,
        memories=frozenset({"rollout"}),
        critic="keys",
        privileged_critic=True,
        columns=PPO_COLUMNS,
        action_masks=True,
        defaults=base.Defaults({"name": "OnPolicyBatchReplay"}, PPO_NET),
    ),
)
