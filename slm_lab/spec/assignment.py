"""`-s KEY=VALUE`: a value for a placeholder of the file, or for a dotted path of the spec."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slm_lab.spec.env import EnvSpec
from slm_lab.spec.error import Problem, SpecError
from slm_lab.spec.schema import MetaSpec
from slm_lab.spec.search import flatten
from slm_lab.spec.text import TextError, coerce_numbers, number, parse
from slm_lab.spec.tree import write_value


class Assignment(NamedTuple):
    key: str
    value: str

    @property
    def flag(self) -> str:
        return f"-s {self.key}={self.value}"


def read_assignments(sets: Sequence[str], path: Path) -> list[Assignment]:
    problems, assignments = [], []
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"\w+(\.\w+)*", key.strip()):
            message = "expected KEY=VALUE, such as -s env.max_frame=1e5"
            problems.append(Problem(f"-s {text}", message))
        elif value.strip().lower().lstrip("+-") in ("inf", "infinity", "nan"):
            problems.append(Problem(f"-s {text}", "expected a finite number"))
        else:
            assignments.append(Assignment(key.strip(), value))
    if problems:
        raise SpecError(problems, path.name)
    return assignments


def write_assignment(
    tree: dict[str, Any], item: Assignment, placeholders: set[str]
) -> Problem | None:
    """Apply `-s a.b.c=value` to the tree."""
    if "." not in item.key:
        return Problem(f"{item.flag} changes nothing", _where_to(tree, item, placeholders))
    as_number = number(item.value.strip())
    try:
        value = parse(item.value, is_json=False) if as_number is None else as_number
    except TextError as error:
        return Problem(item.flag, str(error))
    problem = write_value(tree, item.key, coerce_numbers(value, item.key.rpartition(".")[2]))
    return problem and Problem(item.flag, problem.message)


def _where_to(tree: dict[str, Any], item: Assignment, placeholders: set[str]) -> str:
    names = ", ".join(sorted(placeholders))
    has = f"the placeholders {names}" if placeholders else "no placeholders"
    leaves = [path for path, _ in flatten(tree) if not path.startswith("search.")]
    paths = [path for path in leaves if path.rpartition(".")[2] == item.key]
    for block, model in (("env", EnvSpec), ("meta", MetaSpec)):
        if item.key in (block, *model.model_fields) and not paths:
            paths.append(f"{block}.name" if item.key == block else f"{block}.{item.key}")
    if not paths:
        return f"the spec has {has}; for any other key give its dotted path, as env.num_envs"
    options = " or ".join(f"-s {dotted}={item.value}" for dotted in paths)
    return f"the spec has {has}. Did you mean {options}?"


def blame(problem: Problem, written: list[Assignment]) -> Problem:
    """Name the flag that wrote the key a problem is about."""
    for item in written:
        inside = f"{problem.path}.".startswith(f"{item.key}.")
        if inside or f"{item.key}.".startswith(f"{problem.path}."):
            return Problem(problem.path, f"{problem.message} (set by {item.flag})")
    return problem


def run_name(name: str, filled: list[Assignment]) -> str:
    """SPEC_NAME, with the env's short name once `${env}` was filled.

    `ALE/Pong-v5` -> `pong`, `my.envs:Pole-v0` -> `pole`.
    """
    for item in filled:
        if item.key == "env":
            short = re.split(r"[/:]", item.value)[-1].partition("-")[0].lower()
            return f"{name}_{re.sub(r'[^a-z0-9_.+]+', '_', short)}"
    return name
