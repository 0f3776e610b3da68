"""`agent`: the algorithm, its memory and its nets, each built by the record that its name picks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, SerializeAsAny

from slm_lab.spec.algorithm import ALGORITHMS, algorithm_label
from slm_lab.spec.algorithm.base import AlgorithmInfo, AlgorithmSpec, Tree
from slm_lab.spec.block import Block, Findings, Key, build_block, shown
from slm_lab.spec.error import did_you_mean
from slm_lab.spec.memory import MEMORIES, SIL_KEYS, MemoryInfo, MemorySpec
from slm_lab.spec.net import HEAD_STD_KEYS, NETS, TARGET_KEYS, NetSpec
from slm_lab.spec.record import RecordT, Registry

_ABSENT = {
    "HydraDQN": "HydraDQN has no implementation, here or in SLM Lab 5. Use DQN or DoubleDQN.",
    "HydraMLPNet": "HydraMLPNet needs a multi-env algorithm, and there is none. Use MLPNet.",
}
# Keys of earlier versions that shipped specs still carry and nothing reads.
_FORMER_ALGORITHM_KEYS = """
add_critic clip_eps clip_val_loss continuous_action_clip normalize_state num_epis_to_collect
sil_epoch use_gae use_nstep
"""
_FORMER_NET_KEYS = """
clip_grad lr_anneal_timestep lr_decay lr_decay_frequency lr_decay_min_timestep name
"""
# What means something to one algorithm, memory or net has no effect on another.
_ALGORITHM_KEYS = ALGORITHMS.keys_of_specs().union(_FORMER_ALGORITHM_KEYS.split())
_MEMORY_KEYS = MEMORIES.keys_of_specs()
_NET_KEYS = NETS.keys_of_specs().union(_FORMER_NET_KEYS.split())
_NET_KEYS |= {f"{who}_{key}" for who in ("actor", "critic") for key in _NET_KEYS}
_DEFAULT_HORIZON = 128


class AgentSpec(Block):
    """What acts and learns."""

    name: str = Key("", "Label of the agent; the algorithm's name if there is none.")
    algorithm: SerializeAsAny[AlgorithmSpec] = Field(description="The learning algorithm.")
    memory: SerializeAsAny[MemorySpec] = Field(description="Where experience is kept.")
    net: SerializeAsAny[NetSpec] = Field(
        description="The net; the actor's where actor and critic differ."
    )
    critic_net: SerializeAsAny[NetSpec] | None = Key(
        None, "The critic's net; written as critic_ keys in net, or for CrossQ as is."
    )

    @property
    def algorithm_info(self) -> AlgorithmInfo:
        """The record of the algorithm."""
        return ALGORITHMS[self.algorithm.name]

    @property
    def memory_info(self) -> MemoryInfo:
        """The record of the memory."""
        return MEMORIES[self.memory.name]

    @property
    def label(self) -> str:
        """The label of the algorithm in tables and legends."""
        return algorithm_label(self.algorithm.name, self.memory.name)

    @property
    def critic(self) -> NetSpec:
        """The critic's net, which has the actor's spec where it has none of its own."""
        return self.critic_net or self.net


def build_agent(tree: Tree, findings: Findings) -> AgentSpec | None:
    """Build the agent of a block; None with the problems reported."""
    for key in sorted(tree.keys() - AgentSpec.model_fields.keys()):
        near = did_you_mean(key, AgentSpec.model_fields)
        findings.problem(f"agent.{key}", f"unknown key for agent. {near}")
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
    if algorithm is None or memory is None or net is None:
        return None
    label = tree.get("name") or info.name
    if not isinstance(label, str):
        findings.problem("agent.name", f"found {shown(label)}; expected text, any label")
        return None
    return AgentSpec(name=label, algorithm=algorithm, memory=memory, net=net, critic_net=critic_net)


def _record_of(
    tree: Tree, registry: Registry[RecordT], path: str, findings: Findings
) -> RecordT | None:
    """Find the record that a block's `name` or `type` picks."""
    given = tree.get(registry.chosen_by)
    record = registry.find(given)
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
    return build_block(info.spec_class, given, path, findings, info.name, _ALGORITHM_KEYS)


def _build_memory(info: AlgorithmInfo, tree: Tree | None, findings: Findings) -> MemorySpec | None:
    if tree is None:
        findings.problem("agent.memory", f"missing; {info.name} needs a mapping with a name")
        return None
    memory = _record_of(tree, MEMORIES, "agent.memory", findings)
    if memory is None:
        return None
    if memory.kind not in info.memories:
        allowed = sorted(name for name in MEMORIES if MEMORIES[name].kind in info.memories)
        message = f"found {shown(memory.name)}; {info.name} learns from {' or '.join(allowed)}."
        findings.problem("agent.memory.name", message)
        return None
    if memory.kind != "replay" and not info.imitates:
        for key in sorted(SIL_KEYS & tree.keys()):
            if tree.pop(key) is not None:
                findings.inert.append(f"agent.memory.{key}")
    path = "agent.memory"
    return build_block(memory.spec_class, tree, path, findings, memory.name, _MEMORY_KEYS)


def _build_nets(
    info: AlgorithmInfo, tree: Tree | None, own_critic: Any, findings: Findings
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
    return net, _build_net(dict(own_critic), "agent.critic_net", findings)


def _build_two_nets(tree: Tree, findings: Findings) -> tuple[NetSpec | None, NetSpec | None]:
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
    second = Findings()
    critic = net_of("critic", second)
    findings.problems += [p for p in second.problems if p not in findings.problems]
    findings.inert += [key for key in second.inert if key not in findings.inert]
    return actor, critic


def _prefixed(tree: Tree, prefix: str) -> dict[str, str]:
    """Map fields to the keys that start with a prefix."""
    keys = (key for key in tree if key.startswith(prefix) and key not in HEAD_STD_KEYS)
    return {key.removeprefix(prefix): key for key in keys}


def _build_net(
    tree: Tree, path: str, findings: Findings, spelling: Mapping[str, str] | None = None
) -> NetSpec | None:
    info = _record_of(tree, NETS, path, findings)
    if info is None:
        return None
    return build_block(info.spec_class, tree, path, findings, info.name, _NET_KEYS, spelling)
