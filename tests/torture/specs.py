"""Shipped specs after accidents: refused by a SpecError, or trained without a crash."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from slm_lab.spec import Spec, SpecError, load_spec, spec_from_dict
from tests.mutated_trees import mutate_tree, one_spec_per_algorithm
from tests.torture.attack import Outcome, Result
from tests.torture.material import train, write_spec
from tests.torture.victim import run_isolated

READ_SECONDS, TRAIN_SECONDS = 30.0, 60.0
MOST_FRAMES = 200
# Upper bounds on what only makes a training long or large, where a spec has the key.
CAPS: dict[str, int] = {
    "env.max_frame": MOST_FRAMES,
    "env.num_envs": 4,
    "meta.max_session": 1,
    "agent.algorithm.training_start_step": 50,
    "agent.memory.max_size": 2_000,
    "agent.memory.batch_size": 32,
    "agent.algorithm.training_iter": 4,
    "agent.algorithm.training_batch_iter": 4,
    "agent.algorithm.training_epoch": 2,
    "agent.algorithm.time_horizon": 32,
    "meta.rigorous_eval": 1,
}
QUICK = {"meta.compile": "off", "meta.distributed": False, "meta.random_seed": 1}


@dataclass(frozen=True, slots=True)
class Drawn:
    algorithm: str
    tree: str  # JSON
    graphs: bool


@dataclass(frozen=True, slots=True)
class Specs:
    name: str = "specs"
    seconds: float = 200.0
    share: float = 1.2

    def draw(self, random: Random) -> Drawn:
        shipped = one_spec_per_algorithm()
        algorithm = random.choice(sorted(shipped))
        return Drawn(algorithm, json.dumps(_mutant(shipped[algorithm], random)), one_in(8, random))

    def run(self, drawn: Drawn, scratch: Path, material: Path) -> Result:
        file = scratch / "mutant.json"
        file.write_text('{"tiny": ' + drawn.tree + "}")

        def read() -> None:
            try:
                spec = _capped(load_spec(file, "tiny"))
            except SpecError as error:
                if not error.problems or not str(error):
                    raise AssertionError("a SpecError without a reason") from error
                return
            write_spec(spec, scratch)

        found = run_isolated(read, scratch, READ_SECONDS).result()
        if found.outcome is not Outcome.OK:
            return found if found.outcome.is_bad else Result(Outcome.TRACEBACK, found.detail)
        if not (scratch / "tiny.json").exists():
            return Result(Outcome.REFUSED)
        return run_isolated(train("train", graphs=drawn.graphs), scratch, TRAIN_SECONDS).result()


def _mutant(tree: Any, random: Random) -> Any:
    """A spec after an accident or two; in one of three cases, one that is valid if there is any.

    Most accidents are refused when the spec is read, and would leave little to train.
    """
    tries = 30 if one_in(3, random) else 1
    for _ in range(tries):
        mutant = tree
        for _ in range(random.choice((1, 1, 2))):
            mutant = mutate_tree(mutant, random)
        if tries > 1 and _is_valid(mutant):
            break
    return mutant


def _is_valid(tree: Any) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            spec_from_dict(tree, "tiny")
    except Exception:  # any but a SpecError is what the case will find
        return False
    return True


def one_in(number: int, random: Random) -> bool:
    return random.randrange(number) == 0


def _capped(spec: Spec) -> Spec:
    """The same spec, small; one that becomes invalid by that is refused as well."""
    tree = spec.to_dict()
    values: dict[str, Any] = dict(QUICK)
    for key, most in CAPS.items():
        value = _at(tree, key)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > most:
            values[key] = most
    return spec.with_values(values)


def _at(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree
