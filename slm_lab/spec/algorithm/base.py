"""Base spec class and record of algorithms, with the schedules and checks that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import ConfigDict, Field, ModelWrapValidatorHandler, WrapValidator, model_validator

from slm_lab.spec.block import (
    Block,
    Count,
    CountOrZero,
    Findings,
    Fraction,
    Key,
    Number,
    invalid,
    is_number,
    shown,
)
from slm_lab.spec.error import did_you_mean
from slm_lab.spec.memory import MemoryKind
from slm_lab.spec.record import Record, RecordedBlock
from slm_lab.spec.trust import is_own

if TYPE_CHECKING:
    from slm_lab.spec.schema import Spec as Spec  # for the annotations of all algorithms

Tree = dict[str, Any]
SCHEDULE = "_spec"  # ends the key of a schedule, which may also be written without it
ActionKind = Literal["discrete", "multi_discrete", "multi_binary", "continuous"]
_Discrete = Literal["Categorical", "Argmax", "GumbelSoftmax", "MultiCategorical", "Bernoulli"]
_Continuous = Literal["Normal", "NormalTanh", "MultivariateNormal", "Beta", "Gumbel", "LogNormal"]
ActionPdType = Annotated[
    Literal["default", _Discrete, _Continuous],
    WrapValidator(lambda value, check: value if is_own(value) else check(value)),
]


@dataclass(frozen=True, slots=True)
class Pace:
    """Alternation of an algorithm between acting and learning."""

    frames: int  # between updates; with whole_episodes, episodes between updates
    gradient_steps: int  # per update
    whole_episodes: bool = False


class AlgorithmSpec(RecordedBlock):
    """Base of all algorithms' spec classes: `name`, and what depends on other blocks."""

    name: str = Field(description="Algorithm name.")

    # Transitions collected at least before learning from a replay, where a spec does not say.
    least_start: ClassVar[int] = 0

    @property
    def largest_return(self) -> float | None:
        """What a critic can say of a return at most, if there is a limit."""
        return None

    @classmethod
    def fill(
        cls, tree: Tree, kind: MemoryKind | None, env: Mapping[str, Any], net: Mapping[str, Any]
    ) -> None:
        """Write keys that were left out and follow from memory, env and net into the tree."""

    def cross_check(self, spec: Spec, findings: Findings) -> None:
        """Report what only the whole spec shows to be wrong."""

    def pace(self, spec: Spec) -> Pace:
        """Frames or episodes between updates, and gradient steps of each."""
        raise NotImplementedError

    def step_rows(self, spec: Spec) -> int:
        """Rows of a gradient step; episodes, whose length nobody knows, count as 256."""
        if spec.agent.memory_info.kind == "replay":
            return spec.agent.memory.batch_size
        pace = self.pace(spec)
        return 256 if pace.whole_episodes else pace.frames


class DiscountedSpec(AlgorithmSpec):
    """Keys of every algorithm that learns."""

    gamma: Fraction = Key(0.99, "Discount factor of future rewards, 0 to 1.")
    action_pdtype: ActionPdType = Key(
        "default", "Action distribution; default picks by action space."
    )


class OnPolicySpec(DiscountedSpec):
    """Keys of algorithms that learn once from each few steps, or episodes, of experience."""

    training_frequency: Count = Key(
        32, "Env steps between updates; episodes with OnPolicyReplay, 1 unless given."
    )

    @classmethod
    def fill(
        cls, tree: Tree, kind: MemoryKind | None, env: Mapping[str, Any], net: Mapping[str, Any]
    ) -> None:
        super().fill(tree, kind, env, net)
        if kind == "episodes" and tree.get("training_frequency") is None:
            tree["training_frequency"] = 1

    def pace(self, spec: Spec) -> Pace:
        if spec.agent.memory_info.kind == "episodes":
            return Pace(self.training_frequency, 1, whole_episodes=True)
        return Pace(self.training_frequency * spec.env.num_envs, 1)


class OffPolicySpec(DiscountedSpec):
    """Keys of algorithms that learn from a replay of transitions, as SAC does."""

    training_frequency: Count = Key(1, "Transitions between training calls.")
    training_iter: Count | None = Key(
        None,
        "Batches per training call; null is the smaller of num_envs and "
        "training_frequency, one batch a transition.",
    )
    training_start_step: CountOrZero | None = Key(
        None, "Random transitions before learning; null is max(1000, batch_size)."
    )
    n_step: Count = Key(1, "Rewards summed before the bootstrap.")

    least_start: ClassVar[int] = 1000

    def pace(self, spec: Spec) -> Pace:
        return Pace(self.training_frequency, batches_per_call(spec))

    def cross_check(self, spec: Spec, findings: Findings) -> None:
        check_off_policy(spec, findings)


class Style(NamedTuple):
    """Look of an algorithm in graphs: a colour of analysis/style.py, and matplotlib's marker."""

    color: str
    marker: str


UNKNOWN_STYLE = Style("grey", ".")


@dataclass(frozen=True, slots=True)
class Defaults:
    """The blocks that an algorithm starts from, in the words of a spec file."""

    memory: Tree
    net: Tree
    critic_net: Tree | None = None  # of an algorithm whose critic has a block of its own
    target: Tree = field(default_factory=dict)  # how target nets follow, if it has any


@dataclass(frozen=True, kw_only=True)
class AlgorithmInfo(Record[AlgorithmSpec]):
    """Record of an algorithm: all that other packages ask about it."""

    label: str = ""  # in tables and legends; of a class of the user's own it is its name
    order: int = 100  # place in legends, tables and pages; equal ones go by name
    style: Style = UNKNOWN_STYLE
    per_style: Style | None = None  # with prioritized replay, where that looks different
    memories: frozenset[MemoryKind]  # that it can learn from
    actions: frozenset[ActionKind] = frozenset(get_args(ActionKind))
    # Where a spec describes the critic's net: nowhere, by `critic_` keys, or in `agent.critic_net`.
    critic: Literal["none", "keys", "block"] = "none"
    learns: bool = True
    imitates: bool = False  # keeps a replay of past episodes beside its rollout
    target_net: bool = False
    recurrent: bool = True  # learns from sequences
    privileged_critic: bool = False
    action_masks: bool = False  # keeps to the actions that a mask allows
    noisy_nets: bool = False  # explores by noise on weights
    # Metrics of its `update` that are columns of the session's CSV; those that the original SLM Lab
    # has come first. Each has an entry in runs/glossary.py.
    columns: tuple[str, ...] = ()
    seconds_saved: float = 1.5e-3  # by compiling, per gradient step on vectors, on one core
    defaults: Defaults = field(default_factory=lambda: Defaults({}, {}))


class ScheduleSpec(Block):
    """A value that changes with the frame.

    Of a class of the user's own only the name is known here; other keys are its arguments.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": False})

    name: Literal["no_decay", "linear_decay", "rate_decay", "periodic_decay"] = Field(
        description="Shape of the schedule."
    )
    start_val: Number = Field(description="Value until start_step.")
    end_val: Number | None = Key(
        None, "Value from end_step; null keeps start_val, as no_decay does."
    )
    start_step: CountOrZero = Key(0, "Frame at which the decay begins.")
    end_step: CountOrZero = Key(0, "Frame at which the decay ends.")

    @property
    def arguments(self) -> dict[str, Any]:
        """Keys beside the name, for a class of the user's own."""
        fields = self.model_fields_set & type(self).model_fields.keys() - {"name"}
        return {key: getattr(self, key) for key in sorted(fields)} | (self.model_extra or {})

    @model_validator(mode="wrap")
    @classmethod
    def _own_class_takes_any_key(
        cls, data: Any, check: ModelWrapValidatorHandler[ScheduleSpec]
    ) -> ScheduleSpec:
        if isinstance(data, Mapping) and is_own(data.get("name")):
            own = cls.model_construct(None, **data)
            for key in cls.model_fields.keys() - data.keys():
                own.__dict__.pop(key, None)  # a default of ours is no argument of the user's class
            return own
        return check(data)

    @model_validator(mode="before")
    @classmethod
    def _number_is_constant(cls, data: Any) -> Any:
        return {"name": "no_decay", "start_val": data} if is_number(data) else data

    @model_validator(mode="after")
    def _values_fit_the_shape(self) -> ScheduleSpec:
        if is_own(self.name):
            return self
        for key in self.model_extra or {}:
            raise invalid(f"unknown key. {did_you_mean(key, type(self).model_fields)}", key=key)
        if self.name == "no_decay" and self.end_val not in (None, self.start_val):
            found = f"found {shown(self.end_val)}; no_decay stays at start_val = {self.start_val:g}"
            fix = "Remove end_val, or use linear_decay with an end_step."
            raise invalid(f"{found}. {fix}", key="end_val")
        if self.name != "no_decay" and self.end_step <= self.start_step:
            found = f"found {self.end_step}; {self.name} needs an end_step after start_step"
            fix = "For a constant use no_decay."
            raise invalid(f"{found} = {self.start_step}. {fix}", key="end_step")
        return self


def schedules_of(model: type[Block]) -> list[str]:
    """Keys of a block whose value is a schedule."""
    kinds = ((key, info.annotation) for key, info in model.model_fields.items())
    return [key for key, kind in kinds if ScheduleSpec in (kind, *get_args(kind))]


def name_schedules(spec_class: type[Block], tree: Tree, findings: Findings) -> dict[str, str]:
    """Rename `KEY` to `KEY_spec` where that is a schedule; returns the renamed ones as written."""
    spelling = {}
    for key in schedules_of(spec_class):
        short = key.removesuffix(SCHEDULE)
        if short == key or tree.get(short) is None:
            continue
        if tree.get(key) is not None:
            findings.problem(
                f"agent.algorithm.{short}", f"is short for `{key}`; remove one of them"
            )
        tree[key] = tree.pop(short)
        spelling[key] = short
    return spelling


def fill_schedules_apart(
    spec_class: type[AlgorithmSpec],
    tree: Tree,
    kind: MemoryKind | None,
    env: Mapping[str, Any],
    net: Mapping[str, Any],
) -> None:
    """Fill in what was left out; a schedule under its short key was not."""
    given = {**tree}
    spec_class.fill(tree, kind, env, net)
    for key in schedules_of(spec_class):
        if given.get(key.removesuffix(SCHEDULE)) is not None and key not in given:
            tree.pop(key, None)


def mlp(widths: list[int], activation: str, lr: float, **keys: Any) -> Tree:
    """Write a block `net` of fully connected layers, trained by Adam."""
    return {
        "type": "MLPNet",
        "hid_layers": widths,
        "hid_layers_activation": activation,
        "optim_spec": {"name": "Adam", "lr": lr},
        **keys,
    }


# Nature's convolutions (Mnih et al. 2015), for ALE/ envs.
CONVOLUTIONS: Tree = {
    "type": "ConvNet",
    "conv_hid_layers": [[32, 8, 4, 0, 1], [64, 4, 2, 0, 1], [64, 3, 1, 0, 1]],
    "fc_hid_layers": [512],
    "hid_layers_activation": "relu",
    "normalize": True,
}


def check_multiple(path: str, value: int, spec: Spec, findings: Findings) -> None:
    """Report a number of transitions that is not cut evenly into a recurrent net's sequences."""
    seq_len = spec.agent.net.sequence_length or 1
    if value % seq_len:
        expected = f"expected a multiple of agent.net.seq_len = {seq_len}"
        fix = f"such as {max(1, value // seq_len) * seq_len}"
        findings.problem(path, f"found {value}; {expected}, {fix}")


def batches_per_call(spec: Spec) -> int:
    """Minibatches that one training call of an off-policy algorithm draws.

    Unless a spec says otherwise there is one for each transition, whether training calls come
    more often than the envs step together or not.
    """
    given = getattr(spec.agent.algorithm, "training_iter", None)
    every = getattr(spec.agent.algorithm, "training_frequency", 1)
    return int(given or min(spec.env.num_envs, every))


def training_start_step(spec: Spec) -> int:
    """Transitions that an off-policy algorithm collects before it learns."""
    algorithm = spec.agent.algorithm
    given = getattr(algorithm, "training_start_step", None)
    least = max(algorithm.least_start, spec.agent.memory.batch_size)
    return least if given is None else int(given)


def check_off_policy(spec: Spec, findings: Findings) -> None:
    """Warn of a replay that is never learned from, and of a target net that never moves."""
    warn_if_never(training_start_step(spec), "training_start_step", spec, findings)
    net = spec.agent.critic
    frozen = net.update_type == "polyak" and net.polyak_coef == 0
    if spec.agent.algorithm_info.target_net and frozen:
        block = "net" if net is spec.agent.net else "critic_net"
        why = "0 freezes the target net; it is the share of new weights"
        findings.warnings.append(f"agent.{block}.polyak_coef: {why}")


def warn_if_never(frames: int, what: str, spec: Spec, findings: Findings) -> None:
    """Warn where the first update would come after the last frame."""
    if frames > (budget := spec.env.max_frame):
        found = f"{what} = {frames} is more than env.max_frame = {budget}"
        findings.warnings.append(f"{found}, so nothing is learned")
