"""Kills at random moments and at chosen steps of what a training does to its files.

A killed training is resumed until it is done, and must leave what an undisturbed one leaves.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Literal

from tests.killing import killed_at
from tests.sessions import EVERY_ALGORITHM
from tests.torture.attack import Outcome, Result, worst
from tests.torture.comparison import compare_runs
from tests.torture.material import (
    DISTRIBUTED,
    FAMILIES,
    TRAIN_SECONDS,
    Reference,
    newest_run,
    reference,
    spec_of,
    train,
    write_spec,
)
from tests.torture.victim import Ended, Victim

# At a change of a file; by a signal to the command or to a child.
Kind = Literal["step", "SIGKILL", "SIGTERM", "SIGINT", "child"]
STOPPED = {"SIGTERM": 128 + signal.SIGTERM, "SIGINT": 128 + signal.SIGINT}
DRAWN_SHARE = 0.2  # of the cases, which are as users have them: see Drawn
MOST_RESUMES = 3


@dataclass(frozen=True, slots=True)
class Kill:
    """`moment` is from 0, the start, to 1, the end of an undisturbed run."""

    kind: Kind
    moment: float


@dataclass(frozen=True, slots=True)
class Drawn:
    """With `graphs` the training draws them, and starts its sessions as users have them started."""

    family: str
    graphs: bool
    kills: tuple[Kill, ...]


@dataclass(frozen=True, slots=True)
class Kills:
    name: str = "kills"
    seconds: float = 600.0
    share: float = 0.8
    families: tuple[str, ...] = FAMILIES

    def draw(self, random: Random) -> Drawn:
        family = random.choice(self.families)
        graphs = random.random() < DRAWN_SHARE
        return Drawn(family, graphs, draw_kills(random, child=family not in EVERY_ALGORITHM))

    def run(self, drawn: Drawn, scratch: Path, material: Path) -> Result:
        whole = reference(drawn.family, material, graphs=drawn.graphs)
        write_spec(spec_of(drawn.family), scratch)
        exactly = drawn.family not in DISTRIBUTED
        killed = 0
        for kill in drawn.kills:
            body = train(next_mode(scratch), graphs=drawn.graphs)
            found, is_killed = live(body, kill, whole, scratch)
            killed += is_killed
            if found.outcome.is_bad:
                return Result(found.outcome, f"in {kill}: {found.detail}", killed)
        found = resumed_and_equal(whole, scratch, graphs=drawn.graphs, exactly=exactly)
        return replace(found, tried=killed)


def draw_kills(random: Random, *, child: bool = False) -> tuple[Kill, ...]:
    """Several in one training, each in a life that has less left to do; `child` has processes."""
    kinds: tuple[Kind, ...] = ("step", "step", "SIGKILL", "SIGTERM", "SIGINT")
    if child:
        kinds = (*kinds, "child", "child")
    return tuple(
        Kill(random.choice(kinds), round(random.uniform(0.0, 1.02 / number), 4))
        for number in range(1, random.randint(2, 5))
    )


def live(
    body: Callable[[], None], kill: Kill, whole: Reference, scratch: Path
) -> tuple[Result, bool]:
    """One life of a training; also returns whether the kill came before its end."""
    is_killed = False
    at = 1 + int(kill.moment * whole.steps) if kill.kind == "step" else 0
    with Victim(killed(body, at), scratch) as victim:
        if not at:
            time.sleep(kill.moment * whole.seconds)
            is_killed = strike(victim, kill)
        ended = victim.wait(TRAIN_SECONDS)
    return expected_end(kill, ended), is_killed or ended.code == -signal.SIGKILL


def killed(body: Callable[[], None], at: int) -> Callable[[], None]:
    """A life that ends at the `at`-th change of a file; sessions count their own."""

    def life() -> None:
        with killed_at(at):
            body()

    return life if at else body


def strike(victim: Victim, kill: Kill) -> bool:
    """Send the signal; returns whether there was somebody to receive it."""
    if kill.kind != "child":
        return victim.signal(signal.Signals[kill.kind])
    children = victim.children()
    if not children:
        return False
    with suppress(ProcessLookupError):
        os.kill(children[int(kill.moment * 997) % len(children)].pid, signal.SIGKILL)
    return True


def expected_end(kill: Kill, ended: Ended) -> Result:
    """A life may end by its kill, with the code of a stop, or as usual if it was faster."""
    expected = (-signal.SIGKILL, -signal.SIGTERM, STOPPED.get(kill.kind))
    # By SIGTERM before it could handle it; a stop by a signal is no refusal.
    return (replace(ended, code=0) if ended.code in expected else ended).result()


def resumed_and_equal(
    whole: Reference, scratch: Path, *, graphs: bool, exactly: bool = True
) -> Result:
    """Resume to the end, and compare with the undisturbed run."""
    found = resume_to_the_end(scratch, graphs=graphs)
    if found.outcome is not Outcome.OK:
        return found
    compared = compare_runs(newest_run(scratch), whole.run, exactly=exactly)
    return worst([compared, temporary_remains(scratch)])


def next_mode(scratch: Path) -> str:
    """Resume, if there is a run that a resume could take."""
    return "train@latest" if list(scratch.glob("data/*/*_t0_spec.json")) else "train"


def resume_to_the_end(scratch: Path, *, graphs: bool = True) -> Result:
    for _ in range(MOST_RESUMES):
        with Victim(train(next_mode(scratch), graphs=graphs), scratch) as victim:
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
