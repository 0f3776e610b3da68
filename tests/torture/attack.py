"""What every attack has: cases drawn from a seed, and one outcome for each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any, Protocol


class Outcome(StrEnum):
    """How a case ended, from good to bad; of several, the worst counts."""

    OK = "ok"
    EQUAL = "equal"  # to what an undisturbed run leaves
    REFUSED = "refused"  # by a clear message and an exit code
    LEFT_BEHIND = "left behind"  # a process, shared memory, a temporary file
    DIFFERENT = "different"
    LOST = "lost"  # something that had been on disk, inside or outside of the run folder
    HANG = "hang"
    TRACEBACK = "traceback"

    @property
    def is_bad(self) -> bool:
        return self not in (Outcome.OK, Outcome.EQUAL, Outcome.REFUSED)


@dataclass(frozen=True, slots=True)
class Result:
    """`tried` is how often the case attacked: its kills, for example."""

    outcome: Outcome
    detail: str = ""
    tried: int = 1


def worst(results: list[Result]) -> Result:
    """The worst of several results; the first of equals."""
    order = list(Outcome)
    return max(results, key=lambda result: order.index(result.outcome))


@dataclass(frozen=True, slots=True)
class Case:
    """One case: its number and the seed decide everything about it."""

    attack: str
    number: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.attack}:{self.number}"

    @property
    def random(self) -> Random:
        return Random(f"{self.seed} {self.name}")

    @property
    def command(self) -> str:
        """The command that repeats this case alone."""
        return f"python -m tests.torture --case {self.name} --seed {self.seed}"


class Attack(Protocol):
    """`seconds` bounds a case, which runs in a process and in a scratch folder of its own.

    `share` is its part of the time, beside those of the other attacks.
    `material` is a folder that the cases share, for what is made once (see `once`).
    """

    @property
    def name(self) -> str: ...

    @property
    def seconds(self) -> float: ...

    @property
    def share(self) -> float: ...

    def draw(self, random: Random) -> Any:
        """Draw what the case does. Its `repr` is shown if it fails."""

    def run(self, drawn: Any, scratch: Path, material: Path) -> Result: ...
