"""Values in plain trees of JSON data: written at dotted paths, and made plain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slm_lab.spec.block import shown
from slm_lab.spec.error import Problem


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
        node[last] = plain(value)
    elif _indexes(node, last):
        node[int(last)] = plain(value)
    elif isinstance(node, list):
        return Problem(path, f"`{last}` is no index of a list of {len(node)}")
    else:
        return Problem(path, f"`{last}` leads nowhere: {shown(node)} has no parts")
    return None


def _indexes(node: Any, part: str) -> bool:
    return isinstance(node, list) and part.isdecimal() and int(part) < len(node)


def plain(value: Any) -> Any:
    """Convert tuples to lists and mappings to dicts, as JSON would."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
