"""SAC: the soft actor-critic."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from slm_lab.spec.algorithm import base
from slm_lab.spec.block import (
    Block,
    Count,
    CountOrZero,
    Findings,
    Flag,
    Fraction,
    Key,
    NonNegative,
    Number,
    Positive,
    SmallCount,
    checked,
    expect,
    invalid,
    is_number,
)
from slm_lab.spec.memory import replay
from slm_lab.spec.net import POLYAK
from slm_lab.spec.optim import LossSpec


class EntropyAnnealSpec(Block):
    """Target entropy of discrete SAC as a share of ln(number of actions), linear over frames."""

    start_ratio: Fraction = Key(0.6, "Share at frame 0.")
    end_ratio: Fraction | None = Key(None, "Share at the end; null keeps the start.")
    frames: CountOrZero = Key(0, "Frames from start_ratio to end_ratio.")


class CriticSpec(Block):
    """What a critic says of the return: its mean, or the probabilities of atoms on a support."""

    name: Literal["scalar", "categorical"] = Key(
        "scalar", "scalar learns the mean by agent.critic_net.loss_spec, categorical all of it."
    )
    num_atoms: Annotated[SmallCount, Field(ge=2)] = Key(101, "Atoms of the support.")
    v_min: Number = Key(-5.0, "Smallest return; what lies below counts as this.")
    v_max: Number = Key(5.0, "Largest return. env.normalize_reward keeps returns inside.")
    target: Literal["distribution", "two_hot", "hl_gauss"] = Key(
        "distribution",
        "What is learned: the next state's distribution, moved and projected (C51), or the scalar "
        "target spread over two atoms or a Gauss curve.",
    )

    @model_validator(mode="after")
    def _support(self) -> CriticSpec:
        expect(self.v_min < self.v_max, self.v_min, f"less than v_max = {self.v_max}", "v_min")
        if self.name == "scalar":
            for key, info in type(self).model_fields.items():
                if getattr(self, key) != info.default:
                    fix = "has no effect on a scalar critic. Set critic.name to categorical"
                    raise invalid(fix, key=key)
        return self

    @property
    def is_categorical(self) -> bool:
        return self.name == "categorical"


TargetEntropy = Annotated[
    float | Literal["auto"],
    checked(lambda value: value == "auto" or is_number(value), "a number or auto"),
]


class SoftPolicySpec(base.OffPolicySpec):
    """Keys of a stochastic policy with a temperature, and of its critics."""

    policy_delay: Count = Key(1, "Critic updates per actor and target update.")
    target_entropy: TargetEntropy = Key(
        "auto", "Target of the policy entropy; auto is -dim, or a ratio of ln(n)."
    )
    init_alpha: Positive = Key(1.0, "Temperature at the start.")
    alpha_lr: NonNegative | None = Key(
        None, "Learning rate of the temperature; null is the actor's."
    )
    log_alpha_min: Number = Key(-10.0, "Lower clamp of log alpha.")
    log_alpha_max: Number = Key(2.0, "Upper clamp of log alpha.")
    fixed_alpha: NonNegative | None = Key(None, "Constant temperature instead of a tuned one.")
    alpha_anneal_frames: CountOrZero = Key(
        0, "Frames over which fixed_alpha decays to 0; 0 is never."
    )
    spectral_norm: Flag = Key(False, "Spectral norm on the last hidden critic layer.")

    @model_validator(mode="after")
    def _alpha_range(self) -> SoftPolicySpec:
        low, high = self.log_alpha_min, self.log_alpha_max
        expect(low < high, low, f"less than log_alpha_max = {high}", "log_alpha_min")
        return self

    @property
    def crosses(self) -> bool:
        """Whether the critics read both sides of the TD error in one batch."""
        return False

    def cross_check(self, spec: base.Spec, findings: Findings) -> None:
        super().cross_check(spec, findings)
        if self.spectral_norm and spec.agent.critic.unit_weights:
            fix = "and unit_weights both set the scale of a layer. Set one of them to false"
            where = f"{critic_block(spec)}.unit_weights"
            findings.problem(where, f"agent.algorithm.spectral_norm {fix}")


def critic_block(spec: base.Spec) -> str:
    """The place of the critics' net in a spec, for messages."""
    return "agent.net" if spec.agent.critic is spec.agent.net else "agent.critic_net"


def check_no_loss(spec: base.Spec, findings: Findings, kind: str) -> None:
    """Report the loss of critics that have one of their own, `kind` says which."""
    if spec.agent.critic.loss_spec != LossSpec():
        fix = f"has no effect on {kind}. Remove it"
        findings.problem(f"{critic_block(spec)}.loss_spec", fix)


class SoftActorCriticSpec(SoftPolicySpec):
    """Soft actor-critic (SAC), continuous and discrete."""

    entropy_anneal: EntropyAnnealSpec = Field(
        default_factory=EntropyAnnealSpec,
        description="Discrete actions: schedule of the target entropy ratio.",
    )
    entropy_penalty_coef: NonNegative = Key(
        0.0, "Discrete actions: penalty on changes of the entropy."
    )
    critic: CriticSpec = Field(
        default_factory=CriticSpec, description="What the critics say of the return."
    )
    symlog: Flag = Key(False, "Critic losses in symlog space.")

    @property
    def largest_return(self) -> float | None:
        critic = self.critic
        return max(-critic.v_min, critic.v_max) if critic.is_categorical else None

    def cross_check(self, spec: base.Spec, findings: Findings) -> None:
        super().cross_check(spec, findings)
        if not self.critic.is_categorical:
            return
        check_no_loss(spec, findings, "categorical critics, whose loss is the cross-entropy")
        if not (spec.env.normalize_reward or {"v_min", "v_max"} & self.critic.model_fields_set):
            findings.warnings.append(
                f"agent.algorithm.critic: returns beyond {self.critic.v_min:g} and "
                f"{self.critic.v_max:g} cannot be learned; set env.normalize_reward to true, or "
                "v_min and v_max to what returns of this env can be"
            )


def actor_critic_record(name: str, **keys: Any) -> base.AlgorithmInfo:
    """Write the record of an actor with critics of (s, a) that learn from a replay, as SAC does."""
    shared: dict[str, Any] = {
        "label": name,
        "memories": frozenset({"replay"}),
        "actions": frozenset({"continuous"}),
        "critic": "block",
        "target_net": True,
        "recurrent": False,
        "columns": ("alpha", "entropy", "policy_loss", "q_value"),
        "seconds_saved": 8e-3,  # three nets and a temperature: 16.9 ms -> 8.1
        "defaults": base.Defaults(
            replay(256, 1_000_000), base.mlp([256, 256], "relu", 3e-4), target=POLYAK
        ),
    }
    return base.AlgorithmInfo(name=name, **(shared | keys))


RECORDS = (
    actor_critic_record(
        "SoftActorCritic",
        spec_class=SoftActorCriticSpec,
        implementation="slm_lab.agent.algorithm.sac:SoftActorCritic",
        aliases=("SAC",),
        label="SAC",
        style=base.Style("pink", "s"),
        order=80,
        actions=frozenset({"discrete", "continuous"}),
        action_masks=True,
    ),
)
