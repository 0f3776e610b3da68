"""A spec from keywords, as `train("PPO", env="CartPole-v1", frames=50_000, gamma=0.98)` gives them.

No two blocks of a spec share a key but `name`, so a key finds its block by itself.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slm_lab.spec.algorithm import ALGORITHMS, algorithm_label
from slm_lab.spec.algorithm.base import SCHEDULE, AlgorithmInfo
from slm_lab.spec.block import shown
from slm_lab.spec.env import EnvSpec
from slm_lab.spec.error import Problem, SpecError, SpecWarning, did_you_mean
from slm_lab.spec.main_module import place_of
from slm_lab.spec.memory import MEMORIES
from slm_lab.spec.net import NETS
from slm_lab.spec.own_class import find_record_or_none
from slm_lab.spec.schema import MetaSpec, Spec, build_spec
from slm_lab.spec.text import coerce_numbers
from slm_lab.spec.tree import write_value

SHORT = {
    "frames": "env.max_frame",
    "sessions": "meta.max_session",
    "seed": "meta.random_seed",
    "lr": "agent.net.optim_spec.lr",
}
"""Keywords of their own, and the keys that they stand for."""
BLOCKS = {"algorithm": "agent.", "memory": "agent.", "net": "agent.", "critic_net": "agent."}
BLOCKS |= {"env": "", "meta": "", "search": ""}
_CHOSEN_BY = {"net": "type", "critic_net": "type"}  # others by `name`
_NET_KEYS = NETS.keys_of_specs()
_HOMES = {
    "agent.algorithm": ALGORITHMS.keys_of_specs(),
    "agent.memory": MEMORIES.keys_of_specs(),
    "agent.net": _NET_KEYS,
    "env": frozenset(EnvSpec.model_fields),
    "meta": frozenset(MetaSpec.model_fields),
}


def spec_from_keywords(base: object, keys: Mapping[str, Any], name: str = "") -> Spec:
    """Build a spec from an algorithm's name or class, or from a spec, and changes of single keys.

    A block may be given as a mapping, or by its name or class alone. Every problem is a SpecError.
    """
    tree, label = _tree_of(base), "train"
    blocks = {key: value for key, value in keys.items() if key in BLOCKS and value is not None}
    for key, value in blocks.items():
        _merge(tree, key, value)
    single = {key: value for key, value in keys.items() if key not in BLOCKS and value is not None}
    algorithm = tree.get("agent", {}).get("algorithm")
    info = find_record_or_none(ALGORITHMS, algorithm and algorithm.get("name"), None)
    problems: list[Problem | None] = []
    for key, value in single.items():
        places = [*_places(key, info)]
        if not places:
            known = [*SHORT, *BLOCKS, *(k for keys in _HOMES.values() for k in keys)]
            problems.append(Problem(key, f"unknown key. {did_you_mean(key, known)}"))
        problems += [write_value(tree, place, _plain(value, place)) for place in places]
    if found := [problem for problem in problems if problem is not None]:
        raise SpecError(found, label)
    origin = base.origin if isinstance(base, Spec) else None
    name = name or _run_name(base, tree, info)
    spec, notes = build_spec(coerce_numbers(tree), name, label, origin)
    for note in notes:
        warnings.warn(note, SpecWarning, stacklevel=3)  # the line that calls `train`
    return spec


def _tree_of(base: object) -> dict[str, Any]:
    if isinstance(base, Spec):
        return base.given()
    if isinstance(base, Mapping) and ("agent" in base or "env" in base):
        return copy.deepcopy(dict(base))
    if isinstance(base, Mapping):
        return {"agent": {"algorithm": dict(base)}}
    if isinstance(base, type):
        base = place_of(base, "algorithm")
    if not isinstance(base, str):
        expected = "expected the name of an algorithm, its class, a Spec or a mapping"
        raise SpecError([Problem("algorithm", f"found {shown(base)}; {expected}")], "train")
    if ":" not in base and base not in ALGORITHMS and Path(base).suffix in (".json", ".yaml"):
        fix = "For a spec file: train(load_spec(FILE, NAME))"
        raise SpecError([Problem("algorithm", f"found {shown(base)}. {fix}")], "train")
    return {"agent": {"algorithm": {"name": base}}}


def _merge(tree: dict[str, Any], key: str, value: Any) -> None:
    """Write a block, or what names it, into the tree; keys that it leaves out stay."""
    path = f"{BLOCKS[key]}{key}"
    if not isinstance(value, Mapping):
        value = {_CHOSEN_BY.get(key, "name"): value}
    for part, item in value.items():
        if problem := write_value(tree, f"{path}.{part}", _plain(item, f"{path}.{part}")):
            raise SpecError([problem], "train")


def _places(key: str, info: AlgorithmInfo | None) -> Iterator[str]:
    """The dotted paths that a keyword writes to; none for an unknown key."""
    if "." in key:
        yield key
        return
    own_critic = info is not None and info.defaults.critic_net is not None
    if key in SHORT:
        yield SHORT[key]
        if key == "lr" and own_critic:
            yield "agent.critic_net.optim_spec.lr"
        return
    own = info.spec_class.model_fields if info is not None else {}
    if key in own or f"{key}{SCHEDULE}" in {*own, *_HOMES["agent.algorithm"]}:
        yield f"agent.algorithm.{key}"
        return
    homes = [home for home, keys in _HOMES.items() if key in keys and key != "name"]
    who, _, rest = key.partition("_")
    if not homes and who in ("actor", "critic") and rest in _NET_KEYS:
        by_block = info is not None and info.critic == "block" and who == "critic"
        yield f"agent.critic_net.{rest}" if by_block else f"agent.net.{key}"
        return
    yield from (f"{home}.{key}" for home in homes)


def _plain(value: Any, key: str) -> Any:
    """A value as JSON has it: classes and functions by their place, arrays as lists."""
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return place_of(value, key)
    if isinstance(value, Mapping):
        return {str(k): _plain(item, f"{key}.{k}") for k, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, key) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _run_name(base: object, tree: Mapping[str, Any], info: AlgorithmInfo | None) -> str:
    """`ppo_cartpole` of PPO on CartPole-v1, unless the spec has a name."""
    if isinstance(base, Spec):
        return base.name
    if tree.get("name"):
        return str(tree["name"])
    agent, env = tree.get("agent", {}), tree.get("env", {})
    memory = agent.get("memory")
    words = algorithm_label(info.name if info else "spec", (memory or {}).get("name", ""))
    short = re.split(r"[/:]", str(env.get("name", "")))[-1].partition("-v")[0]
    return re.sub(r"[^a-z0-9.+-]+", "_", f"{words}_{short}".lower()).strip("_.+-") or "spec"
