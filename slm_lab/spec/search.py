"""`search`: dotted keys that end in a distribution, such as `agent.algorithm.gamma__uniform`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slm_lab.spec.block import Findings, is_number, shown
from slm_lab.spec.error import did_you_mean

# Distribution -> what its list of arguments holds; `choice` takes any number of options.
DISTRIBUTIONS = {
    "choice": "options",
    "uniform": "low, high",
    "quniform": "low, high, step",
    "loguniform": "low, high",
    "qloguniform": "low, high, step",
    "randn": "mean, std",
    "qrandn": "mean, std, step",
    "randint": "low, high",
    "qrandint": "low, high, step",
    "lograndint": "low, high",
    "qlograndint": "low, high, step",
}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """List (dotted key, value) of a tree; a search block may be flat, nested, or both."""
    for key, value in tree.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(value, Mapping) and "__" not in key:
            yield from flatten(value, path)
        else:
            yield path, value


def split_search_key(key: str) -> tuple[str, str]:
    """Split `agent.net.hid_layers__choice` into (`agent.net.hid_layers`, `choice`)."""
    path, _, distribution = key.rpartition("__")
    return path, distribution


def check_search(
    search: Mapping[str, Any], tree: Mapping[str, Any], findings: Findings
) -> dict[str, Any]:
    """Report keys without a distribution and arguments it cannot take. Returns the sound keys whose
    paths the spec does not have, each with the first of its values."""
    absent = {}
    for key, arguments in search.items():
        path, distribution = split_search_key(key)
        if distribution == "grid_search":
            findings.problem(f"search.{key}", "grid_search is not supported. Use `choice`.")
        elif not path or distribution not in DISTRIBUTIONS:
            findings.problem(f"search.{key}", _not_a_distribution(key, path, distribution))
        elif complaint := _bad_arguments(distribution, arguments):
            form = f"{distribution} takes [{DISTRIBUTIONS[distribution]}]."
            findings.problem(f"search.{key}", f"found {shown(arguments)}; {complaint}. {form}")
        elif not _holds(tree, path):
            absent[key] = arguments[0]
    return absent


def _not_a_distribution(key: str, path: str, distribution: str) -> str:
    for known in DISTRIBUTIONS:
        if not path and key.endswith(f"_{known}"):
            right = f"{key.removesuffix(f'_{known}')}__{known}"
            return f"a distribution follows two underscores. Did you mean `{right}`?"
    if path:
        return f"unknown distribution. {did_you_mean(distribution, DISTRIBUTIONS)}"
    return f"expected KEY__DISTRIBUTION, with one of {', '.join(DISTRIBUTIONS)}."


def _bad_arguments(distribution: str, arguments: Any) -> str:
    if not isinstance(arguments, list | tuple):
        return "expected a list"
    if distribution == "choice":
        return "" if arguments else "expected at least one option"
    if not all(map(is_number, arguments)):
        return "expected numbers"
    if len(arguments) != len(DISTRIBUTIONS[distribution].split(", ")):
        return "wrong number of arguments"
    first, second = arguments[:2]
    if distribution.endswith("randn"):
        return "" if second > 0 else "std must be above 0"
    if first >= second:
        return "low must be below high"
    if "log" in distribution and first <= 0:
        return "low must be above 0 on a log scale"
    return "" if len(arguments) == 2 or arguments[2] > 0 else "step must be above 0"


def _holds(tree: Any, path: str) -> bool:
    for part in path.split("."):
        if isinstance(tree, list) and part.isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        elif isinstance(tree, Mapping) and part in tree:
            tree = tree[part]
        else:
            return False
    return True
