"""What is known of an algorithm, net or memory stands in its record, and in no second list."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import slm_lab
from slm_lab.analysis.style import line_styles
from slm_lab.spec.algorithm import ALGORITHMS
from slm_lab.spec.memory import MEMORIES
from slm_lab.spec.net import NETS
from slm_lab.spec.record import Registry

PACKAGE = Path(slm_lab.__file__).parent
REGISTRIES: dict[str, Registry[Any]] = {"algorithm": ALGORITHMS, "memory": MEMORIES, "net": NETS}
RECORDS = [(kind, name) for kind, registry in REGISTRIES.items() for name in registry]


def lists_in(source: str, known: set[str]) -> Iterator[tuple[int, list[str]]]:
    """(line, names) of every collection, match or comparison that holds two known names."""
    for node in ast.walk(ast.parse(source)):
        parts: Sequence[ast.AST] = []
        match node:
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                pass
            case ast.Dict(keys=keys, values=values):
                parts = [part for part in (*keys, *values) if part is not None]
            case ast.Match(cases=cases):
                parts = [part for case in cases for part in ast.walk(case.pattern)]
            case ast.BoolOp() | ast.IfExp() | ast.If():
                tests = [node.test] if isinstance(node, ast.If | ast.IfExp) else node.values
                if isinstance(node, ast.If):
                    branch = node.orelse
                    while len(branch) == 1 and isinstance(branch[0], ast.If):
                        tests.append(branch[0].test)
                        branch = branch[0].orelse
                parts = [part for test in tests for part in ast.walk(test)]
        constants = (part.value for part in parts if isinstance(part, ast.Constant))
        names = [value for value in constants if isinstance(value, str) and value in known]
        if len(names) > 1:
            yield getattr(node, "lineno", 0), names


@pytest.mark.parametrize("kind", REGISTRIES)
def test_no_file_but_the_records_lists_names(kind: str) -> None:
    registry = REGISTRIES[kind]
    known = {name for record in registry.values() for name in (record.name, *record.aliases)}
    if kind == "algorithm":
        known |= {info.label for info in ALGORITHMS.values()}
    spec = PACKAGE / "spec"
    records = {spec / "algorithm", spec / "memory.py", spec / "net.py"}
    files = [p for p in PACKAGE.rglob("*.py") if records.isdisjoint({p, *p.parents})]
    assert len(files) > 100
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {names}"
        for path in files
        for line, names in lists_in(path.read_text(), known)
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "x = ['PPO', 'DQN']",
        "x = {'PPO': 1, 'DQN': 2}",
        "x = {'a': 'PPO', 'b': 'DQN'}",
        "x = y in ('PPO', 'DQN')",
        "match y:\n  case 'PPO': pass\n  case 'DQN': pass",
        "if y == 'PPO' or y == 'DQN': pass",
        "if y == 'PPO': pass\nelif y == 'DQN': pass",
    ],
)
def test_a_second_list_would_be_found(source: str) -> None:
    assert list(lists_in(source, {"PPO", "DQN"}))
    assert list(lists_in(source, {"PPO"})) == []


@pytest.mark.parametrize(("kind", "name"), RECORDS)
def test_a_record_names_an_implementation_that_is_there(kind: str, name: str) -> None:
    record = REGISTRIES[kind][name]
    assert callable(record.load())


def test_an_algorithm_is_found_in_any_spelling_and_a_net_only_as_it_is_written() -> None:
    spellings = ("PPO-SIL", "ppo_sil", "PPOSIL", "ppo sil")
    assert {ALGORITHMS[spelling].name for spelling in spellings} == {"PPOSIL"}
    assert ALGORITHMS["a2c"].name == "ActorCritic"
    assert ALGORITHMS["DQNBase"].name == "VanillaDQN"
    assert ALGORITHMS.find("POP") is None
    assert ALGORITHMS.find(["PPO"]) is None
    assert NETS.find("mlpnet") is None


def test_the_colour_of_every_record_is_one_that_graphs_know() -> None:
    styles = line_styles([info.label for info in ALGORITHMS.values()])
    assert all(style.color.startswith("#") for style in styles)
