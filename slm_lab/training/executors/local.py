"""Run sessions on this machine: each in its own process, as many at once as there are cores.

Wherever a session runs (here, in a process of this machine, on a node of a cluster), `run_session`
runs it and returns how it ended as a `SessionEnd`. Processes end with the one that started them,
however that one ended. With `meta.distributed` they train one set of nets; `distributed.py` is the
half of that which needs torch, as this process imports none.
"""

from __future__ import annotations

import importlib.util
import math
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Protocol

import psutil
from loguru import logger

from slm_lab.error import LabError
from slm_lab.runs.child_process import STOP_SIGNALS, start_process, unblock_stop_signals
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.lock import locked
from slm_lab.runs.resume import earlier_specs, is_finished
from slm_lab.spec import Problem, Spec, SpecError
from slm_lab.training.console import Progress, Told, session_log, setup_logging
from slm_lab.training.executors.carried import NOTHING, Carried
from slm_lab.training.options import RunOptions

STOP_GRACE_SECONDS = 60.0  # for a session to end its step and write its files
ORPHAN_PATIENCE_SECONDS = 30.0  # for a session whose trial was killed to notice it


@dataclass(frozen=True, slots=True)
class TrialJob:
    """What all sessions of a trial share."""

    spec: Spec
    layout: RunLayout
    trial: int
    options: RunOptions
    shared: SharedNets | None = None
    carried: Carried = NOTHING  # what processes of sessions cannot import


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How a session ended. `bad_input` is a mistake in the spec: no session can start."""

    session: int
    error: str | None = None
    bad_input: Exception | None = None
    stopped_early: bool = False
    stop_reason: str = ""  # of a callback that ended it; it counts as finished

    def describe(self) -> str:
        if self.error is not None:
            return f"Session {self.session} failed: {self.error.splitlines()[-1]}"
        how = "stopped early" if self.stopped_early else "done"
        return f"Session {self.session} {how}{': ' if self.stop_reason else ''}{self.stop_reason}"


class Watcher(Protocol):
    """Shows how the sessions of a trial get on."""

    def update(self, progress: Progress) -> None: ...
    def tell(self, told: Told) -> None: ...
    def stopping(self) -> None: ...
    def finish(self, session: int, text: str) -> None: ...


class StopRequest:
    """Whether a signal asked for a clean end, and which one."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __call__(self) -> bool:
        return self.signal is not None

    def remember(self, signum: int, _frame: object = None) -> None:
        self.signal = self.signal or signal.Signals(signum)


# Runs the sessions of a trial, updates the display, and yields how each session ended. After a stop
# request, running sessions end their step and write their files; others never start.
Executor = Callable[[TrialJob, Sequence[int], Watcher, StopRequest], Iterator[SessionEnd]]


def run_session(
    job: TrialJob, session: int, report: Callable[[Progress], None], should_stop: Callable[[], bool]
) -> SessionEnd:
    # torch is imported only in the process that trains, so that the trial's process starts at once.
    report(Progress(session, stage="importing"))
    from slm_lab.env.error import EnvError
    from slm_lab.training.session import Session
    from slm_lab.training.threads import set_threads

    if should_stop():
        return SessionEnd(session, stopped_early=True)
    report(Progress(session, stage="making envs"))
    set_threads(job.spec, job.options)
    lock = job.layout.session_lock(job.trial, session)
    name = job.layout.session_name(job.trial, session)
    try:
        with locked(lock, name, folder=job.layout.predir, patience=ORPHAN_PATIENCE_SECONDS):
            # Checked under the lock: its previous holder may have finished the session.
            earlier = earlier_specs(job.spec)
            if job.options.resume and is_finished(job.layout, job.trial, session, earlier):
                return SessionEnd(session)
            cores = job.options.cores or max(1, available_cores() // concurrency(job.spec))
            try:
                options = replace(job.options, cores=cores)
                parts = (job.spec, job.layout, job.trial, session, options)
                unit = Session(*parts, report=report, should_stop=should_stop, shared=job.shared)
            except (SpecError, EnvError) as error:
                return SessionEnd(session, str(error), bad_input=error)
            is_done = unit.run()
            return SessionEnd(session, stopped_early=not is_done, stop_reason=unit.stop_reason)
    except LabError as error:
        text = f"{type(error).__name__}: {error}"
        logger.error(f"Session {session} failed. {text}")
        return SessionEnd(session, text)
    except Exception:
        details = traceback.format_exc().rstrip()
        logger.error(f"Session {session} failed\n{details}")
        return SessionEnd(session, details)


def available_cores() -> int:
    """Cores that this process may use; under taskset or in a container fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def concurrency(spec: Spec) -> int:
    """Sessions to run at once: as many as get `threads` cores each, or all that share nets."""
    if spec.meta.distributed:
        return spec.meta.max_session
    return max(1, min(spec.meta.max_session, available_cores() // (spec.meta.threads or 1)))


def run_here(
    job: TrialJob, sessions: Sequence[int], display: Watcher, stop: StopRequest
) -> Iterator[SessionEnd]:
    """Run sessions in this process: the only session of a trial needs no process of its own."""
    for session in sessions:
        with session_log(job.layout.log_path(job.trial, session), job.layout.predir):
            end = run_session(job, session, display.update, stop)
        display.finish(session, end.describe())
        yield end


def run_in_processes(
    job: TrialJob, sessions: Sequence[int], display: Watcher, stop: StopRequest
) -> Iterator[SessionEnd]:
    waiting = list(sessions)
    running: dict[int, SessionProcess] = {}
    kill_at = math.inf
    with ExitStack() as afterwards:
        shared = afterwards.enter_context(shared_nets(job.spec))
        if shared is not None:
            job = replace(job, spec=worker_spec(job.spec), shared=shared)
        afterwards.callback(_kill, running)
        while waiting or running:
            if stop() and kill_at == math.inf:
                kill_at = time.monotonic() + STOP_GRACE_SECONDS
                display.stopping()
                waiting.clear()
                for child in running.values():
                    child.process.terminate()  # SIGTERM: it ends its step and writes its files
            if time.monotonic() > kill_at:
                _kill(running)
            while waiting and len(running) < concurrency(job.spec):
                session = waiting.pop(0)
                running[session] = SessionProcess.start(job, session)
                display.update(Progress(session, stage="importing"))
            wait([c.reports for c in running.values()], timeout=0.2)
            for session, child in list(running.items()):
                message = child.receive()
                if isinstance(message, Progress):
                    display.update(message)
                elif isinstance(message, Told):
                    display.tell(message)
                elif message is not None:
                    del running[session]
                    display.finish(session, message.describe())
                    if message.bad_input is not None:
                        waiting.clear()
                    yield message


def _kill(running: dict[int, SessionProcess]) -> None:
    for child in running.values():
        child.process.kill()


@dataclass(frozen=True, slots=True)
class SessionProcess:
    """A session's process, and the pipe it reports through.

    Each has its own, so that one that is killed while it writes cannot block the others. Nothing is
    sent through `lifeline`: when it closes, with this process, the session ends.
    """

    session: int
    process: SpawnProcess
    reports: Connection
    lifeline: Connection

    @classmethod
    def start(cls, job: TrialJob, session: int) -> SessionProcess:
        context = multiprocessing.get_context("spawn")
        reports, to_trial = context.Pipe(duplex=False)
        trial_lives, lifeline = context.Pipe(duplex=False)
        process = context.Process(
            target=_session_process, args=(job.carried, job, session, to_trial, trial_lives)
        )
        start_process(process)
        to_trial.close()  # so that the pipe ends when the session's process does
        trial_lives.close()
        return cls(session, process, reports, lifeline)

    def receive(self) -> Progress | Told | SessionEnd | None:
        """The next message, or None; a dead process has a SessionEnd, which closes the pipes."""
        # Checked first: all that a dead process has sent is in the pipe by now.
        is_dead = self.process.exitcode is not None
        try:
            message: Progress | Told | SessionEnd | None = (
                self.reports.recv() if self.reports.poll() else None
            )
        except (EOFError, OSError):  # it died, perhaps within a message
            message = None
        if isinstance(message, Progress | Told) or (message is None and not is_dead):
            return message
        self.process.join()
        self.reports.close()
        self.lifeline.close()
        return message or SessionEnd(self.session, _death(self.process.exitcode))


def _session_process(
    _: Carried, job: TrialJob, session: int, to_trial: Connection, trial_lives: Connection
) -> None:
    # A killed trial may be resumed at once: no orphan may write its files then.
    end_with(trial_lives.recv_bytes)
    stop = StopRequest()
    # The trial alone decides when to stop. Ctrl-C in a terminal and a signal to the process group
    # reach the trial and its sessions alike, and repeated requests change nothing.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, stop.remember)
    unblock_stop_signals()

    turn = threading.RLock()  # a warning may come from another thread, or within a report

    def report(message: Progress | Told) -> None:
        with turn, suppress(OSError):  # the trial was killed, and so is this process
            to_trial.send(message)

    warnings.showwarning = _log_warning
    stderr_level = "DEBUG" if job.options.log_level.upper() == "DEBUG" else "WARNING"
    log_path, folder = job.layout.log_path(job.trial, session), job.layout.predir
    setup_logging(log_path, "DEBUG", stderr_level=stderr_level, folder=folder, tell=report)
    end = run_session(job, session, report, stop)
    with suppress(OSError):
        to_trial.send(end)


def _log_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    logger.warning(f"{category.__name__}: {message}")


def _death(exit_code: int | None) -> str:
    by_signal = exit_code is not None and exit_code < 0
    name = f" ({signal.Signals(-exit_code).name})" if by_signal and exit_code else ""
    return f"its process died with exit code {exit_code}{name}"


@contextmanager
def signals_kept() -> Iterator[None]:
    """Restore the handlers of the stop signals afterwards, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {s: signal.getsignal(s) for s in STOP_SIGNALS}
    try:
        yield
    except SystemExit as end:  # of Ray's handler, whose exit code is the number of the signal
        raise SystemExit(128 + signal.SIGTERM if end.code == signal.SIGTERM else end.code) from None
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


def end_with(wait: Callable[[], object]) -> None:
    """End this process at once when `wait`, called in a thread, returns. It may read from a pipe
    whose other end the parent alone holds: the system closes that end when the parent dies."""

    def watch() -> None:
        with suppress(EOFError, OSError):
            wait()
        os._exit(1)

    threading.Thread(target=watch, name="lifetime", daemon=True).start()


def end_with_parent() -> None:
    """End this process when its parent dies, and no pipe leads to it: the parent of a process of
    Ray is its raylet, which dies with the search."""
    try:
        parent = psutil.Process(os.getppid())
    except psutil.NoSuchProcess:  # it died before it could be watched
        os._exit(1)
    end_with(parent.wait)


def scratch_folder() -> Path:
    """Make a temporary folder for this process, and remove those of processes that were killed."""
    prefix = f"slm_lab_{socket.gethostname()}_"
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*_*"):
        pid = folder.name.removeprefix(prefix).partition("_")[0]
        with suppress(OverflowError):  # no process id at all
            if pid.isdecimal() and not psutil.pid_exists(int(pid)):
                shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}_"))


@dataclass(frozen=True, slots=True)
class SharedNets:
    """A file in memory that all workers map, a lock on it, and whether they take turns.

    The file has no name: it disappears with the last process that has it open, however that one
    ends. The kernel releases the lock of a process that dies, so that no other waits for ever.
    """

    descriptor: int
    workers: int
    synced: bool

    def __reduce__(self) -> tuple[Callable[..., SharedNets], tuple[Any, int, bool]]:
        return _inherited, (reduction.DupFd(self.descriptor), self.workers, self.synced)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Wait for the lock and hold it, against other processes but not other threads."""
        import fcntl

        fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)


def _inherited(duplicate: Any, workers: int, synced: bool) -> SharedNets:
    return SharedNets(duplicate.detach(), workers, synced)


@contextmanager
def shared_nets(spec: Spec) -> Iterator[SharedNets | None]:
    """The shared nets of a trial while it runs; None if each session trains its own."""
    if not spec.meta.distributed or spec.meta.max_session == 1:
        yield None
        return
    if importlib.util.find_spec("fcntl") is None:  # Windows
        found = f"found `{spec.meta.distributed}`; this system has no locks for its workers"
        raise SpecError([Problem("meta.distributed", f"{found}. Leave it out.")], spec.name)
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # a file that is never written out
    with tempfile.TemporaryFile(dir=memory) as file:
        is_synced = spec.meta.distributed == "synced"
        yield SharedNets(file.fileno(), spec.meta.max_session, is_synced)


def worker_spec(spec: Spec) -> Spec:
    """The spec of one worker, with its part of the frames. Schedules keep their length: a worker
    counts the frames of all."""
    whole = spec.to_dict()["agent"]["algorithm"]  # with schedules that are a default's
    part = -(-spec.env.max_frame // spec.meta.max_session)
    values = {"env.max_frame": part, "agent.algorithm": whole}
    if (frames := getattr(spec.agent.memory, "anneal_frames", None)) is not None:
        # The replay alone counts a worker's own frames.
        values["agent.memory.anneal_frames"] = -(-frames // spec.meta.max_session)
    return spec.with_values(values)


def session_spec(spec: Spec) -> Spec:
    """The spec that each session of a trial has."""
    is_shared = spec.meta.distributed and spec.meta.max_session > 1
    return worker_spec(spec) if is_shared else spec
