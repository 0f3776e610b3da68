"""The whole spec: four blocks, how they are built from a plain tree, and how they must agree."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

from pydantic import Field, PrivateAttr

from slm_lab.spec.algorithm import (
    ACTOR_CRITIC,
    ALGORITHM_KEYS,
    ALGORITHMS,
    NO_TARGET_NET,
    OFF_POLICY,
    ON_POLICY,
    SELF_IMITATION,
    AlgorithmSpec,
    DQNSpec,
    PPOSILSpec,
    PPOSpec,
    SARSASpec,
    canonical_algorithm,
)
from slm_lab.spec.block import Block, FreeMapping, Report, build_block, shown
from slm_lab.spec.compatibility import has_batch_norm, problems_of
from slm_lab.spec.defaults import with_defaults
from slm_lab.spec.env import EnvSpec, current_env_id, key_complaint
from slm_lab.spec.error import Problem, SpecError, did_you_mean
from slm_lab.spec.memory import (
    MEMORIES,
    MEMORY_KEYS,
    SIL_KEYS,
    MemorySpec,
    PrioritizedReplaySpec,
    ReplaySpec,
)
from slm_lab.spec.meta import FORMER_META_KEYS, SAVED_RUN_KEYS, MetaSpec
from slm_lab.spec.name import name_complaint
from slm_lab.spec.named_module import SpecOrigin
from slm_lab.spec.net import (
    HEAD_STD_KEYS,
    NET_KEYS,
    NETS,
    TARGET_KEYS,
    NetSpec,
    RecurrentNetSpec,
)
from slm_lab.spec.search import check_search, flatten_search
from slm_lab.spec.text import TextError, check_json
from slm_lab.spec.upgrade import is_v4

_BLOCKS = ("agent", "env", "meta", "search")

_ABSENT = {
    "HydraDQN": "HydraDQN has no implementation, here or in SLM Lab 5. Use DQN or DoubleDQN.",
    "HydraMLPNet": "HydraMLPNet needs a multi-env algorithm, and there is none. Use MLPNet.",
}


_DEFAULT_HORIZON = 128

V4_MESSAGE = (
    "this is the shape of SLM Lab v4, with lists of agents and envs and a `body`. "
    "`slm-lab spec --upgrade FILE` writes the file in today's shape."
)


class AgentSpec(Block):
    """What acts and learns."""

    name: str = Field(
        default="", description="Label of the agent; the algorithm's name if there is none."
    )
    algorithm: AlgorithmSpec = Field(description="The learning algorithm.")
    memory: MemorySpec = Field(description="Where experience is kept.")
    net: NetSpec = Field(description="The net; the actor's where actor and critic differ.")
    critic_net: NetSpec | None = Field(
        default=None,
        description="The critic's net; written as critic_ keys in net, or for CrossQ as is.",
    )


class Spec(Block):
    """One validated experiment. Immutable; `with_values` makes a changed copy."""

    name: str = Field(description="Name of the run.")
    agent: AgentSpec = Field(description="Algorithm, memory and nets.")
    env: EnvSpec = Field(description="What it acts in.")
    meta: MetaSpec = Field(description="The run around it.")
    search: FreeMapping = Field(
        default={}, description="Dotted key__distribution -> its arguments."
    )

    # The tree as its author spelled it, and the same with what its author left out.
    _given: dict[str, Any] = PrivateAttr(default_factory=dict)
    _tree: dict[str, Any] = PrivateAttr(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Whether two specs mean the same, however much of it is written out."""
        return isinstance(other, Spec) and self.__dict__ == other.__dict__

    __hash__ = Block.__hash__

    def to_dict(self) -> dict[str, Any]:
        """The spec as plain JSON data; loading it again gives an equal Spec.

        Blocks that were left out are written out, so that a saved spec means the same under other
        defaults; all else is as its author spelled it.
        """
        return copy.deepcopy(self._tree)

    def resolved(self) -> dict[str, Any]:
        """`to_dict` with the value of every key that has a default."""
        tree = self.to_dict()
        agent, built = tree["agent"], self.agent
        _write_defaults(agent["algorithm"], built.algorithm)
        if built.algorithm.name in OFF_POLICY | SELF_IMITATION:  # others keep a rollout, no more
            _write_defaults(agent["memory"], built.memory)
        _write_defaults(agent["net"], built.net)
        if built.critic_net is not None and "critic_net" in agent:
            _write_defaults(agent["critic_net"], built.critic_net)
        _write_defaults(tree["env"], self.env)
        _write_defaults(tree["meta"], self.meta)
        return tree

    def with_values(self, values: Mapping[str, Any]) -> Spec:
        """A validated copy with values written at dotted paths: `{"env.num_envs": 8}`."""
        tree = copy.deepcopy(self._given)
        problems = [
            problem
            for path, value in values.items()
            if (problem := write_value(tree, path, value)) is not None
        ]
        if problems:
            raise SpecError(problems, self.name)
        return build_spec(tree, self.name)[0].with_origin(self.origin)

    def renamed(self, name: str) -> Spec:
        """A copy under another name."""
        return build_spec(self.to_dict(), name)[0].with_origin(self.origin)

    @property
    def origin(self) -> SpecOrigin | None:
        """Where the spec was read and which modules are trusted to it, if that is below a run
        folder; None for a spec of the user's own."""
        return self.env.origin

    def with_origin(self, origin: SpecOrigin | None) -> Spec:
        """A copy that may have no other modules imported than the origin is trusted with."""
        env = self.env.model_copy()
        env._origin = origin
        return self.model_copy(update={"env": env})


def build_spec(tree: Mapping[str, Any], name: str, source: str = "") -> tuple[Spec, list[str]]:
    """The Spec of a plain tree, with its warnings; SpecError with every problem found."""
    report = Report()
    plain = _plain({**tree, "name": name})
    try:
        check_json(plain)
    except TextError as error:
        raise SpecError([Problem("", str(error))], source or name) from None
    spec = _build(plain, name, report)
    if report.problems or spec is None:
        raise SpecError(report.problems, source or name)
    return spec, report.all_warnings()


def _write_defaults(block: dict[str, Any], built: Block) -> None:
    """Add each key that a block leaves at its default, unless an actor_ or critic_ key stands in.

    Arguments of an optimiser, a loss or an env stand beside its name, as in a file.
    """
    for key, value in built.model_dump(mode="json").items():
        if isinstance(value, dict) and "kwargs" in value:
            value = {"name": value["name"], **value["kwargs"]}
        if key == "kwargs" or f"actor_{key}" in block or f"critic_{key}" in block:
            continue
        if block.get(key) is None:
            block[key] = value
        elif isinstance(value, dict) and isinstance(block[key], dict):
            block[key] = {**value, **block[key]}


def ppo_minibatch_size(spec: Spec) -> int:
    """Transitions per gradient step of PPO: as given where that divides the rollout evenly.

    Otherwise the rollout is cut into as many minibatches as fit, each as large as it can be. The
    minibatches of a recurrent net hold whole sequences.
    """
    algorithm = spec.agent.algorithm
    if not isinstance(algorithm, PPOSpec | PPOSILSpec):
        raise TypeError(f"{algorithm.name} has no minibatches; only PPO and PPOSIL do")
    rollout = spec.env.num_envs * algorithm.time_horizon
    if algorithm.minibatch_size >= rollout:
        return rollout
    net = spec.agent.net
    unit = net.seq_len if isinstance(net, RecurrentNetSpec) else 1
    units, given = rollout // unit, max(1, algorithm.minibatch_size // unit)
    return units // (units // given) * unit


def batches_per_call(spec: Spec) -> int:
    """Minibatches that one training call of an off-policy algorithm draws.

    Where a spec does not say there is one for each transition, whether training calls come more
    often than the envs step together or not.
    """
    given = getattr(spec.agent.algorithm, "training_iter", None)
    every = getattr(spec.agent.algorithm, "training_frequency", 1)
    return int(given or min(spec.env.num_envs, every))


def training_start_step(spec: Spec) -> int:
    """Transitions that an off-policy algorithm collects before it learns."""
    algorithm, memory = spec.agent.algorithm, spec.agent.memory
    given = getattr(algorithm, "training_start_step", None)
    if given is not None:
        return int(given)
    return memory.batch_size if isinstance(algorithm, DQNSpec) else max(1000, memory.batch_size)


def write_value(tree: dict[str, Any], path: str, value: Any) -> Problem | None:
    """Write into a tree at a dotted path, making mappings on the way; a number indexes a list."""
    *parents, last = path.split(".")
    node: Any = tree
    for part in parents:
        if isinstance(node, dict):
            if node.get(part) is None:
                node[part] = {}
            node = node[part]
        elif _indexes(node, part):
            node = node[int(part)]
        else:
            return Problem(path, f"`{part}` leads nowhere: {shown(node)} has no parts")
    if isinstance(node, dict):
        node[last] = _plain(value)
    elif _indexes(node, last):
        node[int(last)] = _plain(value)
    elif isinstance(node, list):
        return Problem(path, f"`{last}` is no index of a list of {len(node)}")
    else:
        return Problem(path, f"`{last}` leads nowhere: {shown(node)} has no parts")
    return None


def _indexes(node: Any, part: str) -> bool:
    return isinstance(node, list) and part.isdecimal() and int(part) < len(node)


def _plain(value: Any) -> Any:
    """Lists for tuples, dicts for mappings: what JSON gives back."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _build(tree: dict[str, Any], name: str, report: Report) -> Spec | None:
    if is_v4(tree):
        report.problem("agent", V4_MESSAGE)
        return None
    if complaint := name_complaint(name):
        report.problem("name", complaint)
    given, tree = tree, with_defaults(tree)
    blocks: dict[str, dict[str, Any]] = {}
    for key in sorted(tree.keys() - {"name", *_BLOCKS}):
        report.problem(key, f"unknown key for a spec. {did_you_mean(key, _BLOCKS)}")
    for key in _BLOCKS:
        block = tree.get(key, {} if key == "search" else None)
        if isinstance(block, Mapping):
            blocks[key] = dict(block)
        elif key not in tree:
            report.problem(key, "missing; a spec has the blocks agent and env")
        elif not (key == "search" and block is None):
            report.problem(key, f"found {shown(block)}; expected a mapping")

    agent = _build_agent(blocks["agent"], report) if "agent" in blocks else None
    env = _build_env(blocks["env"], report) if "env" in blocks else None
    meta = _build_meta(blocks["meta"], report) if "meta" in blocks else None
    search = dict(flatten_search(blocks.get("search", {})))
    check_search(search, tree, report)
    if agent is None or env is None or meta is None or report.problems:
        return None
    spec = Spec(name=name, agent=agent, env=env, meta=meta, search=search)
    _cross_check(spec, report)
    spec._given, spec._tree = given, tree
    return spec


def _build_env(tree: dict[str, Any], report: Report) -> EnvSpec | None:
    complaints = {key: complaint for key in tree if (complaint := key_complaint(key))}
    for key, complaint in complaints.items():
        report.problem(f"env.{key}", complaint)
    given = {key: value for key, value in tree.items() if key not in complaints}
    name = given.get("name")
    if isinstance(name, str) and current_env_id(name) != name:
        given["name"] = current_env_id(name)
        report.warnings.append(f"env.name: {name} is called {given['name']} now, and that is used")
    return build_block(EnvSpec, given, "env", report, label="env")


def _build_meta(tree: dict[str, Any], report: Report) -> MetaSpec | None:
    given = {key: value for key, value in tree.items() if key not in SAVED_RUN_KEYS}
    return build_block(MetaSpec, given, "meta", report, label="meta", siblings=FORMER_META_KEYS)


def _build_agent(tree: dict[str, Any], report: Report) -> AgentSpec | None:
    for key in sorted(tree.keys() - AgentSpec.model_fields.keys()):
        near = did_you_mean(key, AgentSpec.model_fields)
        report.problem(f"agent.{key}", f"unknown key for agent. {near}")
    parts: dict[str, dict[str, Any]] = {}
    for key in ("algorithm", "memory", "net"):
        value = tree.get(key)
        if isinstance(value, Mapping):
            parts[key] = dict(value)
        elif value is not None or key == "algorithm":
            found = "missing" if value is None else f"found {shown(value)}"
            report.problem(f"agent.{key}", f"{found}; expected a mapping")
    if "algorithm" not in parts:
        return None

    name = _chosen(parts["algorithm"], "name", ALGORITHMS, "agent.algorithm", report)
    if name is None:
        return None
    if name in ("PPO", "PPOSIL"):
        _rollouts_for_episodes(name, parts, report)
    algorithm = _build_algorithm(name, parts["algorithm"], report)
    memory = _build_memory(name, parts.get("memory"), report)
    net, critic_net = _build_nets(name, parts.get("net"), tree.get("critic_net"), report)
    if algorithm is None or memory is None or net is None:
        return None
    label = tree.get("name") or name
    if not isinstance(label, str):
        report.problem("agent.name", f"found {shown(label)}; expected text, any label")
        return None
    return AgentSpec(
        name=label,
        algorithm=cast(AlgorithmSpec, algorithm),
        memory=cast(MemorySpec, memory),
        net=cast(NetSpec, net),
        critic_net=cast("NetSpec | None", critic_net),
    )


def _rollouts_for_episodes(name: str, parts: dict[str, dict[str, Any]], report: Report) -> None:
    """Old specs gave PPO an episodic memory, with which it never ran; it gets a rollout instead."""
    memory, algorithm = parts.get("memory", {}), parts["algorithm"]
    if memory.get("name") not in ("OnPolicyReplay", "OnPolicyCrossEntropy"):
        return
    found, memory["name"] = memory["name"], "OnPolicyBatchReplay"
    memory.pop("cross_entropy", None)
    if algorithm.get("time_horizon") is None:
        algorithm["time_horizon"] = _DEFAULT_HORIZON
    report.warnings.append(
        f"agent.memory.name: {name} learns from rollouts, not from the episodes of {found}; "
        f"OnPolicyBatchReplay with time_horizon = {algorithm['time_horizon']} is used"
    )


def _chosen(
    tree: dict[str, Any], key: str, options: Mapping[str, Any], path: str, report: Report
) -> str | None:
    """The option that a block's `name` or `type` picks, spelled as we spell it."""
    given = tree.get(key)
    if given is None:
        report.problem(f"{path}.{key}", f"missing; expected one of {', '.join(options)}")
        return None
    name = canonical_algorithm(given) if options is ALGORITHMS and isinstance(given, str) else given
    if isinstance(name, str) and name in options:
        return name
    if given in _ABSENT if isinstance(given, str) else False:
        report.problem(f"{path}.{key}", _ABSENT[given])
    else:
        near = did_you_mean(str(given), options)
        report.problem(f"{path}.{key}", f"found {shown(given)}; unknown. {near}")
    return None


def _build_algorithm(name: str, tree: dict[str, Any], report: Report) -> Block | None:
    if tree.get("clip_val_loss"):
        report.problem(
            "agent.algorithm.clip_val_loss",
            f"unknown key for {name}. Did you mean `clip_vloss`?"
            if "clip_vloss" in ALGORITHMS[name].model_fields
            else f"unknown key for {name}; remove it.",
        )
        return None
    # `default` asks for nothing, so it needs no warning where there is nothing to choose.
    given = {k: v for k, v in tree.items() if (k, v) != ("action_policy", "default")}
    return build_block(
        ALGORITHMS[name],
        {**given, "name": name},
        "agent.algorithm",
        report,
        label=name,
        siblings=ALGORITHM_KEYS,
    )


def _build_memory(algorithm: str, tree: dict[str, Any] | None, report: Report) -> Block | None:
    if tree is None:
        report.problem("agent.memory", f"missing; {algorithm} needs a mapping with a name")
        return None
    name = _chosen(tree, "name", MEMORIES, "agent.memory", report)
    if name is None:
        return None
    allowed = _memories_of(algorithm)
    if name not in allowed:
        report.problem(
            "agent.memory.name",
            f"found {shown(name)}; {algorithm} learns from {' or '.join(sorted(allowed))}.",
        )
        return None
    if algorithm not in SELF_IMITATION and name not in ("Replay", "PrioritizedReplay"):
        for key in sorted(SIL_KEYS & tree.keys()):
            if tree.pop(key) is not None:
                report.inert.append(f"agent.memory.{key}")
    return build_block(
        MEMORIES[name], tree, "agent.memory", report, label=name, siblings=MEMORY_KEYS
    )


def _memories_of(algorithm: str) -> set[str]:
    replays = {"Replay", "PrioritizedReplay"}
    if algorithm in OFF_POLICY:
        return replays
    if algorithm in ("PPO", "PPOSIL"):
        return {"OnPolicyBatchReplay"}
    if algorithm in ON_POLICY:
        return set(MEMORIES) - replays
    return set(MEMORIES)


def _build_nets(
    algorithm: str, tree: dict[str, Any] | None, own_critic: Any, report: Report
) -> tuple[Block | None, Block | None]:
    """The net and the critic's net of an algorithm, None where it has none."""
    if tree is None:
        report.problem("agent.net", f"missing; {algorithm} needs a mapping with a type")
        return None, None
    if own_critic is not None and algorithm != "CrossQ":
        report.inert.append("agent.critic_net")
    if algorithm in ACTOR_CRITIC:
        return _build_actor_and_critic(tree, report)
    if algorithm in NO_TARGET_NET:
        for key in sorted(TARGET_KEYS & tree.keys()):
            if tree[key] is not None:
                report.problem(
                    f"agent.net.{key}", f"{algorithm} has no target net; remove it, or use DQN."
                )
    net = _build_net(tree, "agent.net", report)
    if algorithm != "CrossQ":
        return net, None
    if own_critic is None:
        return net, net
    if not isinstance(own_critic, Mapping):
        report.problem("agent.critic_net", f"found {shown(own_critic)}; expected a mapping")
        return net, None
    return net, _build_net(dict(own_critic), "agent.critic_net", report)


def _build_actor_and_critic(
    tree: dict[str, Any], report: Report
) -> tuple[Block | None, Block | None]:
    """One block, two nets: an actor_ key is the actor's, a critic_ key the critic's."""
    for key in sorted(TARGET_KEYS & tree.keys()):
        if tree.pop(key) is not None:
            report.inert.append(f"agent.net.{key}")
    own = {who: _prefixed(tree, f"{who}_") for who in ("actor", "critic")}
    both = {k: v for k, v in tree.items() if k not in own["actor"].values()}
    both = {k: v for k, v in both.items() if k not in own["critic"].values()}

    def net_of(who: str, problems: Report) -> Block | None:
        spelling = own[who]
        keys = {**both, **{field: tree[key] for field, key in spelling.items()}}
        return _build_net(keys, "agent.net", problems, spelling)

    actor = net_of("actor", report)
    if tree.get("use_same_optim"):
        report.inert += [
            f"agent.net.{key} (use_same_optim is true)" for key in own["critic"].values()
        ]
        return actor, actor
    # What both nets share is reported once, by the actor.
    second = Report()
    critic = net_of("critic", second)
    report.problems += [p for p in second.problems if p not in report.problems]
    report.inert += [key for key in second.inert if key not in report.inert]
    return actor, critic


def _prefixed(tree: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """Field -> key, for the keys that start with a prefix."""
    return {
        key.removeprefix(prefix): key
        for key in tree
        if key.startswith(prefix) and key not in HEAD_STD_KEYS
    }


def _build_net(
    tree: dict[str, Any], path: str, report: Report, spelling: Mapping[str, str] | None = None
) -> Block | None:
    kind = _chosen(tree, "type", NETS, path, report)
    if kind is None:
        return None
    return build_block(
        NETS[kind], tree, path, report, label=kind, siblings=NET_KEYS, spelling=spelling
    )


def _cross_check(spec: Spec, report: Report) -> None:
    """What no single block can see."""
    algorithm, env, meta = spec.agent.algorithm, spec.env, spec.meta
    _check_recurrence(spec, report)
    if (
        isinstance(algorithm, SARSASpec)
        and algorithm.training_frequency == 1
        and spec.agent.memory.name == "OnPolicyBatchReplay"
    ):
        report.warnings.append(
            "agent.algorithm.training_frequency: 1 leaves SARSA without next actions, so it learns "
            "from terminations alone; use 2 or more, such as 32"
        )
    if isinstance(algorithm, PPOSpec | PPOSILSpec):
        _check_minibatch(spec, algorithm, report)
        _warn_if_never(
            algorithm.time_horizon * env.num_envs, "time_horizon * num_envs", env, report
        )
    if algorithm.name in OFF_POLICY:
        _warn_if_never(training_start_step(spec), "training_start_step", env, report)
    has_target = algorithm.name in ("DQN", "DoubleDQN", "SoftActorCritic")
    net = spec.agent.net
    if has_target and net.update_type == "polyak" and net.polyak_coef == 0:
        report.warnings.append(
            "agent.net.polyak_coef: 0 freezes the target net; it is the share of new weights"
        )
    report.problems += problems_of(spec)
    if algorithm.name == "CrossQ" and not has_batch_norm(spec.agent.critic_net or net):
        report.warnings.append(
            "agent.critic_net: CrossQ has no target nets and relies on batch normalisation in its "
            "critics, and there is none; set batch_norm to true, or use SoftActorCritic"
        )
    if meta.log_frequency > env.max_frame:
        report.warnings.append(
            f"meta.log_frequency: {meta.log_frequency} is more than env.max_frame = "
            f"{env.max_frame}, so the curve will have one row"
        )


def _check_recurrence(spec: Spec, report: Report) -> None:
    """A recurrent net learns from whole sequences: what they must fit into."""
    algorithm, memory, net = spec.agent.algorithm, spec.agent.memory, spec.agent.net
    critic = spec.agent.critic_net or net
    if not isinstance(net, RecurrentNetSpec):
        if isinstance(critic, RecurrentNetSpec):
            report.problem("agent.net.critic_type", "RecurrentNet needs a recurrent actor as well.")
        return
    if not isinstance(critic, RecurrentNetSpec) or critic.seq_len != net.seq_len:
        report.problem(
            "agent.net", "actor and critic must both be RecurrentNet, with the same seq_len."
        )
    seq_len, num_envs = net.seq_len, spec.env.num_envs
    if isinstance(algorithm, PPOSpec | PPOSILSpec) and algorithm.time_horizon % seq_len:
        report.problem(
            "agent.algorithm.time_horizon",
            f"found {algorithm.time_horizon}; expected a multiple of agent.net.seq_len = {seq_len},"
            f" such as {max(1, algorithm.time_horizon // seq_len) * seq_len}",
        )
    if not isinstance(memory, ReplaySpec | PrioritizedReplaySpec):
        return
    if memory.batch_size % seq_len:
        report.problem(
            "agent.memory.batch_size",
            f"found {memory.batch_size}; expected a multiple of agent.net.seq_len = {seq_len}, "
            f"such as {max(1, memory.batch_size // seq_len) * seq_len}",
        )
    least = seq_len * num_envs
    if min(memory.max_size, spec.env.max_frame) < least:
        report.problem(
            "agent.memory.max_size",
            f"found {memory.max_size}; a sequence of each env takes seq_len * num_envs = {least}, "
            "and env.max_frame must reach that too",
        )
    elif training_start_step(spec) < least:
        report.problem(
            "agent.algorithm.training_start_step",
            f"found {training_start_step(spec)}; expected at least seq_len * num_envs = {least}, "
            "so that there are whole sequences to learn from",
        )


def _check_minibatch(spec: Spec, algorithm: PPOSpec | PPOSILSpec, report: Report) -> None:
    given, used = algorithm.minibatch_size, ppo_minibatch_size(spec)
    if used != given:
        envs, horizon = spec.env.num_envs, algorithm.time_horizon
        fault = "exceeds" if given > envs * horizon else "does not divide"
        report.warnings.append(
            f"agent.algorithm.minibatch_size: {given} {fault} num_envs * time_horizon = "
            f"{envs} * {horizon} = {envs * horizon}; {used} is used"
        )


def _warn_if_never(frames: int, what: str, env: EnvSpec, report: Report) -> None:
    if frames > env.max_frame:
        report.warnings.append(
            f"{what} = {frames} is more than env.max_frame = {env.max_frame}, so nothing is learned"
        )
