"""Parse JSON and YAML spec files into plain trees, with limits against hostile input.

Whatever the bytes, the answer is a tree of JSON types or a `TextError` with one sentence; size,
depth and the expansion of YAML aliases are bounded, so that reading takes moments.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

MAX_BYTES = 1_000_000
MAX_NODES = 100_000
MAX_KEYS = 1_000
MAX_DEPTH = 64

PLACEHOLDER = re.compile(r"\$\{(\w+)\}")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_LONGEST_NUMBER = 40
# The closing quote is optional, so that one pass suffices for text that never closes one.
_JSON_STRING_OR_PLACEHOLDER = re.compile(r'"(?:\\.|[^"\\])*+"?|\$\{\w+\}')

# Text under these keys stays text, even where it looks like a number.
_TEXT_KEYS = re.compile(
    r"(.*_)?(name|type|pdtype|policy|activation|sha|ts|path|prepath|file)|init_fn|device|predir"
)


class TextError(Exception):
    """Error about text that is no spec file; the message says why."""


# The C parser is some twenty times faster, where PyYAML was built with it.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[misc]  # a subclass of Any
    """Loader of safe YAML without dates, which no spec holds and JSON does not know."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag != "tag:yaml.org,2002:timestamp"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def decode(data: bytes) -> str:
    """Decode the bytes of a spec file."""
    if len(data) > MAX_BYTES:
        raise TextError(f"larger than {MAX_BYTES:,} bytes; a spec file is a few thousand")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(f"not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def parse(text: str, *, is_json: bool) -> Any:
    """Parse a text into mappings with string keys, lists, strings, numbers, true, false, null."""
    try:
        tree = _parse_json(text) if is_json else _parse_yaml(text)
    except TextError:
        raise
    except RecursionError:
        raise TextError(f"nested deeper than {MAX_DEPTH} levels") from None
    except yaml.YAMLError as error:
        raise TextError(f"not valid YAML: {_one_line(error)}") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise TextError(f"not valid JSON: {error.msg} at {where}") from None
    except (ValueError, TypeError, OverflowError, AttributeError) as error:
        # PyYAML's constructors let these out, for instance for a tag that its text does not fit.
        raise TextError(f"holds a value that cannot be read: {_one_line(error)}") from None
    check_json(tree)
    return tree


def number(text: str) -> int | float | None:
    """Convert a text that spells a number in JSON's or YAML's way; None for other text."""
    if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
        return None
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    value = float(text)
    return value if math.isfinite(value) else None


def coerce_numbers(tree: Any, key: str = "") -> Any:
    """Replace text that spells a number by the number: YAML reads `1e-3` as text."""
    if isinstance(tree, dict):
        return {k: coerce_numbers(value, k) for k, value in tree.items()}
    if isinstance(tree, list):
        return [coerce_numbers(value, key) for value in tree]
    if isinstance(tree, str) and not _TEXT_KEYS.fullmatch(key):
        value = number(tree.strip())
        return tree if value is None else value
    return tree


def _parse_json(text: str) -> Any:
    # An unfilled placeholder may stand bare where a number goes; quoted, the rest still reads.
    text = _JSON_STRING_OR_PLACEHOLDER.sub(
        lambda match: f'"{match[0]}"' if match[0].startswith("$") else match[0], text
    )
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise TextError(f"the key `{twice}` occurs twice in one mapping")
    return mapping


def _refuse_constant(name: str) -> Any:
    raise TextError(f"holds {name}, which is not a number a spec can use")


def _parse_yaml(text: str) -> Any:
    _check_events(text)
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _expanded_size(node, {}, set())
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _check_events(text: str) -> None:
    """Bound the depth; events come without recursion, before anything recursive runs."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_Loader)):
        if count > MAX_NODES:
            raise TextError(f"holds more than {MAX_NODES:,} values")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise TextError(f"nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _expanded_size(node: yaml.Node, sizes: dict[int, int], open_nodes: set[int]) -> int:
    """Count the nodes of a YAML node once its aliases are written out."""
    if id(node) in sizes:
        return sizes[id(node)]
    if id(node) in open_nodes:
        raise TextError("an alias contains itself")
    open_nodes.add(id(node))
    size = 1
    if isinstance(node, yaml.MappingNode):
        _refuse_twins(node)
        for pair in node.value:
            size += sum(_expanded_size(child, sizes, open_nodes) for child in pair)
    elif isinstance(node, yaml.SequenceNode):
        size += sum(_expanded_size(child, sizes, open_nodes) for child in node.value)
    if size > MAX_NODES:
        raise TextError(f"expands to more than {MAX_NODES:,} values")
    open_nodes.discard(id(node))
    sizes[id(node)] = size
    return size


def _refuse_twins(node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise TextError("a key is not text; keys are words")
        if key.value in seen and key.value != "<<":
            raise TextError(f"the key `{key.value}` occurs twice in one mapping")
        seen.add(key.value)


def check_json(
    tree: Any, path: str = "", depth: int = 0, count: Iterator[int] | None = None
) -> None:
    """Raise TextError unless a tree holds finite JSON values only, and not too many."""
    count = count or itertools.count(1)
    if depth > MAX_DEPTH:
        raise TextError(f"nested deeper than {MAX_DEPTH} levels")
    if next(count) > MAX_NODES:
        raise TextError(f"holds more than {MAX_NODES:,} values")
    if isinstance(tree, dict):
        at = path or "the top"
        if len(tree) > MAX_KEYS:
            raise TextError(f"`{at}` has more than {MAX_KEYS:,} keys")
        for key, value in tree.items():
            if not isinstance(key, str):
                raise TextError(f"the key {key!r} under `{at}` is not text; quote it")
            check_json(value, f"{path}.{key}" if path else key, depth + 1, count)
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            check_json(value, f"{path}.{index}", depth + 1, count)
    elif isinstance(tree, float) and not math.isfinite(tree):
        raise TextError(f"`{path}` is {tree}, which is not a number a spec can use")
    elif not isinstance(tree, str | int | float | bool | None):
        raise TextError(f"`{path}` is a {type(tree).__name__}; a spec holds JSON values only")


def unfilled(tree: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """List (path, placeholder) of every `${...}` left in a tree, its keys included."""
    if isinstance(tree, str):
        yield from ((path, name) for name in PLACEHOLDER.findall(tree))
    elif isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            at = f"{path}.{key}" if path else str(key)
            yield from unfilled(key, at)
            yield from unfilled(value, at)


def fill(text: str, key: str, value: str) -> str:
    """Replace `${key}` in raw text; a number also replaces the double quotes around it.

    TextError if the text would outgrow a file: values may hold placeholders, and so double.
    """
    as_number = number(value.strip())
    if isinstance(as_number, float) and as_number.is_integer():
        as_number = int(as_number)
    spelled = value if as_number is None else repr(as_number)
    placeholder = f"${{{key}}}"
    if len(text) + text.count(placeholder) * len(spelled) > MAX_BYTES:
        raise TextError(f"{placeholder} expands the file to more than {MAX_BYTES:,} characters")
    if as_number is not None:
        text = text.replace(f'"{placeholder}"', spelled)
    return text.replace(placeholder, spelled)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
