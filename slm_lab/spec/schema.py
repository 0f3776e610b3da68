"""The whole spec: its four blocks, how a plain tree becomes one, and how blocks must agree."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    SerializeAsAny,
    WithJsonSchema,
    model_validator,
)

from slm_lab.card import card, folded
from slm_lab.spec.agent import AgentSpec, build_agent, with_defaults
from slm_lab.spec.algorithm.base import SCHEDULE, check_multiple, training_start_step
from slm_lab.spec.block import (
    Block,
    Count,
    CountOrZero,
    Findings,
    FreeMapping,
    Key,
    SmallCount,
    Whole,
    build_block,
    shown,
)
from slm_lab.spec.callback import CallbackSpec, build_callbacks, check_search_keys
from slm_lab.spec.compatibility import problems_of
from slm_lab.spec.env import EnvSpec, current_env_id, key_complaint
from slm_lab.spec.error import Problem, SpecError, did_you_mean
from slm_lab.spec.net import rename_earlier_keys
from slm_lab.spec.search import check_search, flatten, split_search_key
from slm_lab.spec.text import TextError, check_json
from slm_lab.spec.tree import plain, write_value
from slm_lab.spec.trust import SpecOrigin
from slm_lab.spec.upgrade import is_v4

_BLOCKS = ("agent", "env", "meta", "search")
V4_MESSAGE = (
    "this is the shape of SLM Lab v4, with lists of agents and envs and a `body`. "
    "`slm-lab spec --upgrade FILE` writes the file in today's shape."
)


# A saved spec carries what its run added; none of it shapes the next run.
_SAVED_RUN_KEYS = """
experiment trial session cuda_offset resume experiment_ts prepath git_sha predir graph_prepath
info_prepath log_prepath model_prepath
"""
SAVED_RUN_KEYS = frozenset(_SAVED_RUN_KEYS.split())
_FORMER_META_KEYS = """
num_gpus resources search training_mode debug_level max_tick max_tick_unit
"""
_MAX_NAME = 100  # the longest file name of a run is some 100 characters longer; 255 is the limit
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_TRIAL = re.compile(r".*_t\d+")


# YAML reads a bare `on` as true.
_ON_OFF = BeforeValidator(lambda x: {True: "on", False: "off"}[x] if isinstance(x, bool) else x)
_NUMBERED = BeforeValidator(lambda x: int(x) if isinstance(x, bool) else x)

_NULL = {"type": "null"}
_NAMED = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Earlier(Block):
    """A budget that a run had before it was extended."""

    max_frame: Count = Field(description="Frames.")
    spec_sha256: str = Field(description="Fingerprint of the spec, which checkpoints bear.")
    values: FreeMapping = Key({}, "Other keys that the extension changed, as they were.")


class InitFrom(Block):
    """The run whose agents a new run begins with."""

    folder: str = Field(
        min_length=1, description="Run folder, `latest`, or a spec's name for its newest run."
    )
    session: Literal["own", "best"] = Key(
        "own", "own: each session takes that of its number, if there is one; best: all the best."
    )
    agent: Literal["best", "last"] = Key("best", "The agent at its best, or as training left it.")

    @model_validator(mode="before")
    @classmethod
    def _folder_alone(cls, data: Any) -> Any:
        return {"folder": data} if isinstance(data, str) else data


class MetaSpec(Block):
    """The run around the algorithm."""

    distributed: Literal[False, "synced", "shared"] = Key(
        False, "Hogwild training by all sessions together: false, synced, shared."
    )
    max_session: Annotated[SmallCount, Field(le=10_000)] = Key(1, "Seeds of each trial.")
    max_trial: SmallCount | None = Key(None, "Trials of a search.")
    log_frequency: Count = Key(
        10_000,
        "Frames between rows of the curve; unless given a hundredth of env.max_frame, "
        "at most 10,000.",
    )
    eval_frequency: Count = Key(10_000, "Frames between evals, with rigorous_eval.")
    checkpoint_frequency: Count | None = Key(
        None, "Frames between saved checkpoints; null is automatic."
    )
    rigorous_eval: Annotated[
        CountOrZero,
        _NUMBERED,
        WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 0}]}),
    ] = Key(0, "Not 0: evaluate in a separate env.")
    search_resources: FreeMapping = Key(
        {"cpu": 1, "gpu": 0}, "What one trial of a search takes: cpu, gpu."
    )
    search_scheduler: FreeMapping | None = Key(
        None, "ASHA arguments, such as grace_period and reduction_factor."
    )
    search_sampler: Literal["optuna", "random", "grid"] = Key(
        "optuna", "Where the trials of a search are: optuna, random, grid."
    )
    random_seed: Annotated[Whole, Field(ge=0, le=2**63 - 1)] | None = Key(
        None, "Seed that all random streams come from; null draws one."
    )
    compile: Annotated[
        Literal["auto", "on", "off"],
        _ON_OFF,
        WithJsonSchema({"enum": ["auto", "on", "off", True, False]}),
    ] = Key("auto", "Compile the learning step; auto decides by expected work.")
    compile_mode: Literal["default", "reduce-overhead", "max-autotune"] = Key(
        "default", "How to compile, as torch.compile names it; reduce-overhead is CUDA graphs."
    )
    precision: Literal["float32", "bfloat16", "float16"] = Key(
        "float32",
        "Type in which wide layers are multiplied while learning: float32, bfloat16, or, on CUDA, "
        "float16. Weights and results stay float32.",
    )
    threads: SmallCount | None = Key(
        None, "Torch threads of each session; null is 1. With 2 PPO trains two nets at once."
    )
    callbacks: Annotated[
        tuple[SerializeAsAny[CallbackSpec], ...],
        WithJsonSchema({"type": "array", "items": {"anyOf": [{"type": "string"}, _NAMED]}}),
    ] = Key((), "What is called while a session trains: see callbacks.")
    init_from: Annotated[
        InitFrom | None,
        WithJsonSchema(
            {"anyOf": [{"type": "string"}, {"type": "object", "required": ["folder"]}, _NULL]}
        ),
    ] = Key(None, "Run whose weights and statistics a new run begins with.")
    extended: tuple[Earlier, ...] = Key(
        (), "Budgets that the run had before; written by `train@FOLDER -s env.max_frame=...`."
    )


class Spec(Block):
    """One validated experiment. Immutable; `with_values` makes a changed copy."""

    name: str = Field(description="Name of the run.")
    agent: AgentSpec = Field(description="Algorithm, memory and nets.")
    env: EnvSpec = Field(description="What it acts in.")
    meta: MetaSpec = Field(description="The run around it.")
    search: FreeMapping = Key({}, "Dotted key__distribution -> its arguments.")

    # The tree as its author spelled it, and the same with what its author left out.
    _given: dict[str, Any] = PrivateAttr(default_factory=dict)
    _tree: dict[str, Any] = PrivateAttr(default_factory=dict)
    _is_yaml: bool = PrivateAttr(default=False)

    def __eq__(self, other: object) -> bool:
        """Compare values, whether an author wrote them or left them to defaults."""
        return isinstance(other, Spec) and self.__dict__ == other.__dict__

    __hash__ = Block.__hash__

    def __repr__(self) -> str:
        what = f"{self.agent.label} on {self.env.name} x {self.env.num_envs}"
        return f"<Spec {self.name}: {what}, {self.env.max_frame:,} frames>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        facts = {
            "algorithm": self.agent.label,
            "env": f"{self.env.name} x {self.env.num_envs}",
            "frames": f"{self.env.max_frame:,}",
            "sessions": self.meta.max_session,
        }
        whole = json.dumps(self.resolved(), indent=2)
        return card(self.name, facts, folded("every key", whole))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as plain data: the process that reads it imports the user's modules by itself."""
        return _rebuilt, (self._given, self.name, self.origin, self._is_yaml)

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as plain JSON data; loading it again gives an equal Spec.

        Blocks that were left out are written out, so that a saved spec means the same under other
        defaults; all else is as its author spelled it.
        """
        return copy.deepcopy(self._tree)

    def given(self) -> dict[str, Any]:
        """Return the spec as its author wrote it, without what was left out."""
        return copy.deepcopy(self._given)

    def resolved(self) -> dict[str, Any]:
        """Return `to_dict` with the value of every key that has a default."""
        tree = self.to_dict()
        agent, built = tree["agent"], self.agent
        _write_defaults(agent["algorithm"], built.algorithm)
        info = built.algorithm_info
        if info.imitates or info.memories == {"replay"}:  # others keep a rollout, no more
            _write_defaults(agent["memory"], built.memory)
        _write_defaults(agent["net"], built.net)
        if built.critic_net is not None and "critic_net" in agent:
            _write_defaults(agent["critic_net"], built.critic_net)
        _write_defaults(tree["env"], self.env)
        _write_defaults(tree["meta"], self.meta)
        return tree

    def with_values(self, values: Mapping[str, Any]) -> Spec:
        """Make a validated copy with values written at dotted paths: `{"env.num_envs": 8}`."""
        tree = self.given()
        found = [write_value(tree, path, value) for path, value in values.items()]
        if problems := [problem for problem in found if problem is not None]:
            raise SpecError(problems, self.name)
        return _rebuilt(tree, self.name, self.origin, self._is_yaml)

    def renamed(self, name: str) -> Spec:
        """Make a copy under another name."""
        return _rebuilt(self.to_dict(), name, self.origin, self._is_yaml)

    @property
    def is_yaml(self) -> bool:
        """Whether its author wrote it in YAML."""
        return self._is_yaml

    @property
    def origin(self) -> SpecOrigin | None:
        """Where the spec was read and which modules are trusted to it, if that is below a run
        folder; None for a spec of the user's own."""
        return self.env.origin

    def with_origin(self, origin: SpecOrigin | None) -> Spec:
        """Make a copy that may import only the modules that the origin is trusted with."""
        env = self.env.model_copy()
        env._origin = origin
        return self.model_copy(update={"env": env})


def _rebuilt(tree: dict[str, Any], name: str, origin: SpecOrigin | None, is_yaml: bool) -> Spec:
    spec, _ = build_spec(tree, name, origin=origin)
    spec._is_yaml = is_yaml
    return spec


def build_spec(
    tree: Mapping[str, Any], name: str, source: str = "", origin: SpecOrigin | None = None
) -> tuple[Spec, list[str]]:
    """Build the Spec of a plain tree and list its warnings; SpecError with every problem found.

    Its classes of the user's own are imported where the origin is trusted with their modules.
    """
    findings = Findings(origin)
    given = plain({**tree, "name": name})
    try:
        check_json(given)
    except TextError as error:
        raise SpecError([Problem("", str(error))], source or name) from None
    rename_earlier_keys(given.get("agent"))
    spec = _build(given, name, findings)
    if findings.problems or spec is None:
        raise SpecError(findings.problems, source or name)
    return spec.with_origin(origin) if origin else spec, findings.all_warnings()


def name_complaint(name: str) -> str:
    """Complaint about a name that a run's files cannot begin with; empty if they can."""
    rule = f"1 to {_MAX_NAME} letters, digits and _ - . +"
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        return f"found {shown(name)}; expected {rule}, a letter or digit first. Rename the spec"
    if _TRIAL.fullmatch(name):
        rule += ", without _t and a number at the end"
        return f"found {shown(name)}; expected {rule}: files of a trial are called so"
    return ""


def _write_defaults(block: dict[str, Any], built: Block) -> None:
    """Add each key that a block leaves at its default, unless an actor_ or critic_ key stands in.

    Arguments of an optimiser, a loss or an env stand beside its name, as in a file.
    """
    for key, value in built.model_dump(mode="json").items():
        if isinstance(value, dict) and "kwargs" in value:
            value = {"name": value["name"], **value["kwargs"]}
        if key == "kwargs" or f"actor_{key}" in block or f"critic_{key}" in block:
            continue
        if key.endswith(SCHEDULE) and block.get(key.removesuffix(SCHEDULE)) is not None:
            continue
        if block.get(key) is None:
            block[key] = value
        elif isinstance(value, dict) and isinstance(block[key], dict):
            block[key] = {**value, **block[key]}


def _build(tree: dict[str, Any], name: str, findings: Findings) -> Spec | None:
    if is_v4(tree):
        findings.problem("agent", V4_MESSAGE)
        return None
    if complaint := name_complaint(name):
        findings.problem("name", complaint)
    given, tree = tree, with_defaults(tree, findings.origin)
    blocks: dict[str, dict[str, Any]] = {}
    for key in sorted(tree.keys() - {"name", *_BLOCKS}):
        findings.problem(key, f"unknown key for a spec. {did_you_mean(key, _BLOCKS)}")
    for key in _BLOCKS:
        block = tree.get(key, {} if key == "search" else None)
        if isinstance(block, Mapping):
            blocks[key] = dict(block)
        elif key not in tree:
            findings.problem(key, "missing; a spec has the blocks agent and env")
        elif not (key == "search" and block is None):
            findings.problem(key, f"found {shown(block)}; expected a mapping")

    agent = build_agent(blocks["agent"], findings) if "agent" in blocks else None
    env = _build_env(blocks["env"], findings) if "env" in blocks else None
    meta = None
    if "meta" in blocks:
        given_meta = {k: v for k, v in blocks["meta"].items() if k not in SAVED_RUN_KEYS}
        former = _FORMER_META_KEYS.split()
        if "callbacks" in given_meta:
            given_meta["callbacks"] = build_callbacks(given_meta["callbacks"], findings)
        meta = build_block(MetaSpec, given_meta, "meta", findings, "meta", former)
    search = dict(flatten(blocks.get("search", {})))
    absent = check_search(search, tree, findings)
    check_search_keys([split_search_key(key)[0] for key in search], findings)
    if agent is None or env is None or meta is None or findings.problems:
        return None
    spec = Spec(name=name, agent=agent, env=env, meta=meta, search=search)
    _cross_check(spec, findings)
    spec._given, spec._tree = given, tree
    if any(split_search_key(key)[0].endswith((".name", ".type")) for key in search):
        findings.warnings += [f"search.{key}: not in the spec, nor checked" for key in absent]
        return spec  # which keys there are depends on the trial
    for key, value in absent.items():
        _check_absent(key, value, spec, findings)
    return None if findings.problems and absent else spec


def _check_absent(key: str, value: Any, spec: Spec, findings: Findings) -> None:
    """Report a searched path that the spec does not have, unless a trial can have it: what a block
    says about the first of its values."""
    path, _ = split_search_key(key)
    tree, about = copy.deepcopy(spec._given), Findings(spec.origin)
    tree.pop("search", None)
    if problem := write_value(tree, path, value):
        findings.problem(f"search.{key}", problem.message)
        return
    _build(tree, spec.name, about)
    related = [each for each in about.problems if f"{path}.".startswith(f"{each.path}.")]
    if related:
        findings.problem(f"search.{key}", related[0].message)
    elif path in about.inert:
        findings.warnings.append(f"search.{key}: has no effect here: trials differ by chance alone")


def _build_env(tree: dict[str, Any], findings: Findings) -> EnvSpec | None:
    complaints = {key: complaint for key in tree if (complaint := key_complaint(key))}
    for key, complaint in complaints.items():
        findings.problem(f"env.{key}", complaint)
    given = {key: value for key, value in tree.items() if key not in complaints}
    name = given.get("name")
    if isinstance(name, str) and (new := current_env_id(name)) != name:
        given["name"] = new
        findings.warnings.append(f"env.name: {name} is called {new} now, and that is used")
    return build_block(EnvSpec, given, "env", findings, "env")


def _cross_check(spec: Spec, findings: Findings) -> None:
    """Report what no single block can see."""
    _check_recurrence(spec, findings)
    spec.agent.algorithm.cross_check(spec, findings)
    findings.problems += problems_of(spec)
    max_frame, log_frequency = spec.env.max_frame, spec.meta.log_frequency
    if log_frequency > max_frame:
        findings.warnings.append(
            f"meta.log_frequency: {log_frequency} is more than env.max_frame = {max_frame}, "
            "so the curve will have one row"
        )


def _check_recurrence(spec: Spec, findings: Findings) -> None:
    """Report where the sequences that a recurrent net learns from do not fit."""
    seq_len, of_critic = spec.agent.net.sequence_length, spec.agent.critic.sequence_length
    if seq_len is None:
        if of_critic is not None:
            has_block = spec.agent.algorithm_info.critic == "block"
            path = "agent.critic_net.type" if has_block else "agent.net.critic_type"
            findings.problem(path, "RecurrentNet needs a recurrent actor as well.")
        return
    if of_critic != seq_len:
        fix = "actor and critic must both be RecurrentNet, with the same seq_len."
        findings.problem("agent.net", fix)
    if spec.agent.memory_info.kind != "replay":
        return
    if not spec.agent.memory_info.sequences:
        fix = "Use Replay, or say sequences=True in its record if it gives sequences."
        message = f"{spec.agent.memory.name} draws single transitions, and agent.net.type:"
        message = f"{message} {spec.agent.net.type} learns from sequences. {fix}"
        findings.problem("agent.memory.name", message)
    memory, least = spec.agent.memory, seq_len * spec.env.num_envs
    check_multiple("agent.memory.batch_size", memory.batch_size, spec, findings)
    if min(memory.max_size, spec.env.max_frame) < least:
        needed = f"a sequence of each env takes seq_len * num_envs = {least}"
        message = f"found {memory.max_size}; {needed}, and env.max_frame must reach that too"
        findings.problem("agent.memory.max_size", message)
    elif (start := training_start_step(spec)) < least:
        expected = f"expected at least seq_len * num_envs = {least}"
        reason = "so that there are whole sequences to learn from"
        key = "agent.algorithm.training_start_step"
        findings.problem(key, f"found {start}; {expected}, {reason}")
