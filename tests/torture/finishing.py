"""Kills at every step of finishing: from the last frame on, one change of a file after the other.

A kill there once left the weights of the save before in a run that said to be finished.
"""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.killing import killed_at
from tests.sessions import EVERY_ALGORITHM
from tests.torture.attack import Outcome, Result
from tests.torture.kills import DRAWN_SHARE, killed, resumed_and_equal
from tests.torture.material import TRAIN_SECONDS, check, once, reference, spec_of, train, write_spec
from tests.torture.victim import Victim, run_isolated

EACH = 8  # steps of a case, one after the other


@dataclass(frozen=True, slots=True)
class Drawn:
    """`first` is the step to begin at, from 0, the last frame, to 1, the end of the run."""

    family: str
    graphs: bool
    first: float


@dataclass(frozen=True, slots=True)
class Finishing:
    name: str = "finishing"
    seconds: float = 600.0
    share: float = 0.4
    families: tuple[str, ...] = tuple(EVERY_ALGORITHM)  # each in one process
    each: int = EACH

    def draw(self, random: Random) -> Drawn:
        graphs = random.random() < DRAWN_SHARE
        return Drawn(random.choice(self.families), graphs, round(random.random(), 4))

    def run(self, drawn: Drawn, scratch: Path, material: Path) -> Result:
        whole = reference(drawn.family, material, graphs=drawn.graphs)
        trained = _at_the_last_frame(drawn.family, material, graphs=drawn.graphs)
        first, last = map(int, (trained / "steps").read_text().split())
        for number in range(self.each):
            at = first + (int(drawn.first * (last - first)) + number) % (last - first)
            here = scratch / str(at)
            shutil.copytree(trained / "data", here / "data")
            write_spec(spec_of(drawn.family), here)
            with Victim(killed(train("train@latest", graphs=drawn.graphs), at), here) as victim:
                ended = victim.wait(TRAIN_SECONDS)
            if ended.code != -signal.SIGKILL:
                found = Result(Outcome.DIFFERENT, f"{ended.code}, no kill: {ended.last_line}")
            else:
                found = resumed_and_equal(whole, here, graphs=drawn.graphs)
            if found.outcome.is_bad:
                where = f"at step {at} of {first} to {last}"
                return Result(found.outcome, f"{where}: {found.detail}", number + 1)
            shutil.rmtree(here)
        return Result(Outcome.EQUAL, tried=self.each)


def _at_the_last_frame(family: str, material: Path, *, graphs: bool) -> Path:
    """A folder with a run that was killed between its last frame and the first of its files.

    Its file `steps` has the numbers of the first and the last step of finishing, in a resume.
    """

    def build(folder: Path) -> None:
        write_spec(spec_of(family), folder)
        with Victim(_killed_at_the_last_frame, folder) as victim:
            assert victim.wait(TRAIN_SECONDS).code == -signal.SIGKILL
        copy = folder / "copy"
        shutil.copytree(folder / "data", copy / "data")
        write_spec(spec_of(family), copy)
        check(run_isolated(lambda: _count(graphs=graphs), copy, TRAIN_SECONDS))
        (copy / "steps").rename(folder / "steps")
        shutil.rmtree(copy)

    return once(material / f"{'drawn' if graphs else 'plain'} last frame of {family}", build)


def _killed_at_the_last_frame() -> None:
    from slm_lab.training.session import Session

    Session.close = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment,method-assign]
    train("train", graphs=False)()


def _count(*, graphs: bool) -> None:
    from slm_lab.training.session import Session

    close, found = Session.close, list[int]()

    def closing(session: Session) -> None:
        found.append(steps() + 1)
        close(session)

    Session.close = closing  # type: ignore[assignment,method-assign]
    with killed_at(0) as steps:
        try:
            train("train@latest", graphs=graphs)()
        finally:
            found.append(steps())
            Path("steps").write_text(" ".join(map(str, found)))
