"""Disks that are full or read-only: any change of a file may fail, once or from then on.

A training goes on, or ends with a clear message. Once the disk is well again, a resume leaves what
an undisturbed run leaves: nothing that had been on disk is lost.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.killing import before_each_change
from tests.torture.attack import Outcome, Result
from tests.torture.comparison import compare_runs
from tests.torture.kills import next_mode, resume_to_the_end
from tests.torture.material import (
    TRAIN_SECONDS,
    half_done,
    newest_run,
    reference,
    spec_of,
    train,
    write_spec,
)
from tests.torture.victim import run_isolated

# In one process, so that its changes can be counted; with a replay, whose rows are in files.
FAMILIES = ("PPO", "A2C", "DDQN+PER", "SAC")
ERRORS = {"ENOSPC": errno.ENOSPC, "EROFS": errno.EROFS, "EACCES": errno.EACCES, "EIO": errno.EIO}


@dataclass(frozen=True, slots=True)
class Drawn:
    """`moment` is the share of an undisturbed run's changes before the first that fails."""

    family: str
    resumes: bool
    error: str
    moment: float
    lasts: int


@dataclass(frozen=True, slots=True)
class Faults:
    name: str = "faults"
    seconds: float = 600.0
    share: float = 0.4

    def draw(self, random: Random) -> Drawn:
        return Drawn(
            family=random.choice(FAMILIES),
            resumes=random.random() < 0.5,
            error=random.choice(sorted(ERRORS)),
            moment=round(random.random(), 4),
            lasts=random.choice((1, 1, 3, 20, 10**9)),
        )

    def run(self, drawn: Drawn, scratch: Path, material: Path) -> Result:
        whole = reference(drawn.family, material)
        if drawn.resumes:
            half = half_done(drawn.family, material)
            shutil.copytree(half / "data", scratch / "data")
        write_spec(spec_of(drawn.family), scratch)
        first = 1 + int(drawn.moment * whole.steps)
        body = _failing(train(next_mode(scratch)), drawn, first)
        ended = run_isolated(body, scratch, TRAIN_SECONDS)
        found = ended.result()
        if found.outcome.is_bad:
            return found
        again = resume_to_the_end(scratch)
        if again.outcome is not Outcome.OK:
            return again
        compared = compare_runs(newest_run(scratch), whole.run)
        if compared.outcome is Outcome.LOST and "not written" in ended.err and ended.code == 0:
            # It ended well, and the file that the disk did not take was named.
            return Result(Outcome.OK, compared.detail)
        return compared


def _failing(body: Callable[[], None], drawn: Drawn, first: int) -> Callable[[], None]:
    def life() -> None:
        before_each_change(fail)
        body()

    def fail(step: int) -> None:
        if first <= step < first + drawn.lasts:
            number = ERRORS[drawn.error]
            raise OSError(number, os.strerror(number))

    return life
