"""Whatever is in a file, it becomes specs or a SpecError: no other error, and no hanging."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from slm_lab.spec import (
    Spec,
    SpecError,
    check_file,
    load_spec,
    spec_from_dict,
    spec_names,
    upgrade_file,
)
from tests.mutated_trees import every_path, one_spec_per_algorithm

READERS: list[Callable[[Path], Any]] = [check_file, spec_names, upgrade_file, load_spec]

FUZZ = settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


ABSURD = st.sampled_from(
    [10**30, -(10**30), 1e308, -1e308, 5e-324, 0, -1, 0.5, 2**63, True, "", "inf", "nan", "${x}"]
)
ANY_VALUE = ABSURD | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@st.composite
def broken_specs(draw: st.DrawFn) -> dict[str, Any]:
    """A shipped spec after up to three accidents."""
    specs = one_spec_per_algorithm()
    tree = copy.deepcopy(specs[draw(st.sampled_from(sorted(specs)))])
    for _ in range(draw(st.integers(1, 3))):
        paths = every_path(tree)
        if not paths:
            break
        *parents, last = draw(st.sampled_from(paths))
        block: Any = functools.reduce(lambda node, key: node[key], parents, tree)
        accident = draw(st.sampled_from(["change", "remove", "misspell", "add"]))
        if accident == "change" or isinstance(block, list):
            block[last] = draw(ANY_VALUE)
        elif accident == "remove":
            del block[last]
        elif accident == "misspell":
            block[last[:-1] + draw(st.text("abcxyz_", max_size=2))] = block.pop(last)
        else:
            block[draw(st.text(max_size=12))] = draw(ANY_VALUE)
    return tree


@contextlib.contextmanager
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def built_or_refused(build: Callable[[], Any]) -> Any:
    outcome: Any
    with quiet():
        try:
            return build()
        except SpecError as error:
            outcome = error
    assert outcome.problems
    assert str(outcome)
    return outcome


@FUZZ
@given(broken_specs())
def test_a_damaged_spec_builds_or_is_refused(tree):
    outcome = built_or_refused(lambda: spec_from_dict(tree, "damaged"))
    assert isinstance(outcome, Spec | SpecError)


@FUZZ
@given(broken_specs(), st.booleans())
def test_so_does_a_file_of_it_however_it_is_read(tmp_path: Path, tree, as_yaml: bool):
    # JSON is YAML, numbers like 1e+30 apart.
    file = tmp_path / ("a.yaml" if as_yaml else "a.json")
    file.write_text(json.dumps({"damaged": tree}))
    for read in READERS:
        built_or_refused(functools.partial(read, file))


@FUZZ
@given(st.binary(max_size=300), st.sampled_from([".json", ".yaml", ".yml"]))
def test_any_bytes_are_specs_or_refused(tmp_path: Path, data, suffix):
    file = tmp_path / f"a{suffix}"
    file.write_bytes(data)
    for read in READERS:
        built_or_refused(functools.partial(read, file))


@FUZZ
@given(st.text(max_size=60))
def test_any_flag_is_used_or_refused(ppo, write, flag):
    file = write("a.json", {"a": ppo})
    built_or_refused(lambda: load_spec(file, "a", [flag]))


@FUZZ
@given(st.text(max_size=300), st.text(max_size=20))
def test_any_name_of_a_file_or_spec_is_found_or_refused(file, name):
    built_or_refused(lambda: load_spec(file, name))


def nested(depth: int, opening: str, closing: str) -> str:
    return opening * depth + closing * depth


BOMBS = {
    "aliases that double thirty times": (
        "a.yaml",
        "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 31)),
    ),
    "merges that double": (
        "a.yaml",
        "a0: &a0 {k0: 1}\n"
        + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}], k{i}: 1}}\n" for i in range(1, 31)),
    ),
    "an alias of itself": ("a.yaml", "a: &a [*a]\n"),
    "a merge with itself": ("a.yaml", "a: &a {<<: *a}\n"),
    "lists a hundred thousand deep in JSON": ("a.json", nested(100_000, "[", "]")),
    "mappings twenty thousand deep in JSON": ("a.json", nested(20_000, '{"a":', "}")),
    "lists twenty thousand deep in YAML": ("a.yaml", nested(20_000, "[", "]")),
    "indentation a thousand deep": ("a.yaml", "".join(" " * i + "a:\n" for i in range(1000))),
    "two million bytes": ("a.json", '{"a": "' + "x" * 2_000_000 + '"}'),
    "a hundred thousand keys": ("a.json", json.dumps({f"k{i}": 1 for i in range(100_000)})),
    "a list of two hundred thousand numbers": ("a.yaml", "a: [" + "1, " * 200_000 + "1]"),
    "a number of a million digits": ("a.json", '{"a": ' + "9" * 900_000 + "}"),
    "an unclosed string": ("a.json", '{"a": "' + "\\" * 900_000),
    "a Python object": ("a.yaml", "a: !!python/object/apply:os.system ['true']\n"),
    "a billion laughs in keys": ("a.yaml", "? &a [x]\n: *a\n? *a\n: *a\n"),
    "bytes that are not UTF-8": ("a.yaml", b"a: \xff\xfe\n"),
    "null bytes": ("a.json", b'{"a": \x00}'),
    "nothing": ("a.json", ""),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_is_refused_at_once(write, kind):
    file = write(*BOMBS[kind])
    for read in (load_spec, check_file):
        with pytest.raises(SpecError):
            read(file)
