"""Kills at random moments and at chosen steps of what a training does to its files.

A killed training is resumed until it is done, and must leave what an undisturbed one leaves.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from tests.killing import killed_at
from tests.torture.attack import Outcome, Result, worst
from tests.torture.material import (
    DISTRIBUTED,
    FAMILIES,
    SEVERAL,
    TRAIN_SECONDS,
    Reference,
    compare_runs,
    newest_run,
    reference,
    spec_of,
    train,
    write_spec,
)
from tests.torture.victim import Ended, Victim

# At a change of a file anywhere, or after the last frame; by a signal to the command or to a child.
Kind = Literal["step", "finishing", "SIGKILL", "SIGTERM", "SIGINT", "child"]
STOPPED = {"SIGTERM": 128 + signal.SIGTERM, "SIGINT": 128 + signal.SIGINT}
FINISHING = 0.6  # more than half of the changes of so short a run are made after its last frame
MOST_RESUMES = 3


@dataclass(frozen=True, slots=True)
class Kill:
    """`moment` is from 0, the start, to 1, the end of an undisturbed run."""

    kind: Kind
    moment: float


@dataclass(frozen=True, slots=True)
class Drawn:
    family: str
    kills: tuple[Kill, ...]


@dataclass(frozen=True, slots=True)
class Kills:
    name: str = "kills"
    seconds: float = 600.0
    share: float = 5.0
    families: tuple[str, ...] = FAMILIES

    def draw(self, random: Random) -> Drawn:
        family = random.choice(self.families)
        return Drawn(
            family, tuple(_kill(family, random) for _ in range(random.choice((1, 1, 2, 3))))
        )

    def run(self, drawn: Drawn, scratch: Path, material: Path) -> Result:
        whole = reference(drawn.family, material)
        write_spec(spec_of(drawn.family), scratch)
        for kill in drawn.kills:
            found = _life(kill, whole, scratch)
            if found.outcome.is_bad:
                return Result(found.outcome, f"in {kill}: {found.detail}")
        found = resume_to_the_end(scratch)
        if found.outcome is not Outcome.OK:
            return found
        remains = temporary_remains(scratch)
        exactly = drawn.family not in DISTRIBUTED
        return worst([compare_runs(newest_run(scratch), whole.run, exactly=exactly), remains])


def _kill(family: str, random: Random) -> Kill:
    kinds: tuple[Kind, ...] = ("step", "finishing", "SIGKILL", "SIGTERM", "SIGINT")
    if family in SEVERAL or family in DISTRIBUTED:
        kinds = (*kinds, "child", "child")
    kind = random.choice(kinds)
    low = FINISHING if kind == "finishing" else 0.0
    return Kill(kind, round(random.uniform(low, 1.05), 4))


def _life(kill: Kill, whole: Reference, scratch: Path) -> Result:
    body = train(next_mode(scratch))
    at = 0
    if kill.kind in ("step", "finishing"):
        at = 1 + int(kill.moment * whole.steps)
    with Victim(_killed(body, at), scratch) as victim:
        if at == 0:
            time.sleep(kill.moment * whole.seconds)
            children = victim.children()
            if kill.kind != "child":
                victim.signal(signal.Signals[kill.kind])
            elif children:
                _kill_child(children[int(kill.moment * 997) % len(children)].pid)
        ended = victim.wait(TRAIN_SECONDS)
    return _ending(kill, ended)


def _killed(body: Callable[[], None], at: int) -> Callable[[], None]:
    def life() -> None:
        with killed_at(at):
            body()

    return life if at else body


def _kill_child(pid: int) -> None:
    import os

    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _ending(kill: Kill, ended: Ended) -> Result:
    """A life may end by its kill, with the code of a stop, or as usual if it was faster."""
    if ended.code == -signal.SIGKILL or ended.code in (
        -signal.SIGTERM,  # before it could handle it
        STOPPED.get(kill.kind),
    ):
        traceback = "Traceback (most recent call last)" in ended.err
        if traceback:
            return Result(Outcome.TRACEBACK, ended.last_line)
        return (
            Result(Outcome.LEFT_BEHIND, ", ".join(ended.left)) if ended.left else Result(Outcome.OK)
        )
    return ended.result()


def next_mode(scratch: Path) -> str:
    """Resume, if there is a run that a resume could take."""
    return "train@latest" if list(scratch.glob("data/*/*_t0_spec.json")) else "train"


def resume_to_the_end(scratch: Path) -> Result:
    for _ in range(MOST_RESUMES):
        with Victim(train(next_mode(scratch)), scratch) as victim:
            found = victim.wait(TRAIN_SECONDS).result()
        if found.outcome.is_bad or found.outcome is Outcome.OK:
            return found
    return Result(Outcome.LOST, f"could not be resumed: {found.detail}")


def temporary_remains(scratch: Path) -> Result:
    """Temporary files that outlived the last process; its own output and state are expected."""
    found = {path.name for path in (scratch / ".tmp").iterdir()} - {"out", "err", "state"}
    if found:
        return Result(Outcome.LEFT_BEHIND, f"temporary files: {sorted(found)[:5]}")
    return Result(Outcome.OK)
