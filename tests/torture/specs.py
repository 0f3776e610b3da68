"""Shipped specs after accidents: refused by a SpecError, or trained without a crash."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from slm_lab.spec import Spec, SpecError, load_spec
from tests.mutated_trees import mutate_tree, one_spec_per_algorithm
from tests.torture.attack import Outcome, Result
from tests.torture.material import train, write_spec
from tests.torture.victim import Victim, run_isolated

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


@dataclass(frozen=True, slots=True)
class Specs:
    name: str = "specs"
    seconds: float = 200.0
    share: float = 2.5

    def draw(self, random: Random) -> Drawn:
        shipped = one_spec_per_algorithm()
        algorithm = random.choice(sorted(shipped))
        tree: Any = shipped[algorithm]
        for _ in range(random.choice((1, 1, 2))):
            tree = mutate_tree(tree, random)
        return Drawn(algorithm, json.dumps(tree))

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
        with Victim(train("train"), scratch) as victim:
            return victim.wait(TRAIN_SECONDS).result()


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
