"""A2C: the advantage actor-critic."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, WithJsonSchema, model_validator

from slm_lab.spec.algorithm import base
from slm_lab.spec.block import Count, CountOrZero, Flag, Fraction, Key, NonNegative

# PPO's details of Stable-Baselines3: tanh, orthogonal weights, a small policy head, a free log-std.
ACTOR_CRITIC: base.Tree = {
    "init_fn": "orthogonal_",
    "actor_init_std": 0.01,
    "critic_init_std": 1.0,
    "log_std_init": 0.0,
    "clip_grad_val": 0.5,
    "shared": False,
}
A2C_COLUMNS = ("entropy_coef", "entropy", "policy_loss", "value_loss", "explained_variance")
A2C_NET = base.mlp([64, 64], "tanh", 1e-3, **ACTOR_CRITIC)


def _advantage_scaling(value: object) -> object:
    if isinstance(value, bool):
        return "standardize" if value else "none"
    return value


AdvantageScaling = Annotated[
    Literal["standardize", "percentile", "none"],
    BeforeValidator(_advantage_scaling),
    WithJsonSchema({"enum": ["standardize", "percentile", "none", True, False]}),
]


class AdvantageKeys(base.DiscountedSpec):
    """Keys that A2C and PPO share."""

    entropy_coef_spec: base.ScheduleSpec | None = Key(
        None, "Schedule of the entropy bonus; null is none."
    )
    val_loss_coef: NonNegative = Key(1.0, "Weight of the value loss.")
    normalize_v_targets: Flag = Key(False, "Scale value targets by a running std.")
    normalize_advantages: AdvantageScaling = Key(
        "standardize", "How advantages are scaled; true and false are accepted."
    )


class ActorCriticSpec(AdvantageKeys, base.OnPolicySpec):
    """Advantage actor-critic (A2C)."""

    lam: Fraction | None = Key(
        0.95, "Lambda of GAE, as 0.95; null for num_step_returns, or whole-rollout returns."
    )
    num_step_returns: Count | None = Key(
        None, "n of n-step returns when lam is null; replaces training_frequency."
    )
    policy_loss_coef: NonNegative = Key(1.0, "Weight of the policy loss.")
    critic_iter: CountOrZero = Key(
        0, "Extra gradient steps of the critic alone, on the same rollout."
    )

    @model_validator(mode="before")
    @classmethod
    def _n_step_sets_the_frequency(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("lam") is None and data.get("num_step_returns") is not None:
            n_step = data["num_step_returns"]
            return {**data, "lam": None, "training_frequency": n_step}
        return data

    def pace(self, spec: base.Spec) -> base.Pace:
        if spec.agent.memory_info.kind == "episodes":
            return super().pace(spec)
        return base.Pace(self.rollout_length * spec.env.num_envs, 1 + self.critic_iter)

    @property
    def rollout_length(self) -> int:
        """Steps of a rollout: without lambda, n-step returns decide."""
        n_step = None if self.lam is not None else self.num_step_returns
        return self.training_frequency if n_step is None else n_step


RECORDS = (
    base.AlgorithmInfo(
        "ActorCritic",
        ActorCriticSpec,
        "slm_lab.agent.algorithm.a2c:ActorCritic",
        aliases=("A2C",),
        label="A2C",
        style=base.Style("green", "D"),
        order=40,
        memories=frozenset({"rollout", "episodes"}),
        critic="keys",
        privileged_critic=True,
        columns=A2C_COLUMNS,
        action_masks=True,
        defaults=base.Defaults({"name": "OnPolicyBatchReplay"}, A2C_NET),
    ),
)
