"""`agent.algorithm`: one frozen class per algorithm, chosen by `name`. Field name = spec key."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from slm_lab.spec.block import (
    Block,
    Count,
    CountOrZero,
    Flag,
    Fraction,
    NonNegative,
    Number,
    Positive,
    invalid,
    shown,
)

ActionPdType = Literal[
    "default",
    "Categorical",
    "Argmax",
    "GumbelSoftmax",
    "MultiCategorical",
    "Bernoulli",
    "Normal",
    "NormalTanh",
    "MultivariateNormal",
    "Beta",
    "Gumbel",
    "LogNormal",
]
ActionPolicy = Literal["default", "random", "epsilon_greedy", "boltzmann"]


class ScheduleSpec(Block):
    """A value that changes with the frame."""

    name: Literal["no_decay", "linear_decay", "rate_decay", "periodic_decay"] = Field(
        description="Shape of the schedule."
    )
    start_val: Number = Field(description="Value until start_step.")
    end_val: Number | None = Field(
        default=None, description="Value from end_step; null keeps start_val, as no_decay does."
    )
    start_step: CountOrZero = Field(default=0, description="Frame at which the decay begins.")
    end_step: CountOrZero = Field(default=0, description="Frame at which the decay ends.")

    @model_validator(mode="before")
    @classmethod
    def _not_a_bare_number(cls, data: Any) -> Any:
        if isinstance(data, int | float) and not isinstance(data, bool):
            constant = f'{{"name": "no_decay", "start_val": {data}}}'
            raise invalid(f"found {shown(data)}; expected a schedule. For a constant: {constant}")
        return data

    @model_validator(mode="after")
    def _no_decay_has_one_value(self) -> ScheduleSpec:
        if self.name == "no_decay" and self.end_val not in (None, self.start_val):
            raise invalid(
                f"found {shown(self.end_val)}; no_decay stays at start_val = {self.start_val:g}. "
                "Remove end_val, or use linear_decay with an end_step.",
                key="end_val",
            )
        return self

    @model_validator(mode="after")
    def _decays_take_time(self) -> ScheduleSpec:
        if self.name != "no_decay" and self.end_step <= self.start_step:
            raise invalid(
                f"found {self.end_step}; {self.name} needs an end_step after "
                f"start_step = {self.start_step}. For a constant use no_decay.",
                key="end_step",
            )
        return self


class EntropyAnnealSpec(Block):
    """Target entropy of discrete SAC as a share of ln(number of actions), linear over frames."""

    start_ratio: Fraction = Field(default=0.6, description="Share at frame 0.")
    end_ratio: Fraction | None = Field(
        default=None, description="Share at the end; null keeps the start."
    )
    frames: CountOrZero = Field(default=0, description="Frames from start_ratio to end_ratio.")


def _advantage_scaling(value: object) -> object:
    if isinstance(value, bool):
        return "standardize" if value else "none"
    return value


def _target_entropy(value: object) -> object:
    if value == "auto" or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise invalid(f"found {shown(value)}; expected a number or auto")


AdvantageScaling = Annotated[
    Literal["standardize", "percentile", "none"],
    BeforeValidator(_advantage_scaling),
    WithJsonSchema({"enum": ["standardize", "percentile", "none", True, False]}),
]
TargetEntropy = Annotated[float | Literal["auto"], BeforeValidator(_target_entropy)]


class RandomSpec(Block):
    """Uniform actions: the baseline that every score is measured against."""

    name: Literal["Random"] = Field(description="Algorithm name.")


class _Discounted(Block):
    gamma: Fraction = Field(default=0.99, description="Discount factor of future rewards, 0 to 1.")
    action_pdtype: ActionPdType = Field(
        default="default", description="Action distribution; default picks by action space."
    )


class _ValueBased(_Discounted):
    action_policy: ActionPolicy = Field(
        default="default",
        description="How an action is chosen from the Q values; default is epsilon_greedy, or "
        "boltzmann where action_pdtype is Categorical.",
    )
    explore_var_spec: ScheduleSpec | None = Field(
        default=None,
        description="Schedule of epsilon (epsilon_greedy) or temperature (boltzmann); null is "
        "from 1 to 0.05 over the first fifth of env.max_frame.",
    )


class SARSASpec(_ValueBased):
    """On-policy TD(0) on Q values."""

    name: Literal["SARSA"] = Field(description="Algorithm name.")
    training_frequency: Count = Field(
        default=32,
        description="Env steps between updates; episodes with OnPolicyReplay, 1 unless given.",
    )


class DQNSpec(_ValueBased):
    """The DQN family; VanillaDQN and DQNBase have no target net, DoubleDQN decouples selection."""

    name: Literal["VanillaDQN", "DQNBase", "DQN", "DoubleDQN"] = Field(
        description="Algorithm name."
    )
    training_frequency: Count = Field(default=4, description="Transitions between training calls.")
    training_start_step: CountOrZero | None = Field(
        default=None, description="Transitions before the first training call; null is one batch."
    )
    training_iter: Count = Field(default=1, description="Batches per training call.")
    training_batch_iter: Count = Field(default=1, description="Gradient steps per batch.")
    n_step: Count = Field(default=1, description="Rewards summed before the bootstrap.")


class ReinforceSpec(_Discounted):
    """Monte-Carlo policy gradient."""

    name: Literal["Reinforce"] = Field(description="Algorithm name.")
    training_frequency: Count = Field(
        default=32,
        description="Env steps between updates; episodes with OnPolicyReplay, 1 unless given.",
    )
    entropy_coef_spec: ScheduleSpec | None = Field(
        default=None, description="Schedule of the entropy bonus; null is none."
    )
    center_return: Flag = Field(default=False, description="Subtract the batch mean from returns.")
    policy_loss_coef: NonNegative = Field(default=1.0, description="Weight of the policy loss.")


class _ActorCriticKeys(_Discounted):
    training_frequency: Count = Field(
        default=32,
        description="Env steps between updates; episodes with OnPolicyReplay, 1 unless given.",
    )
    lam: Fraction | None = Field(
        default=0.95,
        description="Lambda of GAE, as 0.95; null for num_step_returns, or whole-rollout returns.",
    )
    num_step_returns: Count | None = Field(
        default=None,
        description="n of n-step returns when lam is null; replaces training_frequency.",
    )
    entropy_coef_spec: ScheduleSpec | None = Field(
        default=None, description="Schedule of the entropy bonus; null is none."
    )
    policy_loss_coef: NonNegative = Field(default=1.0, description="Weight of the policy loss.")
    val_loss_coef: NonNegative = Field(default=1.0, description="Weight of the value loss.")
    normalize_v_targets: Flag = Field(
        default=False, description="Scale value targets by a running std."
    )
    normalize_advantages: AdvantageScaling = Field(
        default="standardize", description="How advantages are scaled; true and false are accepted."
    )
    critic_iter: CountOrZero = Field(
        default=0, description="Extra gradient steps of the critic alone, on the same rollout."
    )

    @model_validator(mode="before")
    @classmethod
    def _n_step_sets_the_pace(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("lam") is None and data.get("num_step_returns") is not None:
            n_step = data["num_step_returns"]
            return {**data, "lam": None, "training_frequency": n_step}
        return data


class ActorCriticSpec(_ActorCriticKeys):
    """Advantage actor-critic (A2C)."""

    name: Literal["ActorCritic"] = Field(description="Algorithm name.")


class _PPOKeys(_Discounted):
    lam: Fraction = Field(default=0.95, description="Lambda of GAE, 0 to 1.")
    clip_eps_spec: ScheduleSpec = Field(
        default_factory=lambda: ScheduleSpec(name="no_decay", start_val=0.2),
        description="Schedule of the clip range; a constant 0.2 unless given.",
    )
    time_horizon: Count = Field(
        default=2048,
        description="Rollout length in steps of each env; unless given, 2,048 steps over all envs.",
    )
    training_epoch: Count = Field(default=10, description="Passes over each rollout.")
    minibatch_size: Count = Field(default=64, description="Transitions per gradient step.")
    entropy_coef_spec: ScheduleSpec | None = Field(
        default=None, description="Schedule of the entropy bonus; null is none."
    )
    val_loss_coef: NonNegative = Field(default=1.0, description="Weight of the value loss.")
    normalize_v_targets: Flag = Field(
        default=False, description="Scale value targets by a running std."
    )
    clip_vloss: Flag = Field(
        default=False, description="Clip the value's change by the clip range."
    )
    symlog: Flag = Field(default=False, description="Compare values and targets in symlog space.")
    normalize_advantages: AdvantageScaling = Field(
        default="standardize", description="How advantages are scaled; true and false are accepted."
    )
    recompute_advantages: Flag = Field(
        default=False, description="Recompute values and advantages before each epoch."
    )


class PPOSpec(_PPOKeys):
    """Proximal policy optimisation with a clipped objective."""

    name: Literal["PPO"] = Field(description="Algorithm name.")


class _SACKeys(_Discounted):
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
    def _alpha_range(self) -> _SACKeys:
        if self.log_alpha_min >= self.log_alpha_max:
            raise invalid(
                f"found {self.log_alpha_min}; expected less than log_alpha_max = "
                f"{self.log_alpha_max}",
                key="log_alpha_min",
            )
        return self


class SoftActorCriticSpec(_SACKeys):
    """Soft actor-critic (SAC), continuous and discrete."""

    name: Literal["SoftActorCritic"] = Field(description="Algorithm name.")


class CrossQSpec(_SACKeys):
    """SAC with batch-renormalised critics and no target nets."""

    name: Literal["CrossQ"] = Field(description="Algorithm name.")


class _SelfImitation(Block):
    sil_policy_loss_coef: NonNegative = Field(
        default=1.0, description="Weight of the self-imitation policy loss."
    )
    sil_val_loss_coef: NonNegative = Field(
        default=0.1, description="Weight of the self-imitation value loss."
    )
    training_iter: Count = Field(default=1, description="Replay batches per training call.")
    training_batch_iter: Count = Field(default=1, description="Gradient steps per replay batch.")


class SILSpec(_SelfImitation, _ActorCriticKeys):
    """Actor-critic with self-imitation."""

    name: Literal["SIL"] = Field(description="Algorithm name.")


class PPOSILSpec(_SelfImitation, _PPOKeys):
    """PPO with self-imitation."""

    name: Literal["PPOSIL"] = Field(description="Algorithm name.")


AlgorithmSpec = Annotated[
    RandomSpec
    | SARSASpec
    | DQNSpec
    | ReinforceSpec
    | ActorCriticSpec
    | PPOSpec
    | SoftActorCriticSpec
    | CrossQSpec
    | SILSpec
    | PPOSILSpec,
    Field(discriminator="name"),
]

ALGORITHMS: dict[str, type[Block]] = {
    "Random": RandomSpec,
    "SARSA": SARSASpec,
    "VanillaDQN": DQNSpec,
    "DQNBase": DQNSpec,
    "DQN": DQNSpec,
    "DoubleDQN": DQNSpec,
    "Reinforce": ReinforceSpec,
    "ActorCritic": ActorCriticSpec,
    "PPO": PPOSpec,
    "SoftActorCritic": SoftActorCriticSpec,
    "CrossQ": CrossQSpec,
    "SIL": SILSpec,
    "PPOSIL": PPOSILSpec,
}

_SHORT_NAMES = {"a2c": "ActorCritic", "sac": "SoftActorCritic", "ddqn": "DoubleDQN"}

OFF_POLICY = frozenset({"VanillaDQN", "DQNBase", "DQN", "DoubleDQN", "SoftActorCritic", "CrossQ"})
ON_POLICY = frozenset({"SARSA", "Reinforce", "ActorCritic", "PPO", "SIL", "PPOSIL"})
ACTOR_CRITIC = frozenset({"ActorCritic", "PPO", "SIL", "PPOSIL"})
SELF_IMITATION = frozenset({"SIL", "PPOSIL"})
NO_TARGET_NET = frozenset({"VanillaDQN", "DQNBase"})

# Keys of earlier versions that shipped specs still carry and no algorithm reads.
_FORMER_KEYS = frozenset(
    {
        "add_critic",
        "clip_eps",
        "clip_val_loss",
        "continuous_action_clip",
        "normalize_state",
        "num_epis_to_collect",
        "sil_epoch",
        "use_gae",
        "use_nstep",
    }
)
ALGORITHM_KEYS = _FORMER_KEYS.union(*(model.model_fields for model in ALGORITHMS.values()))


def canonical_algorithm(name: str) -> str:
    """The algorithm's own name for any spelling of it: `a2c`, `PPO-SIL`, `REINFORCE`."""
    folded = _fold(name)
    by_folded = {_fold(known): known for known in ALGORITHMS}
    return by_folded.get(folded) or _SHORT_NAMES.get(folded) or name


def _fold(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")
