"""TD3 and its plain form, DDPG."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from slm_lab.spec.algorithm import base
from slm_lab.spec.algorithm.sac import actor_critic_record
from slm_lab.spec.block import Count, Findings, Key, NonNegative
from slm_lab.spec.memory import replay
from slm_lab.spec.net import POLYAK


class TD3Spec(base.OffPolicySpec):
    """Twin delayed deep deterministic policy gradient."""

    explore_var_spec: base.ScheduleSpec = Field(
        default_factory=lambda: base.ScheduleSpec(name="no_decay", start_val=0.1),
        description="Schedule of the std of the Gaussian noise on actions, which are in [-1, 1]; "
        "a constant 0.1 unless given.",
    )
    num_critics: Count = Key(2, "Critics, of whose target values the smallest counts.")
    policy_delay: Count = Key(2, "Critic updates per actor and target update.")
    target_noise: NonNegative = Key(0.2, "Std of the noise on actions of the target policy.")
    target_noise_clip: NonNegative = Key(0.5, "Largest size of that noise.")

    def cross_check(self, spec: base.Spec, findings: Findings) -> None:
        super().cross_check(spec, findings)
        is_deterministic = f"{self.name} acts by a deterministic policy and has none. Leave it out."
        if self.action_pdtype != "default":
            path = "agent.algorithm.action_pdtype"
            findings.problem(path, f"found {self.action_pdtype}; {is_deterministic}")
        if spec.agent.net.log_std_init is not None:
            path = "agent.net.log_std_init"
            findings.problem(path, f"found {spec.agent.net.log_std_init:g}; {is_deterministic}")


class DDPGSpec(TD3Spec):
    """Deep deterministic policy gradient: TD3 without its additions, which are keys."""

    num_critics: Count = Key(1, "Critics, of whose target values the smallest counts.")
    policy_delay: Count = Key(1, "Critic updates per actor and target update.")
    target_noise: NonNegative = Key(0.0, "Std of the noise on actions of the target policy.")


_SHARED: dict[str, Any] = {
    "implementation": "slm_lab.agent.algorithm.td3:TD3",
    "columns": ("explore_var", "policy_loss", "q_value"),
    "seconds_saved": 6e-3,
    "defaults": base.Defaults(
        replay(256, 1_000_000), base.mlp([256, 256], "relu", 1e-3), target=POLYAK
    ),
}
RECORDS = (
    actor_critic_record(
        "DDPG", spec_class=DDPGSpec, style=base.Style("sky", "v"), order=74, **_SHARED
    ),
    actor_critic_record(
        "TD3", spec_class=TD3Spec, style=base.Style("brown", "D"), order=76, **_SHARED
    ),
)
