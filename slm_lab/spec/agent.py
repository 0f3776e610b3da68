"""`agent`: the algorithm, its memory and its nets, each built by the record that its name picks.

A block without its `name` or `type` starts from the algorithm's default block (in its record), and
what the spec gives changes single keys of it. A block that names its kind stands on its own: only
keys without which it could not be built are filled in. So a complete spec never changes meaning.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import Field, SerializeAsAny

from slm_lab.spec.algorithm import ALGORITHMS, algorithm_label
from slm_lab.spec.algorithm.base import (
    CONVOLUTIONS,
    SCHEDULE,
    AlgorithmInfo,
    AlgorithmSpec,
    Defaults,
    ScheduleSpec,
    Tree,
    fill_schedules_apart,
    name_schedules,
)
from slm_lab.spec.block import Block, Findings, Key, build_block, shown
from slm_lab.spec.error import SpecError, did_you_mean
from slm_lab.spec.memory import MEMORIES, SIL_KEYS, MemoryInfo, MemorySpec
from slm_lab.spec.net import HEAD_STD_KEYS, NETS, POLYAK, REPLACE, TARGET_KEYS, NetSpec
from slm_lab.spec.optim import LossSpec, OptimSpec, SchedulerSpec
from slm_lab.spec.own_class import (
    check_arguments,
    check_schedule,
    find_record,
    find_record_or_none,
    is_opaque,
)
from slm_lab.spec.record import Record, RecordedBlock, RecordT, Registry
from slm_lab.spec.trust import SpecOrigin, is_own

_ABSENT = {
    "HydraDQN": "HydraDQN has no implementation, here or in SLM Lab 5. Use DQN or DoubleDQN.",
    "HydraMLPNet": "HydraMLPNet needs a multi-env algorithm, and there is none. Use MLPNet.",
}
# Keys of earlier versions that shipped specs still carry and nothing reads.
_FORMER_ALGORITHM_KEYS = """
add_critic clip_val_loss continuous_action_clip normalize_state num_epis_to_collect
sil_epoch use_gae use_nstep
"""
_FORMER_NET_KEYS = """
clip_grad lr_anneal_timestep lr_decay lr_decay_frequency lr_decay_min_timestep name
"""
# What means something to one algorithm, memory or net has no effect on another.
_ALGORITHM_KEYS = ALGORITHMS.keys_of_specs().union(_FORMER_ALGORITHM_KEYS.split())
_ALGORITHM_KEYS |= {key.removesuffix(SCHEDULE) for key in _ALGORITHM_KEYS}
_MEMORY_KEYS = MEMORIES.keys_of_specs()
_NET_KEYS = NETS.keys_of_specs().union(_FORMER_NET_KEYS.split())
_NET_KEYS |= {f"{who}_{key}" for who in ("actor", "critic") for key in _NET_KEYS}
_DEFAULT_HORIZON = 128
BlockT = TypeVar("BlockT", bound=RecordedBlock)

# The keys that a block of the same kind cannot do without.
_SIZES = frozenset({"batch_size", "max_size"})
_LAYERS = frozenset({"hid_layers", "hid_layers_activation", "normalize"})


class AgentSpec(Block):
    """What acts and learns."""

    name: str = Key("", "Label of the agent; the algorithm's name if there is none.")
    algorithm: SerializeAsAny[AlgorithmSpec] = Field(description="The learning algorithm.")
    memory: SerializeAsAny[MemorySpec] = Field(description="Where experience is kept.")
    net: SerializeAsAny[NetSpec] = Field(
        description="The net; the actor's where actor and critic differ."
    )
    critic_net: SerializeAsAny[NetSpec] | None = Key(
        None,
        "The critic's net; written as critic_ keys in net, for SoftActorCritic and CrossQ as is.",
    )

    @property
    def algorithm_info(self) -> AlgorithmInfo:
        """The record of the algorithm."""
        return self.algorithm.record_in(ALGORITHMS)

    @property
    def memory_info(self) -> MemoryInfo:
        """The record of the memory."""
        return self.memory.record_in(MEMORIES)

    @property
    def label(self) -> str:
        """The label of the algorithm in tables and legends."""
        return algorithm_label(self.algorithm.name, self.memory.name)

    @property
    def critic(self) -> NetSpec:
        """The critic's net, which has the actor's spec where it has none of its own."""
        return self.critic_net or self.net


def with_defaults(given: Mapping[str, Any], origin: SpecOrigin | None = None) -> Tree:
    """Copy a spec's tree and add every block and every needed key that was left out."""
    tree: Tree = copy.deepcopy(dict(given))
    if tree.get("meta") is None:
        tree["meta"] = {}
    agent, env = _mapping(tree.get("agent")), _mapping(tree.get("env"))
    meta: Any = tree["meta"]
    budget: Any = env.get("max_frame")
    has_budget = isinstance(budget, int | float) and budget > 0
    if isinstance(meta, dict) and meta.get("log_frequency") is None and has_budget:
        # a hundred rows of the curve, or a row every 10,000 frames
        meta["log_frequency"] = max(1, min(10_000, int(budget // 100)))
    algorithm = agent.get("algorithm")
    name = _mapping(algorithm).get("name")
    info = find_record_or_none(ALGORITHMS, name, origin)
    if info is None:
        return tree
    defaults = info.defaults
    if str(env.get("name")).startswith("ALE/"):
        defaults = _for_images(defaults)
    starts_from_default = _mapping(agent.get("net")).get("type") is None
    agent["memory"] = _filled(agent.get("memory"), defaults.memory, "name", _SIZES, origin)
    agent["net"] = _filled(agent.get("net"), defaults.net, "type", _LAYERS, origin)
    if defaults.critic_net is not None and starts_from_default:
        critic = agent.get("critic_net")
        agent["critic_net"] = _filled(critic, defaults.critic_net, "type", _LAYERS, origin)
    if info.critic == "block" and defaults.critic_net is None:
        _fill_critic(agent, defaults, origin)
    elif defaults.target:
        _fill_target(agent["net"], defaults.target)
    memory = find_record_or_none(MEMORIES, _mapping(agent["memory"]).get("name"), origin)
    kind, net = memory.kind if memory else None, _mapping(agent["net"])
    fill_schedules_apart(info.spec_class, agent["algorithm"], kind, env, net)
    return tree


def _mapping(value: Any) -> Tree:
    return value if isinstance(value, dict) else {}


def _for_images(defaults: Defaults) -> Defaults:
    """Replace the layers by convolutions, shared by actor and critic; keep all other settings."""
    learning = {k: v for k, v in defaults.net.items() if not k.startswith(("type", "hid_layers"))}
    learning["type"] = str(defaults.net["type"]).replace("MLP", "Conv")
    shared = {"shared": True} if "shared" in learning else {}
    critic = defaults.critic_net
    if critic is not None:
        critic = CONVOLUTIONS | {"batch_norm": True, "optim_spec": critic["optim_spec"]}
    return replace(defaults, net=CONVOLUTIONS | learning | shared, critic_net=critic)


def _filled(
    block: Any, default: Tree, kind: str, needed: frozenset[str], origin: SpecOrigin | None
) -> Any:
    """Fill a block with all of the default, or with the keys that its kind cannot do without."""
    if block is not None and not isinstance(block, Mapping):
        return block  # not a mapping: for the error message that follows
    given = {key: value for key, value in (block or {}).items() if value is not None}
    nulls = {key: None for key in (block or {}) if key not in given and key not in default}
    if kind not in given:
        return {**_joined(default, given), **nulls}
    own = {key: value for key, value in default.items() if key in needed}
    names = (given[kind], default.get(kind))
    memories = [find_record_or_none(MEMORIES, name, origin) for name in names]
    both_replay = all(memory is not None and memory.kind == "replay" for memory in memories)
    is_alike = names[0] == names[1] or both_replay
    return {**own, **(block or {})} if is_alike else dict(block or {})


def _joined(default: Mapping[str, Any], given: Mapping[str, Any]) -> Tree:
    """Merge given keys into the default, and into its mappings unless they name another class."""
    joined = copy.deepcopy(dict(default))
    for key, value in given.items():
        old = joined.get(key)
        joined[key] = copy.deepcopy(value)
        if isinstance(old, dict) and isinstance(value, Mapping):
            is_same_class = value.get("name", old.get("name")) == old.get("name")
            joined[key] = _joined(old, value) if is_same_class else joined[key]
    return joined


def _fill_target(net: Any, target: Tree) -> None:
    """Fill in how the target net follows; the key that is given tells which way is meant."""
    if not isinstance(net, dict):
        return
    given = {key for key in TARGET_KEYS if net.get(key) is not None}
    if "update_type" not in given:
        ways = [way for way in (POLYAK, REPLACE) if given & way.keys()]
        net["update_type"] = (ways or [target])[0]["update_type"]
    fallback = POLYAK if net["update_type"] == "polyak" else REPLACE
    for key, value in fallback.items():
        if net.get(key) is None:
            net[key] = value


def _fill_critic(agent: Tree, defaults: Defaults, origin: SpecOrigin | None) -> None:
    """Fill in the block of a critic, if there is one; without a type it starts from the actor's.

    Target nets follow as the critic's block says, or else as the actor's does.
    """
    net, given = agent["net"], agent.get("critic_net")
    own = given if isinstance(given, Mapping) else {}
    says_how = any(own.get(key) is not None for key in TARGET_KEYS)
    if defaults.target and not says_how:
        _fill_target(net, defaults.target)
    if not isinstance(given, Mapping) or not isinstance(net, dict):
        return
    if given.get("type") is None:
        layers = {key: value for key, value in net.items() if key not in TARGET_KEYS}
        critic = _joined(layers, {key: value for key, value in given.items() if key != "type"})
    else:
        critic = _filled(given, defaults.net, "type", _LAYERS, origin)
    if says_how:
        _fill_target(critic, defaults.target)
    elif defaults.target:
        critic |= {key: net[key] for key in TARGET_KEYS if key in net}
    agent["critic_net"] = critic


def build_agent(tree: Tree, findings: Findings) -> AgentSpec | None:
    """Build the agent of a block; None with the problems reported."""
    known = AgentSpec.model_fields
    for key in sorted(tree.keys() - known.keys()):
        findings.problem(f"agent.{key}", f"unknown key for agent. {did_you_mean(key, known)}")
    parts: dict[str, Tree] = {}
    for key in ("algorithm", "memory", "net"):
        value = tree.get(key)
        if isinstance(value, Mapping):
            parts[key] = dict(value)
        elif value is not None or key == "algorithm":
            found = "missing" if value is None else f"found {shown(value)}"
            findings.problem(f"agent.{key}", f"{found}; expected a mapping")
    if "algorithm" not in parts:
        return None

    info = _record_of(parts["algorithm"], ALGORITHMS, "agent.algorithm", findings)
    if info is None:
        return None
    _replace_episodes(info, parts, findings)
    algorithm = _build_algorithm(info, parts["algorithm"], findings)
    memory = _build_memory(info, parts.get("memory"), findings)
    net, critic_net = _build_nets(info, parts.get("net"), tree.get("critic_net"), findings)
    of_critic = "agent.critic_net" if info.critic == "block" else "agent.net"
    _check_own(algorithm, "agent.algorithm", info, findings)
    _check_own(net, "agent.net", info, findings)
    if critic_net is not net:
        _check_own(critic_net, of_critic, info, findings)
    if is_opaque(info):
        findings.inert.clear()  # which keys have an effect is not known
    if algorithm is None or memory is None or net is None:
        return None
    label = tree.get("name") or info.name
    if not isinstance(label, str):
        findings.problem("agent.name", f"found {shown(label)}; expected text, any label")
        return None
    return AgentSpec(name=label, algorithm=algorithm, memory=memory, net=net, critic_net=critic_net)


def _record_of(
    tree: Tree,
    registry: Registry[RecordT],
    path: str,
    findings: Findings,
) -> RecordT | None:
    """Find the record that a block's `name` or `type` picks."""
    given = tree.get(registry.chosen_by)
    try:
        record = find_record(registry, given, f"{path}.{registry.chosen_by}", findings.origin)
    except SpecError as error:
        findings.problems += error.problems
        return None
    if record is None:
        message = f"found {shown(given)}; unknown. {did_you_mean(str(given), registry)}"
        if given is None:
            message = f"missing; expected one of {', '.join(registry)}"
        findings.problem(f"{path}.{registry.chosen_by}", _ABSENT.get(str(given), message))
    return record


def _replace_episodes(info: AlgorithmInfo, parts: dict[str, Tree], findings: Findings) -> None:
    """Replace the episodic memory that old specs gave PPO, and with which it never ran."""
    memory, algorithm = parts.get("memory", {}), parts["algorithm"]
    given = MEMORIES.find(memory.get("name"))
    is_ppo = "time_horizon" in info.spec_class.model_fields
    if not is_ppo or given is None or given.kind != "episodes":
        return
    memory["name"] = "OnPolicyBatchReplay"
    memory.pop("cross_entropy", None)
    if algorithm.get("time_horizon") is None:
        algorithm["time_horizon"] = _DEFAULT_HORIZON
    findings.warnings.append(
        f"agent.memory.name: {info.name} learns from rollouts, not from the episodes of "
        f"{given.name}; OnPolicyBatchReplay with time_horizon = {algorithm['time_horizon']} is used"
    )


def _build_algorithm(info: AlgorithmInfo, tree: Tree, findings: Findings) -> AlgorithmSpec | None:
    if tree.get("clip_val_loss"):
        has_clip = "clip_vloss" in info.spec_class.model_fields
        fix = ". Did you mean `clip_vloss`?" if has_clip else "; remove it."
        findings.problem("agent.algorithm.clip_val_loss", f"unknown key for {info.name}{fix}")
        return None
    # `default` asks for nothing, so it needs no warning where there is nothing to choose.
    given = {k: v for k, v in tree.items() if (k, v) != ("action_policy", "default")}
    given["name"] = info.name
    path = "agent.algorithm"
    spelling, keys = name_schedules(info.spec_class, given, findings), _ALGORITHM_KEYS
    block = build_block(info.spec_class, given, path, findings, info.name, keys, spelling)
    return _recorded(block, info)


def _recorded(block: BlockT | None, record: Record[Any]) -> BlockT | None:
    """Let a block keep the record of a class of the user's own; ours are found by their names."""
    if block is not None and is_own(record.name):
        block._own_record = record
    return block


def _build_memory(
    info: AlgorithmInfo,
    tree: Tree | None,
    findings: Findings,
) -> MemorySpec | None:
    if tree is None:
        findings.problem("agent.memory", f"missing; {info.name} needs a mapping with a name")
        return None
    memory = _record_of(tree, MEMORIES, "agent.memory", findings)
    if memory is None:
        return None
    if memory.kind not in info.memories and not is_opaque(memory):
        allowed = sorted(name for name in MEMORIES if MEMORIES[name].kind in info.memories)
        message = f"found {shown(memory.name)}; {info.name} learns from {' or '.join(allowed)}."
        findings.problem("agent.memory.name", message)
        return None
    if memory.kind != "replay" and not info.imitates:
        for key in sorted(SIL_KEYS & tree.keys()):
            if tree.pop(key) is not None:
                findings.inert.append(f"agent.memory.{key}")
    path = "agent.memory"
    block = build_block(memory.spec_class, tree, path, findings, memory.name, _MEMORY_KEYS)
    return _recorded(block, memory)


def _build_nets(
    info: AlgorithmInfo,
    tree: Tree | None,
    own_critic: Any,
    findings: Findings,
) -> tuple[NetSpec | None, NetSpec | None]:
    """Build the net and the critic's net of an algorithm, None where it has none."""
    if tree is None:
        findings.problem("agent.net", f"missing; {info.name} needs a mapping with a type")
        return None, None
    if own_critic is not None and info.critic != "block":
        findings.inert.append("agent.critic_net")
    if info.critic == "keys":
        return _build_two_nets(tree, findings)
    net = _build_net(tree, "agent.net", findings)
    if info.critic == "none":
        return net, None
    if own_critic is None:
        return net, net
    if not isinstance(own_critic, Mapping):
        findings.problem("agent.critic_net", f"found {shown(own_critic)}; expected a mapping")
        return net, None
    for key in TARGET_KEYS if info.target_net else ():
        if tree.get(key) not in (None, own_critic.get(key)):
            findings.inert.append(f"agent.net.{key} (agent.critic_net has its own)")
    return net, _build_net(dict(own_critic), "agent.critic_net", findings)


def _build_two_nets(
    tree: Tree,
    findings: Findings,
) -> tuple[NetSpec | None, NetSpec | None]:
    """Build two nets of one block; `actor_` keys are the actor's alone, `critic_` the critic's."""
    for key in TARGET_KEYS:
        if tree.pop(key, None) is not None:
            findings.inert.append(f"agent.net.{key}")
    # Fields of the actor's and of the critic's own -> the keys that the author wrote.
    own = {who: _prefixed(tree, f"{who}_") for who in ("actor", "critic")}
    of_one = {*own["actor"].values(), *own["critic"].values()}
    both = {key: value for key, value in tree.items() if key not in of_one}

    def net_of(who: str, found: Findings) -> NetSpec | None:
        alone = {field: tree[key] for field, key in own[who].items()}
        return _build_net({**both, **alone}, "agent.net", found, own[who])

    actor = net_of("actor", findings)
    if tree.get("use_same_optim"):
        ignored = own["critic"].values()
        findings.inert += [f"agent.net.{key} (use_same_optim is true)" for key in ignored]
        return actor, actor
    # What both nets share is reported once, by the actor.
    second = Findings(findings.origin)
    critic = net_of("critic", second)
    findings.problems += [p for p in second.problems if p not in findings.problems]
    findings.inert += [key for key in second.inert if key not in findings.inert]
    return actor, critic


def _prefixed(tree: Tree, prefix: str) -> dict[str, str]:
    """Map fields to the keys that start with a prefix."""
    keys = (key for key in tree if key.startswith(prefix) and key not in HEAD_STD_KEYS)
    return {key.removeprefix(prefix): key for key in keys}


def _build_net(
    tree: Tree,
    path: str,
    findings: Findings,
    spelling: Mapping[str, str] | None = None,
) -> NetSpec | None:
    info = _record_of(tree, NETS, path, findings)
    if info is None:
        return None
    label = info.name
    block = build_block(info.spec_class, tree, path, findings, label, _NET_KEYS, spelling)
    return _recorded(block, info)


def _check_own(
    block: Block | None,
    path: str,
    info: AlgorithmInfo,
    findings: Findings,
) -> None:
    """Check what the keys of a block name of the user's own, and the arguments beside it."""
    for key, value in () if block is None else block:
        if key == "action_pdtype" and is_own(value):
            samples = "replay" not in info.memories and "explore_var_spec" not in dict(block or ())
            if samples or is_own(info.name):
                check_arguments(value, None, f"{path}.{key}", findings)
            else:
                found = f"found `{value}`; {info.name} samples no distribution that a spec chooses"
                findings.problem(f"{path}.{key}", f"{found}. Leave it out")
        elif isinstance(value, ScheduleSpec) and is_own(value.name):
            check_schedule(value.name, value.arguments, f"{path}.{key}", findings)
        elif isinstance(value, SchedulerSpec) and is_own(value.name):
            check_schedule(value.name, value.kwargs, f"{path}.{key}", findings)
        elif isinstance(value, OptimSpec | LossSpec) and is_own(value.name):
            given = {k: v for k, v in value.kwargs.items() if k != "lr"}
            taken = 2 if isinstance(value, LossSpec) else 0
            check_arguments(value.name, given, f"{path}.{key}", findings, taken)
