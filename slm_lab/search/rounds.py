"""A trial of a search: its sessions advance together and report their mean after each round.

All sessions run in the trial's process and take turns. A trial with several seeds therefore has one
score at every rung, and can be stopped there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from loguru import logger

from slm_lab.agent.learning.learner import DivergenceError
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.lock import locked
from slm_lab.spec import Spec
from slm_lab.training.console import session_log
from slm_lab.training.options import RunOptions
from slm_lab.training.session import Session

POLL_SECONDS = 0.5
ORPHAN_PATIENCE = 20.0  # seconds for the process of a killed search to end


@dataclass(frozen=True, slots=True)
class Round:
    """A trial after a round. `score` is finite: the floor replaces one that is unknown or not.

    `interrupted` means that a stop was asked for before the round was complete.
    """

    frame: int
    score: float
    seconds: float
    done: bool = False
    diverged: str = ""
    interrupted: bool = False


class TrialRounds:
    """Owns the sessions of a trial, their locks and their log files."""

    def __init__(
        self,
        spec: Spec,
        layout: RunLayout,
        trial: int,
        options: RunOptions,
        *,
        rounds: Sequence[int],
        floor: float,
        should_stop: Callable[[], bool],
        rungs: Sequence[int] = (),
        seconds: float = 0.0,
    ) -> None:
        """`rungs` are the rounds after which the search may stop the trial; `seconds` is the time
        it has trained before an interruption."""
        self._rounds, self._floor, self._should_stop = rounds, floor, should_stop
        self._rungs = rungs
        self._seconds = seconds
        self._sessions: list[Session] = []
        self._resources = ExitStack()  # locks and log files
        try:
            for index in range(spec.meta.max_session):
                name, folder = layout.session_name(trial, index), layout.predir
                path = layout.session_lock(trial, index)
                lock = locked(path, name, folder=folder, patience=ORPHAN_PATIENCE)
                self._resources.enter_context(lock)
                log = session_log(layout.log_path(trial, index), folder, index)
                self._resources.enter_context(log)
                with logger.contextualize(session=index):
                    session = Session(spec, layout, trial, index, options, should_stop=should_stop)
                self._sessions.append(session)
        except BaseException:
            self.close()
            raise

    def advance(self) -> Round:
        """Train every session to the end of the next round; one that is there already waits.

        A session that diverges ends its trial, because a mean with a failure has no meaning. When
        the trial ends, is interrupted or may be stopped, its files are written before it reports:
        after a kill, a trial that has reported still has its files.
        """
        began = time.monotonic()
        frame = min(session.frame for session in self._sessions)
        until = next((end for end in self._rounds if end > frame), self._rounds[-1])
        diverged = ""
        for index, session in enumerate(self._sessions):
            try:
                with logger.contextualize(session=index):
                    session.advance(until)
            except DivergenceError as error:
                diverged = f"session {index}: {error}"
                break
        self._seconds += time.monotonic() - began
        frame = min(session.frame for session in self._sessions)
        scores = [session.score for session in self._sessions]
        if any(math.isinf(score) for score in scores):
            diverged = diverged or "a return is infinite"
        mean = sum(scores) / len(scores)
        this = Round(
            frame=frame,
            score=self._floor if diverged or not math.isfinite(mean) else mean,
            seconds=self._seconds,
            done=bool(diverged) or frame >= self._rounds[-1],
            diverged=diverged,
            interrupted=frame < until and not diverged,
        )
        if this.done:
            self.close()
        elif this.interrupted or until in self._rungs:
            for session in self._sessions:
                session.save()
        return this

    def close(self) -> None:
        """Save and close every session; an error in one does not keep the others from it."""
        for index, session in enumerate(self._sessions):
            with logger.contextualize(session=index), logger.catch(message="closing failed"):
                session.close()
        self._resources.close()
        self._sessions = []


class StopFile:
    """Whether a stop was asked for, through a file that trials on any node can see.

    The loop asks at every step, so the disk is read only every `POLL_SECONDS`.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._looked_at = -math.inf
        self._found = False

    def __call__(self) -> bool:
        now = self._clock()
        if not self._found and now - self._looked_at >= POLL_SECONDS:
            self._looked_at = now
            self._found = self._path.exists()
        return self._found
