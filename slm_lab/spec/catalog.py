"""Catalog of the specs that ship with the package: algorithm, env, budget and target of each."""

from __future__ import annotations

import fnmatch
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slm_lab.spec.load import packaged_spec_dir, packaged_trees
from slm_lab.spec.text import PLACEHOLDER


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One shipped spec. What a flag must fill is None: the env, the budget, and so the target."""

    name: str
    file: Path
    algorithm: str
    env: str | None
    max_frame: int | None
    target: float | None

    def matches(self, pattern: str) -> bool:
        """Whether a pattern, part of a word or with `*` and `?`, fits any text of the entry."""
        folded = pattern.lower() if any(c in pattern for c in "*?[") else f"*{pattern.lower()}*"
        texts = (self.name, self.file.as_posix(), self.algorithm, self.env or "")
        return any(fnmatch.fnmatchcase(text.lower(), folded) for text in texts)


def catalog(pattern: str = "") -> Iterator[CatalogEntry]:
    """List the shipped specs that fit a pattern, by file."""
    for file, name, tree in packaged_trees():
        env, algorithm = tree["env"], str(tree["agent"]["algorithm"]["name"])
        env_id = None if PLACEHOLDER.search(env["name"]) else str(env["name"])
        budget = int(env["max_frame"]) if isinstance(env["max_frame"], int | float) else None
        target = None if env_id is None else target_score(env_id, env)
        entry = CatalogEntry(name, file, algorithm, env_id, budget, target)
        if entry.matches(pattern):
            yield entry


@functools.cache
def target_scores() -> Mapping[str, float]:
    """Map env ids to the `total_reward_ma` that a benchmark run should reach."""
    targets: dict[str, float] = json.loads((packaged_spec_dir() / "_targets.json").read_text())
    return targets


def target_score(env_id: str, env: Mapping[str, Any] | None = None) -> float | None:
    """The target of an env, by its id and, where they change its actions, its arguments."""
    return target_scores().get(listed_env(env_id, env or {}))


def listed_env(env_id: str, env: Mapping[str, Any]) -> str:
    """The name that tables list an env under: its id, and `continuous` where that is another."""
    if env_id == "LunarLander-v3" and env.get("continuous"):
        return "LunarLanderContinuous-v3"
    return env_id
