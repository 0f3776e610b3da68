"""Accidents that happen to a tree of JSON: a value changed, a key lost, misspelt or added."""

from __future__ import annotations

import copy
import functools
import json
from random import Random
from typing import Any

from slm_lab.spec.load import packaged_trees

ABSURD_VALUES: tuple[Any, ...] = (
    10**30,
    -(10**30),
    1e308,
    -1e308,
    5e-324,
    0,
    -1,
    0.5,
    2**63,
    True,
    None,
    "",
    "inf",
    "nan",
    "${x}",
    "x",
    "../../x",
    "\x1b[31mred",
    "x" * 10_000,
    float("nan"),
    float("inf"),
    [],
    {},
    [1, 2, 3],
    {"a": 1},
    [[[[]]]],
)


@functools.cache
def one_spec_per_algorithm() -> dict[str, dict[str, Any]]:
    """Of the shipped specs that need no placeholder, the first for each algorithm."""
    found: dict[str, dict[str, Any]] = {}
    for _, _, tree in packaged_trees():
        if "${" not in json.dumps(tree):
            found.setdefault(tree["agent"]["algorithm"]["name"], tree)
    return found


def every_path(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something could be changed: each key and index, at any depth."""
    items: Any = []
    if isinstance(tree, dict):
        items = tree.items()
    elif isinstance(tree, list):
        items = enumerate(tree)
    paths = [(*path, key) for key, _ in items]
    return paths + [deeper for key, value in items for deeper in every_path(value, (*path, key))]


def mutate_tree(tree: Any, random: Random) -> Any:
    """A copy of a tree after one accident."""
    tree = copy.deepcopy(tree)
    paths = every_path(tree)
    if not paths:
        return random.choice(ABSURD_VALUES)
    *parents, last = random.choice(paths)
    block: Any = functools.reduce(lambda node, key: node[key], parents, tree)
    accident = random.choice(("change", "change", "scale", "remove", "misspell", "add", "double"))
    if accident == "change":
        block[last] = copy.deepcopy(random.choice(ABSURD_VALUES))
    elif accident == "scale" and isinstance(block[last], int | float):
        block[last] = block[last] * random.choice((-1, 2, 0.5, 10, 1000, 1e-6))
    elif accident == "remove":
        del block[last]
    elif accident == "double":
        block[last] = [block[last], copy.deepcopy(block[last])]
    elif isinstance(block, list):
        block.insert(last, copy.deepcopy(block[last]))
    elif accident == "misspell":
        block[last[:-1] + random.choice(("", "x", "_"))] = block.pop(last)
    else:
        block[random.choice(("x", "", "name", "a.b", "_"))] = random.choice(ABSURD_VALUES)
    return tree
