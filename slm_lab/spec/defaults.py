"""What a spec may leave out: the memory, nets and target updates that each algorithm starts from.

A block without its `name` or `type` starts from the algorithm's default block, and what the spec
gives changes single keys of it. A block that names its kind stands on its own: only keys without
which it could not be built are filled in. So a spec that was complete before means what it meant.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slm_lab.spec.algorithm import canonical_algorithm

Tree = dict[str, Any]

EXPLORED_SHARE = 0.2
"""Share of env.max_frame over which epsilon falls, where a spec gives no schedule."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The blocks of one algorithm, in the words of a spec file."""

    memory: Tree
    net: Tree
    critic_net: Tree | None = None  # for CrossQ alone: others write critic_ keys into `net`
    target: Tree = field(default_factory=dict)  # how target nets follow, if it has any


def _mlp(widths: list[int], activation: str, lr: float, **keys: Any) -> Tree:
    return {
        "type": "MLPNet",
        "hid_layers": widths,
        "hid_layers_activation": activation,
        "optim_spec": {"name": "Adam", "lr": lr},
        **keys,
    }


# Nature's convolutions (Mnih et al. 2015), for ALE/ envs.
_CONVOLUTIONS: Tree = {
    "type": "ConvNet",
    "conv_hid_layers": [[32, 8, 4, 0, 1], [64, 4, 2, 0, 1], [64, 3, 1, 0, 1]],
    "fc_hid_layers": [512],
    "hid_layers_activation": "relu",
    "normalize": True,
}
_REPLAY: Tree = {"name": "Replay", "batch_size": 64, "max_size": 100_000}
_COPIED: Tree = {"update_type": "replace", "update_frequency": 1000}
_AVERAGED: Tree = {"update_type": "polyak", "polyak_coef": 0.005}
# PPO's details of Stable-Baselines3: tanh, orthogonal weights, a small policy head, a free log-std.
_ACTOR_CRITIC: Tree = {
    "init_fn": "orthogonal_",
    "actor_init_std": 0.01,
    "critic_init_std": 1.0,
    "log_std_init": 0.0,
    "clip_grad_val": 0.5,
    "shared": False,
}
_SOFT = Defaults(
    memory={"name": "Replay", "batch_size": 256, "max_size": 1_000_000},
    net=_mlp([256, 256], "relu", 3e-4),
    target=_AVERAGED,
)
_VALUES = Defaults(memory=_REPLAY, net=_mlp([64, 64], "relu", 1e-3, clip_grad_val=10.0))
_PAST: Tree = {"batch_size": 64, "max_size": 100_000}
_ROLLOUT: Tree = {"name": "OnPolicyBatchReplay"}
_PPO_NET = _mlp([64, 64], "tanh", 3e-4, **_ACTOR_CRITIC)
_A2C_NET = _mlp([64, 64], "tanh", 1e-3, **_ACTOR_CRITIC)


def _renormalized(widths: list[int]) -> Tree:
    """CrossQ's critic: batch renormalisation before every layer (Bhatt et al. 2024)."""
    norm = {"LazyBatchRenorm1d": {"momentum": 0.01, "eps": 1e-3, "warmup_steps": 5000}}
    layers = [
        layer
        for width in widths
        for layer in (norm, {"LazyLinear": {"out_features": width}}, {"ReLU": None})
    ]
    return {
        "type": "TorchArcNet",
        "arc": {
            "modules": {"body": {"Sequential": [*layers, norm]}},
            "graph": {"input": "x", "modules": {"body": ["x"]}, "output": "body"},
        },
    }


_FAST_ADAM: Tree = {"name": "Adam", "lr": 1e-3, "betas": [0.5, 0.999]}

DEFAULTS: dict[str, Defaults] = {
    "Random": Defaults(_ROLLOUT, {"type": "MLPNet", "hid_layers": []}),
    "SARSA": Defaults(_ROLLOUT, _VALUES.net),
    "VanillaDQN": _VALUES,
    "DQNBase": _VALUES,
    "DQN": Defaults(_VALUES.memory, _VALUES.net, target=_COPIED),
    "DoubleDQN": Defaults(_VALUES.memory, _VALUES.net, target=_COPIED),
    "Reinforce": Defaults({"name": "OnPolicyReplay"}, _mlp([64], "relu", 2e-3)),
    "ActorCritic": Defaults(_ROLLOUT, _A2C_NET),
    "PPO": Defaults(_ROLLOUT, _PPO_NET),
    "SIL": Defaults(_ROLLOUT | _PAST, _A2C_NET),
    "PPOSIL": Defaults(_ROLLOUT | _PAST, _PPO_NET),
    "SoftActorCritic": _SOFT,
    "CrossQ": Defaults(
        memory=_SOFT.memory,
        net=_mlp([256, 256], "relu", 1e-3) | {"optim_spec": _FAST_ADAM},
        critic_net=_renormalized([256, 256]) | {"optim_spec": _FAST_ADAM},
    ),
}


def with_defaults(given: Mapping[str, Any]) -> Tree:
    """A copy of a spec's tree with every block and every needed key that was left out."""
    tree: Tree = copy.deepcopy(dict(given))
    if tree.get("meta") is None:
        tree["meta"] = {}
    agent, env = tree.get("agent"), tree.get("env")
    _fill_log_frequency(tree["meta"], env.get("max_frame") if isinstance(env, dict) else None)
    algorithm = agent.get("algorithm") if isinstance(agent, dict) else None
    name = algorithm.get("name") if isinstance(algorithm, dict) else None
    defaults = DEFAULTS.get(canonical_algorithm(name)) if isinstance(name, str) else None
    if not isinstance(agent, dict) or not isinstance(algorithm, dict) or defaults is None:
        return tree
    env = env if isinstance(env, dict) else {}
    if str(env.get("name")).startswith("ALE/"):
        defaults = _for_images(defaults)
    starts_from_default = _kind_of(agent.get("net"), "type") is None
    agent["memory"] = _filled(agent.get("memory"), defaults.memory, "name", _SIZES)
    agent["net"] = _filled(agent.get("net"), defaults.net, "type", _LAYERS)
    if defaults.critic_net is not None and starts_from_default:
        critic = agent.get("critic_net")
        agent["critic_net"] = _filled(critic, defaults.critic_net, "type", _LAYERS)
    if defaults.target:
        _fill_target(agent["net"], defaults.target)
    _fill_algorithm(algorithm, agent["memory"], env)
    return tree


def _fill_log_frequency(meta: Any, max_frame: Any) -> None:
    """A hundred rows of the curve, or a row every 10,000 frames."""
    has_budget = isinstance(max_frame, int | float) and max_frame > 0
    if isinstance(meta, dict) and meta.get("log_frequency") is None and has_budget:
        meta["log_frequency"] = max(1, min(10_000, int(max_frame // 100)))


def _for_images(defaults: Defaults) -> Defaults:
    """The same learning settings around convolutions; actor and critic share them."""
    learning = {k: v for k, v in defaults.net.items() if not k.startswith(("type", "hid_layers"))}
    shared = {"shared": True} if "shared" in learning else {}
    critic = None
    if defaults.critic_net is not None:
        critic = _CONVOLUTIONS | {"batch_norm": True, "optim_spec": _FAST_ADAM}
    net = _CONVOLUTIONS | learning | shared
    return Defaults(defaults.memory, net, critic, defaults.target)


def _kind_of(block: Any, kind: str) -> Any:
    return block.get(kind) if isinstance(block, Mapping) else None


def _filled(block: Any, default: Tree, kind: str, needed: frozenset[str]) -> Any:
    """A block with what it lacks: all of the default, or what its own kind cannot do without."""
    if block is not None and not isinstance(block, Mapping):
        return block  # not a mapping: for the error message that follows
    given = {key: value for key, value in (block or {}).items() if value is not None}
    nulls = {key: None for key in (block or {}) if key not in given and key not in default}
    if kind not in given:
        return {**_joined(default, given), **nulls}
    own = {key: default[key] for key in needed if key in default}
    return {**own, **(block or {})} if _is_alike(given[kind], default[kind]) else dict(block or {})


_SIZES = frozenset({"batch_size", "max_size"})
_LAYERS = frozenset({"hid_layers", "hid_layers_activation", "normalize"})


def _is_alike(kind: Any, default: str) -> bool:
    """Whether two memories are both replays, or two nets of one type."""
    replays = ("Replay", "PrioritizedReplay")
    return bool(kind == default) or (kind in replays and default in replays)


def _joined(default: Mapping[str, Any], given: Mapping[str, Any]) -> Tree:
    """The default with what is given; inside mappings too, unless they name another class."""
    joined = copy.deepcopy(dict(default))
    for key, value in given.items():
        old = joined.get(key)
        joined[key] = copy.deepcopy(value)
        if isinstance(old, dict) and isinstance(value, Mapping):
            is_same_class = value.get("name", old.get("name")) == old.get("name")
            joined[key] = _joined(old, value) if is_same_class else joined[key]
    return joined


def _fill_target(net: Any, target: Tree) -> None:
    """How the target net follows: the key that is given tells which of the two ways is meant."""
    if not isinstance(net, dict):
        return
    given = {
        key
        for key in ("update_type", "update_frequency", "polyak_coef")
        if net.get(key) is not None
    }
    if "update_type" not in given:
        if "polyak_coef" in given:
            net["update_type"] = "polyak"
        elif "update_frequency" in given:
            net["update_type"] = "replace"
        else:
            net |= target
    fallback = _AVERAGED if net["update_type"] == "polyak" else _COPIED
    for key, value in fallback.items():
        if net.get(key) is None:
            net[key] = value


def _fill_algorithm(algorithm: Tree, memory: Any, env: Mapping[str, Any]) -> None:
    """What depends on other blocks: the length of schedules and of rollouts."""
    name = canonical_algorithm(algorithm["name"])
    max_frame: Any = env.get("max_frame")
    num_envs: Any = env.get("num_envs") or 1
    has_budget = isinstance(max_frame, int | float) and max_frame > 0
    if name in _EXPLORING and algorithm.get("explore_var_spec") is None and has_budget:
        algorithm["explore_var_spec"] = {
            "name": "linear_decay",
            "start_val": 1.0,
            "end_val": 0.05,
            "start_step": 0,
            "end_step": max(1, int(EXPLORED_SHARE * max_frame)),
        }
    plays_episodes = _kind_of(memory, "name") in ("OnPolicyReplay", "OnPolicyCrossEntropy")
    rolls_out = name in ("PPO", "PPOSIL") and not plays_episodes
    counts_envs = isinstance(num_envs, int) and num_envs > 0
    if rolls_out and algorithm.get("time_horizon") is None and counts_envs:
        # 2,048 steps in all as in Stable-Baselines3, but never fewer than 128 of an env.
        algorithm["time_horizon"] = max(128, ROLLOUT // num_envs // 64 * 64)
    paced = name in ("SARSA", "Reinforce", "ActorCritic", "SIL")
    if paced and plays_episodes and algorithm.get("training_frequency") is None:
        algorithm["training_frequency"] = 1


_EXPLORING = frozenset({"SARSA", "VanillaDQN", "DQNBase", "DQN", "DoubleDQN"})
ROLLOUT = 2048
"""Transitions of a PPO rollout, over all envs, where a spec does not say."""
