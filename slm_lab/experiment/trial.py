"""A trial: every session of a spec, each in its own process, as many at once as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from loguru import logger

from slm_lab.experiment.console import Progress, TrialDisplay, session_log, setup_logging
from slm_lab.experiment.layout import RunLayout
from slm_lab.experiment.lock import LockedError, locked
from slm_lab.experiment.manifest import CheckpointError
from slm_lab.experiment.options import RunOptions
from slm_lab.experiment.resume import unfinished_sessions
from slm_lab.experiment.workers import SharedNets, shared_nets, worker_spec
from slm_lab.spec import Spec, SpecError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOP_GRACE_SECONDS = 60.0  # for a session to end its step and write its files
ORPHAN_PATIENCE_SECONDS = 30.0  # for a session whose trial was killed to notice it


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How a session ended. `error` is None when it did what it should; `bad_input` is the mistake
    in the spec that kept it from starting, and would keep every other session."""

    session: int
    error: str | None = None
    bad_input: Exception | None = None
    stopped_early: bool = False


@dataclass(frozen=True, slots=True)
class TrialEnd:
    """How a trial's sessions ended: the errors of those that failed, by session index, and the
    signal that stopped the trial before all of them were done."""

    failed: dict[int, str]
    stopped_by: signal.Signals | None = None


class StopRequest:
    """Whether somebody asked for a clean end, and by which signal."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __call__(self) -> bool:
        return self.signal is not None

    def remember(self, signum: int, _frame: object = None) -> None:
        self.signal = self.signal or signal.Signals(signum)


def run_sessions(spec: Spec, layout: RunLayout, trial: int, options: RunOptions) -> TrialEnd:
    """Run all sessions of a trial; on a resume, those that have something left to do.

    A mistake in the spec that shows only when env and agent are made is raised.
    """
    sessions = list(range(spec.meta.max_session))
    if options.resume:
        sessions = unfinished_sessions(spec, layout, trial)
    display = TrialDisplay(trial, spec.meta.max_session)
    with display, stop_on_signals() as stop:
        if spec.meta.max_session == 1:
            ends = [_run_here(spec, layout, trial, s, options, display, stop) for s in sessions]
        else:
            with shared_nets(spec) as shared:
                each = worker_spec(spec) if shared else spec
                ends = list(
                    _run_processes(each, layout, trial, sessions, options, display, stop, shared)
                )
    for end in ends:
        if end.bad_input is not None and not layout.sessions(trial):
            raise end.bad_input
    is_whole = len(ends) == len(sessions) and not any(end.stopped_early for end in ends)
    return TrialEnd(
        failed={end.session: end.error for end in ends if end.error is not None},
        stopped_by=None if is_whole else stop.signal,
    )


def concurrency(spec: Spec) -> int:
    """Sessions at once: as many as the cores can give `threads` each, or all that share nets."""
    if spec.meta.distributed:
        return spec.meta.max_session
    return max(1, min(spec.meta.max_session, available_cores() // (spec.meta.threads or 1)))


def available_cores() -> int:
    """Cores this process may use: under taskset or in a container, fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _run_here(
    spec: Spec,
    layout: RunLayout,
    trial: int,
    session: int,
    options: RunOptions,
    display: TrialDisplay,
    stop: StopRequest,
) -> SessionEnd:
    """A single session needs no process of its own."""
    with session_log(layout.log_path(trial, session)):
        end = _run_session(spec, layout, trial, session, options, display.update, stop)
    display.finish(session, _last_words(end))
    return end


@dataclass(frozen=True, slots=True)
class _Child:
    """A session's process, and the pipe it reports through. One pipe each: a process that is
    killed while it writes cannot hold up the others."""

    process: SpawnProcess
    reports: Connection

    def receive(self) -> Progress | SessionEnd | None:
        """What it has sent, or None."""
        try:
            message: Progress | SessionEnd | None = (
                self.reports.recv() if self.reports.poll() else None
            )
        except (EOFError, OSError):  # it died, perhaps in mid-sentence
            return None
        return message


def _run_processes(
    spec: Spec,
    layout: RunLayout,
    trial: int,
    sessions: Sequence[int],
    options: RunOptions,
    display: TrialDisplay,
    stop: StopRequest,
    shared: SharedNets | None,
) -> Iterator[SessionEnd]:
    waiting = list(sessions)
    running: dict[int, _Child] = {}
    kill_at: float | None = None
    try:
        while waiting or running:
            if stop() and kill_at is None:
                kill_at = time.monotonic() + STOP_GRACE_SECONDS
                waiting.clear()
                for child in running.values():
                    child.process.terminate()  # SIGTERM: it ends its step and writes its files
            if kill_at is not None and time.monotonic() > kill_at:
                _kill(running)
            while waiting and len(running) < concurrency(spec):
                session = waiting.pop(0)
                running[session] = _start(spec, layout, trial, session, options, shared)
            wait([c.reports for c in running.values()], timeout=0.2)
            for session, child in list(running.items()):
                # Asked first: what a dead process has sent is in the pipe by now.
                is_dead = child.process.exitcode is not None
                message = child.receive()
                if isinstance(message, Progress):
                    display.update(message)
                    continue
                if message is None and not is_dead:
                    continue
                del running[session]
                child.process.join()
                child.reports.close()
                end = message or SessionEnd(session, _death(child.process.exitcode))
                display.finish(session, _last_words(end))
                if end.bad_input is not None:
                    waiting.clear()
                yield end
    finally:
        _kill(running)


def _start(
    spec: Spec,
    layout: RunLayout,
    trial: int,
    session: int,
    options: RunOptions,
    shared: SharedNets | None,
) -> _Child:
    context = multiprocessing.get_context("spawn")
    reports, to_trial = context.Pipe(duplex=False)
    process = context.Process(
        target=_session_process,
        args=(spec, layout, trial, session, options, to_trial, shared),
    )
    resource_tracker.ensure_running()  # here, because starting it lets the signals go
    with _signals_held():
        process.start()
    to_trial.close()  # so that the pipe ends when the session's process does
    return _Child(process, reports)


def _kill(running: dict[int, _Child]) -> None:
    for child in running.values():
        child.process.kill()


def _session_process(
    spec: Spec,
    layout: RunLayout,
    trial: int,
    session: int,
    options: RunOptions,
    to_trial: Connection,
    shared: SharedNets | None,
) -> None:
    stop = StopRequest()
    # The trial decides when to stop, and how often it says so does not matter: Ctrl-C in a terminal
    # and a signal to the process group reach the trial and its sessions alike.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, stop.remember)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def report(progress: Progress) -> None:
        try:
            to_trial.send(progress)
        except OSError:  # the trial was killed: nobody waits for the rest
            stop.remember(signal.SIGTERM)

    stderr_level = "DEBUG" if options.log_level.upper() == "DEBUG" else "WARNING"
    setup_logging(layout.log_path(trial, session), "DEBUG", stderr_level=stderr_level)
    end = _run_session(spec, layout, trial, session, options, report, stop, shared)
    with suppress(OSError):
        to_trial.send(end)


def _run_session(
    spec: Spec,
    layout: RunLayout,
    trial: int,
    session: int,
    options: RunOptions,
    report: Callable[[Progress], None],
    should_stop: Callable[[], bool],
    shared: SharedNets | None = None,
) -> SessionEnd:
    # torch is imported here, in the process that trains: the trial's own process starts at once.
    from slm_lab.agent.divergence import DivergenceError
    from slm_lab.env.error import EnvError
    from slm_lab.experiment.session import Session
    from slm_lab.experiment.threads import set_threads

    if should_stop():
        return SessionEnd(session, stopped_early=True)
    set_threads(spec, options)
    lock = layout.session_lock(trial, session)
    try:
        with locked(lock, layout.session_name(trial, session), patience=ORPHAN_PATIENCE_SECONDS):
            try:
                unit = Session(
                    spec,
                    layout,
                    trial,
                    session,
                    options,
                    report=report,
                    should_stop=should_stop,
                    shared=shared,
                )
            except (SpecError, EnvError) as error:
                return SessionEnd(session, str(error), bad_input=error)
            return SessionEnd(session, stopped_early=not unit.run())
    except (CheckpointError, LockedError, DivergenceError) as error:
        text = f"{type(error).__name__}: {error}"
        logger.error(f"Session {session} failed. {text}")
        return SessionEnd(session, text)
    except Exception:
        details = traceback.format_exc().rstrip()
        logger.error(f"Session {session} failed\n{details}")
        return SessionEnd(session, details)


def _last_words(end: SessionEnd) -> str:
    if end.error is not None:
        return f"Session {end.session} failed: {end.error.splitlines()[-1]}"
    return f"Session {end.session} {'stopped early' if end.stopped_early else 'done'}"


def _death(exit_code: int | None) -> str:
    by_signal = exit_code is not None and exit_code < 0
    name = f" ({signal.Signals(-exit_code).name})" if by_signal and exit_code else ""
    return f"its process died with exit code {exit_code}{name}"


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """SIGINT and SIGTERM ask for a clean end; a second one of either ends at once."""
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # Python hands signals to the main thread alone
        return

    def remember(signum: int, _frame: object) -> None:
        if stop():
            sys.exit(128 + signum)
        stop.remember(signum)

    previous = {s: signal.signal(s, remember) for s in STOP_SIGNALS}
    try:
        yield stop
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


@contextmanager
def _signals_held() -> Iterator[None]:
    """A process started meanwhile holds them too, until it is ready to handle them: without this a
    Ctrl-C in the seconds of its imports would kill it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
