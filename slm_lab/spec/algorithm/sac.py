"""SAC: the soft actor-critic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from slm_lab.spec.algorithm.base import (
    AlgorithmInfo,
    Defaults,
    DiscountedSpec,
    Pace,
    Style,
    batches_per_call,
    check_off_policy,
    mlp,
)
from slm_lab.spec.block import (
    Block,
    Count,
    CountOrZero,
    Findings,
    Flag,
    Fraction,
    NonNegative,
    Number,
    Positive,
    invalid,
    shown,
)
from slm_lab.spec.memory.replay import replay
from slm_lab.spec.net.base import POLYAK

if TYPE_CHECKING:
    from slm_lab.spec.schema import Spec


class EntropyAnnealSpec(Block):
    """Target entropy of discrete SAC as a share of ln(number of actions), linear over frames."""

    start_ratio: Fraction = Field(default=0.6, description="Share at frame 0.")
    end_ratio: Fraction | None = Field(
        default=None, description="Share at the end; null keeps the start."
    )
    frames: CountOrZero = Field(default=0, description="Frames from start_ratio to end_ratio.")


def _target_entropy(value: object) -> object:
    if value == "auto" or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise invalid(f"found {shown(value)}; expected a number or auto")


TargetEntropy = Annotated[float | Literal["auto"], BeforeValidator(_target_entropy)]


class SACKeys(DiscountedSpec):
    """Keys of SAC and CrossQ."""

    training_frequency: Count = Field(default=1, description="Transitions between training calls.")
    training_iter: Count | None = Field(
        default=None,
        description="Batches per training call; null is the smaller of num_envs and "
        "training_frequency, one batch a transition.",
    )
    training_start_step: CountOrZero | None = Field(
        default=None,
        description="Random transitions before learning; null is max(1000, batch_size).",
    )
    policy_delay: Count = Field(
        default=1, description="Critic updates per actor and target update."
    )
    target_entropy: TargetEntropy = Field(
        default="auto",
        description="Target of the policy entropy; auto is -dim, or a ratio of ln(n).",
    )
    entropy_anneal: EntropyAnnealSpec = Field(
        default_factory=EntropyAnnealSpec,
        description="Discrete actions: schedule of the target entropy ratio.",
    )
    init_alpha: Positive = Field(default=1.0, description="Temperature at the start.")
    alpha_lr: NonNegative | None = Field(
        default=None, description="Learning rate of the temperature; null is the actor's."
    )
    log_alpha_min: Number = Field(default=-10.0, description="Lower clamp of log alpha.")
    log_alpha_max: Number = Field(default=2.0, description="Upper clamp of log alpha.")
    fixed_alpha: NonNegative | None = Field(
        default=None, description="Constant temperature instead of a tuned one."
    )
    alpha_anneal_frames: CountOrZero = Field(
        default=0, description="Frames over which fixed_alpha decays to 0; 0 is never."
    )
    entropy_penalty_coef: NonNegative = Field(
        default=0.0, description="Discrete actions: penalty on changes of the entropy."
    )
    symlog: Flag = Field(default=False, description="Critic losses in symlog space.")
    spectral_norm: Flag = Field(
        default=False, description="Spectral norm on the last hidden critic layer."
    )
    n_step: Count = Field(default=1, description="Rewards summed before the bootstrap.")

    @model_validator(mode="after")
    def _alpha_range(self) -> SACKeys:
        if self.log_alpha_min >= self.log_alpha_max:
            raise invalid(
                f"found {self.log_alpha_min}; expected less than log_alpha_max = "
                f"{self.log_alpha_max}",
                key="log_alpha_min",
            )
        return self

    least_start: ClassVar[int] = 1000

    def pace(self, spec: Spec) -> Pace:
        return Pace(self.training_frequency, batches_per_call(spec))

    def cross_check(self, spec: Spec, findings: Findings) -> None:
        check_off_policy(spec, findings)


class SoftActorCriticSpec(SACKeys):
    """Soft actor-critic (SAC), continuous and discrete."""

    name: Literal["SoftActorCritic"] = Field(description="Algorithm name.")


RECORDS = (
    AlgorithmInfo(
        name="SoftActorCritic",
        aliases=("SAC",),
        spec_class=SoftActorCriticSpec,
        implementation="slm_lab.agent.algorithm.sac:SoftActorCritic",
        label="SAC",
        style=Style("pink", "s"),
        order=80,
        memories=frozenset({"replay"}),
        actions=frozenset({"discrete", "continuous"}),
        target_net=True,
        recurrent=False,
        columns=("alpha",),
        seconds_saved=8e-3,  # three nets and a temperature: 16.9 ms -> 8.1
        defaults=Defaults(replay(256, 1_000_000), mlp([256, 256], "relu", 3e-4), target=POLYAK),
    ),
)
