"""Whatever the bytes, a file gives a spec or a SpecError: never a traceback, never a hang."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from slm_lab.spec import SpecError, load_spec
from slm_lab.spec.text import MAX_BYTES, MAX_DEPTH, TextError, fill, number, parse

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGE_BOMB = "a: &a {k: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.json", b"\xff\xfe\x00", "not UTF-8"),
        ("a.json", b" " * (MAX_BYTES + 1), "larger than"),
        ("a.json", "[1, 2]", "expected a mapping"),
        ("a.json", "", "not valid JSON"),
        ("a.json", '{"a": 1', "line 1 column"),
        ("a.json", '{"a": {}, "a": {}}', "`a` occurs twice"),
        ("a.json", '{"a": {"x": NaN}}', "NaN"),
        ("a.json", '{"a": {"x": -Infinity}}', "Infinity"),
        ("a.json", '{"a": {"x": 1e999}}', "`a.x` is inf"),
        ("a.json", '{"a": ' + "9" * 5000 + "}", "cannot be read"),
        ("a.json", '{"a": ' + "[" * 100_000, "nested deeper"),
        ("a.json", '{"a": ' + "[" * 90 + "]" * 90 + "}", "nested deeper"),
        ("a.json", '{"a": 3}', "expected a spec"),
        ("a.json", "{}", "holds no spec"),
        ("a.yaml", "", "the file is empty"),
        ("a.yaml", "just words", "expected a mapping"),
        ("a.yaml", "a: {x: .inf}", "`a.x` is inf"),
        ("a.yaml", "a: {1: 2}", "not text"),
        ("a.yaml", "a: {[1]: 2}", "not text"),
        ("a.yaml", "a: {x: 1, x: 2}", "`x` occurs twice"),
        ("a.yaml", "a: !!python/object/apply:os.system [ls]", "not valid YAML"),
        ("a.yaml", "a: {x: !!binary aGk=}", "JSON values only"),
        ("a.yaml", "a: {x: !!set {b}}", "JSON values only"),
        ("a.yaml", "a: {x: !!int zzz}", "cannot be read"),
        ("a.yaml", "a: &a [*a]", "contains itself"),
        ("a.yaml", "a: [" * 200, "nested deeper"),
        ("a.yaml", "a: *missing", "not valid YAML"),
        ("a.yaml", "a: b: c", "not valid YAML"),
        ("a.yaml", "--- a\n--- b\n", "not valid YAML"),
        ("a.yaml", "a: \x00", "not valid YAML"),
        ("a.yaml", BOMB, "expands to more than"),
        ("a.yaml", MERGE_BOMB, "expands to more than"),
        ("a.txt", "{}", "ends in .json"),
    ],
)
def test_hostile_files_are_refused_with_a_reason(write, name, content, reason):
    with pytest.raises(SpecError) as caught:
        load_spec(write(name, content), "a")
    assert reason in str(caught.value)


@pytest.mark.parametrize("file", ["no\0file.json", "x" * 5000 + ".json", ".", "", "/dev/null"])
def test_names_that_are_no_file_are_refused(file):
    with pytest.raises(SpecError):
        load_spec(file, "a")


@settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.binary(max_size=200), st.sampled_from(["a.json", "a.yaml"]))
def test_random_bytes_never_escape_as_another_error(tmp_path: Path, data: bytes, name: str):
    file = tmp_path / name
    file.write_bytes(data)
    with contextlib.suppress(SpecError):
        load_spec(file, "a")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "algorithm", "memory", "net", "type", "lr", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)
_keys = [
    "agent.algorithm",
    "agent.algorithm.clip_eps_spec",
    "agent.algorithm.gamma",
    "agent.memory",
    "agent.net",
    "agent.net.hid_layers",
    "agent.net.optim_spec",
    "agent.net.optim_spec.betas",
    "agent.net.lr_scheduler_spec",
    "agent.net.loss_spec",
    "agent.net.out_layer_activation",
    "agent.net.init_fn",
    "agent.net.conv_hid_layers",
    "agent.name",
    "agent",
    "env",
    "env.name",
    "env.clip_reward",
    "env.kwargs",
    "meta",
    "meta.compile",
    "meta.distributed",
    "search",
    "search.agent.algorithm.gamma__uniform",
]


@settings(
    max_examples=120,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.sampled_from(_keys), _json)
def test_any_value_at_any_key_builds_or_is_a_spec_error(ppo, key, value):
    from slm_lab.spec import spec_from_dict

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = spec_from_dict(ppo)
        with contextlib.suppress(SpecError):
            spec.with_values({key: value})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e6", 1e6),
        ("-3", -3),
        (".5", 0.5),
        ("1.0e+6", 1e6),
        ("1e999", None),
        ("nan", None),
        ("0x10", None),
        ("1e", None),
        ("12:30", None),
        ("9" * 50, None),
    ],
)
def test_numbers_are_recognised_by_their_spelling(text, value):
    assert number(text) == value


@pytest.mark.parametrize(
    ("value", "filled"),
    [
        ("10e6", '{"a": 10000000, "b": 10000000}'),
        ("0.5", '{"a": 0.5, "b": 0.5}'),
        ("true", '{"a": "true", "b": true}'),
        ("Pong", '{"a": "Pong", "b": Pong}'),
    ],
)
def test_numbers_fill_a_quoted_place_without_its_quotes(value, filled):
    assert fill('{"a": "${x}", "b": ${x}}', "x", value) == filled


def test_the_depth_limit_itself_is_allowed():
    inside = MAX_DEPTH - 1
    assert parse('{"a": ' + "[" * inside + "]" * inside + "}", is_json=True)
    with pytest.raises(TextError):
        parse('{"a": ' + "[" * (inside + 3) + "]" * (inside + 3) + "}", is_json=True)
