"""Run one session from start to end, in the process that trains it.

Wherever a session runs (here, in a process of this machine, on a node of a cluster), `run_session`
runs it and returns how it ended as a `SessionEnd`.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from loguru import logger

from slm_lab.error import LabError
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.lock import locked
from slm_lab.runs.resume import is_finished
from slm_lab.spec import Spec, SpecError
from slm_lab.training.console import Progress, TrialDisplay
from slm_lab.training.options import RunOptions
from slm_lab.training.workers import SharedNets

STOP_GRACE_SECONDS = 60.0  # for a session to end its step and write its files
ORPHAN_PATIENCE_SECONDS = 30.0  # for a session whose trial was killed to notice it


@dataclass(frozen=True, slots=True)
class TrialJob:
    """What all sessions of a trial share."""

    spec: Spec
    layout: RunLayout
    trial: int
    options: RunOptions


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How a session ended. `error` is None for a good end. `bad_input` is a mistake in the spec
    that kept the session from starting, as it would every other session."""

    session: int
    error: str | None = None
    bad_input: Exception | None = None
    stopped_early: bool = False

    def describe(self) -> str:
        if self.error is not None:
            return f"Session {self.session} failed: {self.error.splitlines()[-1]}"
        return f"Session {self.session} {'stopped early' if self.stopped_early else 'done'}"


class StopRequest:
    """Whether a signal asked for a clean end, and which one."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __call__(self) -> bool:
        return self.signal is not None

    def remember(self, signum: int, _frame: object = None) -> None:
        self.signal = self.signal or signal.Signals(signum)


class Executor(Protocol):
    """Runs the sessions of a trial, updates the display, and yields how each session ended.

    After a stop request, running sessions end their step and write their files; others never start.
    """

    def __call__(
        self, job: TrialJob, sessions: Sequence[int], display: TrialDisplay, stop: StopRequest
    ) -> Iterator[SessionEnd]: ...


def run_session(
    job: TrialJob,
    session: int,
    report: Callable[[Progress], None],
    should_stop: Callable[[], bool],
    shared: SharedNets | None = None,
) -> SessionEnd:
    # torch is imported only in the process that trains, so that the trial's process starts at once.
    from slm_lab.env.error import EnvError
    from slm_lab.training.session import Session
    from slm_lab.training.threads import set_threads

    if should_stop():
        return SessionEnd(session, stopped_early=True)
    set_threads(job.spec, job.options)
    lock = job.layout.session_lock(job.trial, session)
    name = job.layout.session_name(job.trial, session)
    try:
        with locked(lock, name, folder=job.layout.predir, patience=ORPHAN_PATIENCE_SECONDS):
            # Checked under the lock: its previous holder may have finished the session.
            if job.options.resume and is_finished(job.layout, job.trial, session):
                return SessionEnd(session)
            try:
                unit = Session(
                    job.spec,
                    job.layout,
                    job.trial,
                    session,
                    job.options,
                    report=report,
                    should_stop=should_stop,
                    shared=shared,
                )
            except (SpecError, EnvError) as error:
                return SessionEnd(session, str(error), bad_input=error)
            return SessionEnd(session, stopped_early=not unit.run())
    except LabError as error:
        text = f"{type(error).__name__}: {error}"
        logger.error(f"Session {session} failed. {text}")
        return SessionEnd(session, text)
    except Exception:
        details = traceback.format_exc().rstrip()
        logger.error(f"Session {session} failed\n{details}")
        return SessionEnd(session, details)
