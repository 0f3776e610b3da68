"""Defaults of a spec: the memory, nets and target updates that each algorithm starts from.

A block without its `name` or `type` starts from the algorithm's default block (in its record), and
what the spec gives changes single keys of it. A block that names its kind stands on its own: only
keys without which it could not be built are filled in. So a complete spec never changes meaning.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slm_lab.spec.algorithm import ALGORITHMS
from slm_lab.spec.algorithm.base import Defaults, Tree
from slm_lab.spec.memory import MEMORIES
from slm_lab.spec.net import POLYAK, REPLACE, TARGET_KEYS

# Nature's convolutions (Mnih et al. 2015), for ALE/ envs.
_CONVOLUTIONS: Tree = {
    "type": "ConvNet",
    "conv_hid_layers": [[32, 8, 4, 0, 1], [64, 4, 2, 0, 1], [64, 3, 1, 0, 1]],
    "fc_hid_layers": [512],
    "hid_layers_activation": "relu",
    "normalize": True,
}
# The keys that a block of the same kind cannot do without.
_SIZES = frozenset({"batch_size", "max_size"})
_LAYERS = frozenset({"hid_layers", "hid_layers_activation", "normalize"})


def with_defaults(given: Mapping[str, Any]) -> Tree:
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
    info = ALGORITHMS.find(algorithm.get("name")) if isinstance(algorithm, dict) else None
    if info is None:
        return tree
    defaults = info.defaults
    if str(env.get("name")).startswith("ALE/"):
        defaults = _for_images(defaults)
    starts_from_default = _mapping(agent.get("net")).get("type") is None
    agent["memory"] = _filled(agent.get("memory"), defaults.memory, "name", _SIZES)
    agent["net"] = _filled(agent.get("net"), defaults.net, "type", _LAYERS)
    if defaults.critic_net is not None and starts_from_default:
        critic = agent.get("critic_net")
        agent["critic_net"] = _filled(critic, defaults.critic_net, "type", _LAYERS)
    if defaults.target:
        _fill_target(agent["net"], defaults.target)
    memory = MEMORIES.find(_mapping(agent["memory"]).get("name"))
    info.spec_class.fill(agent["algorithm"], memory.kind if memory else None, env)
    return tree


def _mapping(value: Any) -> Tree:
    return value if isinstance(value, dict) else {}


def _for_images(defaults: Defaults) -> Defaults:
    """Replace the layers by convolutions, shared by actor and critic; keep all other settings."""
    learning = {k: v for k, v in defaults.net.items() if not k.startswith(("type", "hid_layers"))}
    shared = {"shared": True} if "shared" in learning else {}
    critic = defaults.critic_net
    if critic is not None:
        critic = _CONVOLUTIONS | {"batch_norm": True, "optim_spec": critic["optim_spec"]}
    return replace(defaults, net=_CONVOLUTIONS | learning | shared, critic_net=critic)


def _filled(block: Any, default: Tree, kind: str, needed: frozenset[str]) -> Any:
    """Fill a block with all of the default, or with the keys that its kind cannot do without."""
    if block is not None and not isinstance(block, Mapping):
        return block  # not a mapping: for the error message that follows
    given = {key: value for key, value in (block or {}).items() if value is not None}
    nulls = {key: None for key in (block or {}) if key not in given and key not in default}
    if kind not in given:
        return {**_joined(default, given), **nulls}
    own = {key: default[key] for key in needed if key in default}
    names = (given[kind], default[kind])
    memories = [MEMORIES.find(name) for name in names]
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
