"""A trial of a search in its Ray process: Tune asks for one round after the other.

All sessions run in this process and take turns. A trial with several seeds therefore has one score
at every rung, the mean of its sessions, and can be stopped there.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from loguru import logger

from slm_lab.agent.learning.learner import DivergenceError
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.lock import locked
from slm_lab.search.ray_setup import ray, tune
from slm_lab.spec import Spec, SpecError
from slm_lab.training.console import session_log, setup_logging
from slm_lab.training.executors.local import end_with_parent
from slm_lab.training.options import RunOptions
from slm_lab.training.session import Session
from slm_lab.training.threads import set_threads

POLL_SECONDS = 0.5
ORPHAN_PATIENCE = 20.0  # seconds for the process of a killed search to end


@dataclass(frozen=True, slots=True)
class Round:
    """A trial after a round. `score` is finite: the floor replaces one that is unknown or not.
    `interrupted` means that a stop was asked for before the round was complete."""

    frame: int
    score: float
    seconds: float
    done: bool = False
    diverged: str = ""
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class SearchJob:
    """Settings that all trials of a search share; sent to every process once. A trial reports after
    its `rounds`; after some of them, the `rungs`, the search may stop it."""

    spec: Spec
    predir: str
    stop_file: str
    options: RunOptions
    rounds: tuple[int, ...]
    rungs: tuple[int, ...]
    floor: float


class TrialRounds:
    """Owns the sessions of a trial, their locks and their log files."""

    def __init__(
        self,
        job: SearchJob,
        layout: RunLayout,
        trial: int,
        should_stop: Callable[[], bool],
        seconds: float = 0.0,
    ) -> None:
        """`seconds` is the time that the trial has trained before an interruption."""
        self._job, self._seconds = job, seconds
        self._sessions: list[Session] = []
        self._resources = ExitStack()  # locks and log files
        try:
            for index in range(job.spec.meta.max_session):
                name, folder = layout.session_name(trial, index), layout.predir
                path = layout.session_lock(trial, index)
                lock = locked(path, name, folder=folder, patience=ORPHAN_PATIENCE)
                self._resources.enter_context(lock)
                log = session_log(layout.log_path(trial, index), folder, index)
                self._resources.enter_context(log)
                with logger.contextualize(session=index):
                    unit = (job.spec, layout, trial, index, job.options)
                    self._sessions.append(Session(*unit, should_stop=should_stop))
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
        frame = self._frame()
        until = next((end for end in self._job.rounds if end > frame), self._job.rounds[-1])
        diverged = ""
        for index, session in enumerate(self._sessions):
            try:
                with logger.contextualize(session=index):
                    session.advance(until)
            except DivergenceError as error:
                diverged = f"session {index}: {error}"
                break
        self._seconds += time.monotonic() - began
        frame = self._frame()
        scores = [session.score for session in self._sessions]
        if any(math.isinf(score) for score in scores):
            diverged = diverged or "a return is infinite"
        mean = sum(scores) / len(scores)
        this = Round(
            frame=frame,
            score=self._job.floor if diverged or not math.isfinite(mean) else mean,
            seconds=self._seconds,
            done=bool(diverged) or frame >= self._job.rounds[-1],
            diverged=diverged,
            interrupted=frame < until and not diverged,
        )
        if this.done:
            self.close()
        elif this.interrupted or until in self._job.rungs:
            for session in self._sessions:
                session.save()
        return this

    def _frame(self) -> int:
        """The frame that every session has reached; one that a callback ended waits at none."""
        frames = (session.frame for session in self._sessions if not session.stop_reason)
        return min(frames, default=self._job.rounds[-1])

    def close(self) -> None:
        """Save and close every session; an error in one does not keep the others from it."""
        for index, session in enumerate(self._sessions):
            with logger.contextualize(session=index), logger.catch(message="closing failed"):
                session.close()
        self._resources.close()
        self._sessions = []


class StopFile:
    """Whether a file asks for a stop, which trials on any node can see. The loop asks at every
    step; the disk is read only every `POLL_SECONDS`."""

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


class TrialWorker(tune.Trainable):  # type: ignore[misc]  # ray publishes no types
    """Trains one trial after the other. A mistake or a crash of a trial becomes a result with its
    reason in plain text; only the death of the process is left to Tune."""

    def setup(self, config: dict[str, Any], job: SearchJob) -> None:
        # The trial begins at the first step: Tune may start a process for it and then give it to
        # one that has become free, and two must not write the same files.
        end_with_parent()
        self._job = job
        self._rounds: TrialRounds | None = None
        self._trial_config: dict[str, Any] | None = config
        self._error = ""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self._trial_config, self._error = new_config, ""
        return True

    def step(self) -> dict[str, Any]:
        try:
            if self._trial_config is not None:
                config, self._trial_config = self._trial_config, None
                self._rounds = self._begin(config)
            if self._rounds is not None:
                return asdict(self._rounds.advance()) | {"failed": "", "node": _node()}
        except Exception as error:
            logger.error(f"Trial failed\n{traceback.format_exc().rstrip()}")
            is_ours = isinstance(error, SpecError | FileNotFoundError)
            self._error = str(error) if is_ours else f"{type(error).__name__}: {error}"
        failed = Round(frame=0, score=self._job.floor, seconds=0.0, done=True)
        return asdict(failed) | {"failed": self._error, "node": _node()}

    def cleanup(self) -> None:
        if self._rounds is not None:
            self._rounds.close()
            self._rounds = None

    def _begin(self, config: dict[str, Any]) -> TrialRounds:
        job, trial = self._job, config["trial"]
        layout = RunLayout(Path(job.predir), job.spec.name)
        if not layout.predir.is_dir():
            raise FileNotFoundError(
                f"{layout.predir}: not found on this machine. The nodes of a cluster share the "
                "disk that the run folder is on; start the search in such a folder."
            )
        setup_logging(layout.log_path(trial), "INFO", stderr_level="ERROR", folder=layout.predir)
        cores = max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
        # from where a killed search left it, if it did
        options = replace(job.options, resume=True, cores=cores)
        job = replace(job, spec=job.spec.with_values(config["values"]), options=options)
        set_threads(job.spec, options)
        return TrialRounds(job, layout, trial, StopFile(Path(job.stop_file)), config["seconds"])


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())
