"""SAC: the soft actor-critic."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from slm_lab.spec.algorithm import base
from slm_lab.spec.block import (
    Block,
    Count,
    CountOrZero,
    Flag,
    Fraction,
    Key,
    NonNegative,
    Number,
    Positive,
    checked,
    expect,
    is_number,
)
from slm_lab.spec.memory import replay
from slm_lab.spec.net import POLYAK


class EntropyAnnealSpec(Block):
    """Target entropy of discrete SAC as a share of ln(number of actions), linear over frames."""

    start_ratio: Fraction = Key(0.6, "Share at frame 0.")
    end_ratio: Fraction | None = Key(None, "Share at the end; null keeps the start.")
    frames: CountOrZero = Key(0, "Frames from start_ratio to end_ratio.")


TargetEntropy = Annotated[
    float | Literal["auto"],
    checked(lambda value: value == "auto" or is_number(value), "a number or auto"),
]


class SoftActorCriticSpec(base.OffPolicySpec):
    """Soft actor-critic (SAC), continuous and discrete."""

    policy_delay: Count = Key(1, "Critic updates per actor and target update.")
    target_entropy: TargetEntropy = Key(
        "auto", "Target of the policy entropy; auto is -dim, or a ratio of ln(n)."
    )
    entropy_anneal: EntropyAnnealSpec = Field(
        default_factory=EntropyAnnealSpec,
        description="Discrete actions: schedule of the target entropy ratio.",
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
    entropy_penalty_coef: NonNegative = Key(
        0.0, "Discrete actions: penalty on changes of the entropy."
    )
    symlog: Flag = Key(False, "Critic losses in symlog space.")
    spectral_norm: Flag = Key(False, "Spectral norm on the last hidden critic layer.")

    @model_validator(mode="after")
    def _alpha_range(self) -> SoftActorCriticSpec:
        low, high = self.log_alpha_min, self.log_alpha_max
        expect(low < high, low, f"less than log_alpha_max = {high}", "log_alpha_min")
        return self


RECORDS = (
    base.AlgorithmInfo(
        "SoftActorCritic",
        SoftActorCriticSpec,
        "slm_lab.agent.algorithm.sac:SoftActorCritic",
        aliases=("SAC",),
        label="SAC",
        style=base.Style("pink", "s"),
        order=80,
        memories=frozenset({"replay"}),
        actions=frozenset({"discrete", "continuous"}),
        target_net=True,
        recurrent=False,
        columns=("alpha",),
        seconds_saved=8e-3,  # three nets and a temperature: 16.9 ms -> 8.1
        action_masks=True,
        defaults=base.Defaults(
            replay(256, 1_000_000), base.mlp([256, 256], "relu", 3e-4), target=POLYAK
        ),
    ),
)
