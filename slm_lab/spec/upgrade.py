"""Convert specs of SLM Lab v4: one agent, one env, no `body`, ids that still exist.

Nothing here decides whether the result is a good spec; building it does. A change that alters
what is trained (another env id, a key without a counterpart) is told, one line each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from slm_lab.spec.algorithm import ALGORITHMS
from slm_lab.spec.env import current_env_id
from slm_lab.spec.memory import MEMORIES

_Tree = dict[str, Any]

# Ids that Gymnasium no longer has -> what took their place.
_ENV_IDS = {
    "CartPole-v0": "CartPole-v1",
    "Pendulum-v0": "Pendulum-v1",
    "LunarLander-v2": "LunarLander-v3",
    "LunarLanderContinuous-v2": "LunarLanderContinuous-v3",
    "BipedalWalker-v2": "BipedalWalker-v3",
    "BipedalWalkerHardcore-v2": "BipedalWalkerHardcore-v3",
}
_MUJOCO = (
    "Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|InvertedDoublePendulum|InvertedPendulum|"
    "Pusher|Reacher|Swimmer|Walker2d"
)
_MUJOCO_ID = re.compile(rf"(?:Roboschool)?({_MUJOCO})(?:BulletEnv)?-v[0-4]")

# Words in names of memories that differed only in how they stored images or stacked frames.
_STORAGE = re.compile("Atari|Concat|Image|Seq|Stack|SIL")
_RENAMED = {
    "agent.algorithm": {
        "training_batch_epoch": "training_batch_iter",
        "training_min_timestep": "training_start_step",
    },
    "env": {"max_tick": "max_frame", "normalize_state": "normalize_obs", "max_timestep": "max_t"},
}
_GONE_FROM_META = """
search resources training_mode debug_level max_tick_unit param_spec_process eval_model_prepath
"""
_GONE = {
    "agent.memory": ("concat_len", "stack_len", "atari"),
    "env": ("image_downsize", "image_grayscale", "num"),
    "meta": _GONE_FROM_META.split(),
}
# What the fixed Atari preprocessing does anyway.
_ATARI_DOES = ("frame_op", "frame_op_len", "reward_scale", "frame_stack")


def is_v4(tree: Any) -> bool:
    """Whether a spec has the shape of v4: lists of agents and envs, and a body that joins them."""
    return isinstance(tree, Mapping) and (
        "body" in tree or isinstance(tree.get("agent"), list) or isinstance(tree.get("env"), list)
    )


def upgrade_spec(tree: Mapping[str, Any]) -> tuple[_Tree, list[str]]:
    """Convert a v4 spec, and list the changes that its author should know about."""
    notes: list[str] = []
    spec = dict(tree)
    for gone in ("body", "spec_params"):
        spec.pop(gone, None)
    for block in ("agent", "env"):
        spec[block] = _only(spec.get(block), block, notes)
    upgrades = {
        "agent": _upgrade_agent,
        "env": _upgrade_env,
        "meta": _upgrade_meta,
        "search": _upgrade_search,
    }
    for block, upgrade in upgrades.items():
        if isinstance(spec.get(block), dict):
            spec[block] = upgrade(spec[block], notes)
    return spec, notes


def _only(value: Any, block: str, notes: list[str]) -> Any:
    """Copy the first of a list of agents or envs; one spec is one agent now."""
    if isinstance(value, list):
        if len(value) > 1:
            notes.append(f"{block}: only the first of {len(value)} is kept; one spec is one agent")
        value = value[0] if value else None
    return dict(value) if isinstance(value, Mapping) else value


def _upgrade_agent(agent: _Tree, notes: list[str]) -> _Tree:
    for block in ("algorithm", "memory", "net"):
        if isinstance(agent.get(block), Mapping):
            agent[block] = _renamed(dict(agent[block]), f"agent.{block}", notes)
    algorithm, memory = agent.get("algorithm"), agent.get("memory")
    info = ALGORITHMS.find(algorithm.get("name")) if isinstance(algorithm, dict) else None
    # v4's `training_epoch` counts batches; PPO's has always been passes over a rollout.
    if info is not None and "training_epoch" not in info.spec_class.model_fields:
        _rename(agent["algorithm"], "training_epoch", "training_iter", "agent.algorithm", notes)
    if isinstance(memory, dict) and isinstance(found := memory.get("name"), str):
        new = _STORAGE.sub("", found)
        if found not in MEMORIES and new in MEMORIES:
            memory["name"] = new
            notes.append(f"agent.memory.name: {found} is now {new}")
    return agent


def _upgrade_env(env: _Tree, notes: list[str]) -> _Tree:
    """Rename keys and ids, and remove keys of Atari's fixed preprocessing."""
    env = _renamed(env, "env", notes)
    name = env.get("name")
    if not isinstance(name, str):
        return env
    env["name"] = _upgrade_env_id(name, notes)
    if env["name"].startswith("ALE/"):
        given = [key for key in _ATARI_DOES if env.pop(key, None) is not None]
        if given:
            notes.append(f"env: {', '.join(given)} removed; Atari preprocessing is always the same")
    elif env.get("reward_scale") == "sign":
        del env["reward_scale"]
        env["clip_reward"] = 1
        notes.append("env.reward_scale: `sign` is now clip_reward: 1 (for `${env}` of Atari too)")
    return env


def _upgrade_env_id(name: str, notes: list[str]) -> str:
    new = _ENV_IDS.get(name) or current_env_id(name)
    if mujoco := _MUJOCO_ID.fullmatch(name):
        new = f"{mujoco[1]}-v5"
    if new != name:
        notes.append(f"env.name: {name} no longer exists, {new} took its place; scores differ")
    return new


def _upgrade_meta(meta: _Tree, notes: list[str]) -> _Tree:
    meta = dict(meta)
    resources = meta.get("resources")
    if isinstance(resources, Mapping) and "search_resources" not in meta:
        cpu, gpu = resources.get("num_cpus", 1), resources.get("num_gpus", 0)
        meta["search_resources"] = {"cpu": cpu, "gpu": gpu}
    return _renamed(meta, "meta", notes)


def _upgrade_search(search: _Tree, notes: list[str]) -> _Tree:
    """Replace lists by their first entry, and a grid by a choice among the same values."""
    result: _Tree = {}
    for key, value in search.items():
        if key.endswith("__grid_search"):
            notes.append(f"search.{key}: a grid is now a choice")
            result[f"{key.removesuffix('__grid_search')}__choice"] = value
        elif "__" in key:
            result[key] = value
        elif isinstance(block := _only(value, f"search.{key}", notes), dict):
            result[key] = _upgrade_search(block, notes)
    return result


def _renamed(block: _Tree, path: str, notes: list[str]) -> _Tree:
    for old, new in _RENAMED.get(path, {}).items():
        _rename(block, old, new, path, notes)
    given = [key for key in _GONE.get(path, ()) if block.pop(key, None) is not None]
    if given:
        notes.append(f"{path}: {', '.join(given)} removed; nothing reads it now")
    return block


def _rename(block: _Tree, old: str, new: str, path: str, notes: list[str]) -> None:
    if old in block and new not in block:
        block[new] = block.pop(old)
        notes.append(f"{path}.{old}: now called {new}")
