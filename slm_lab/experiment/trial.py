"""A trial: every session of a spec, each in its own process, as many at once as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, Any

from loguru import logger

from slm_lab.experiment.console import Progress, TrialDisplay, setup_logging
from slm_lab.experiment.layout import RunLayout
from slm_lab.experiment.options import RunOptions
from slm_lab.spec import Spec, SpecError, spec_from_dict

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

STOP_GRACE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How a session ended. `error` is None when it did what it should; `bad_input` is the mistake
    in the spec that stopped it, and would stop every other session."""

    session: int
    error: str | None = None
    bad_input: Exception | None = None


def run_sessions(spec: Spec, layout: RunLayout, trial: int, options: RunOptions) -> dict[int, str]:
    """Run all sessions of a trial; returns the errors of those that failed, by session index.

    A mistake in the spec that shows only when env and agent are made is raised.
    """
    with TrialDisplay(trial, spec.meta.max_session) as display:
        if spec.meta.max_session == 1:
            ends = [_run_here(spec, layout, trial, 0, options, display)]
        else:
            ends = list(_run_processes(spec, layout, trial, options, display))
    for end in ends:
        if end.bad_input is not None:
            raise end.bad_input
    return {end.session: end.error for end in ends if end.error is not None}


def concurrency(spec: Spec) -> int:
    """Sessions at once: as many as the cores can give `threads` each."""
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
) -> SessionEnd:
    """A single session needs no process of its own."""
    with _stop_on_signals() as should_stop:
        end = _run_session(spec, layout, trial, session, options, display.update, should_stop)
    display.finish(session, _last_words(end))
    return end


def _run_processes(
    spec: Spec, layout: RunLayout, trial: int, options: RunOptions, display: TrialDisplay
) -> Iterator[SessionEnd]:
    context = multiprocessing.get_context("spawn")
    messages: Queue[Any] = context.Queue()
    waiting = list(range(spec.meta.max_session))
    running: dict[int, SpawnProcess] = {}
    with _stop_on_signals() as should_stop:
        has_stopped = False
        while waiting or running:
            if should_stop() and not has_stopped:
                has_stopped = True
                waiting.clear()
                for process in running.values():
                    process.terminate()  # SIGTERM: it finishes its step and writes its files
            while waiting and len(running) < concurrency(spec):
                session = waiting.pop(0)
                arguments = (spec.to_dict(), spec.name, layout, trial, session, options, messages)
                running[session] = context.Process(target=_session_process, args=arguments)
                running[session].start()
            try:
                message = messages.get(timeout=0.2)
            except queue.Empty:
                message = None
            if isinstance(message, Progress):
                display.update(message)
            elif isinstance(message, SessionEnd):
                running.pop(message.session).join()
                display.finish(message.session, _last_words(message))
                if message.bad_input is not None:
                    waiting.clear()
                yield message
            elif message is None:
                for session, process in list(running.items()):
                    if process.exitcode is not None:
                        del running[session]
                        end = SessionEnd(
                            session, f"its process died with exit code {process.exitcode}"
                        )
                        display.finish(session, _last_words(end))
                        yield end


def _session_process(
    tree: dict[str, Any],
    name: str,
    layout: RunLayout,
    trial: int,
    session: int,
    options: RunOptions,
    messages: Queue[Any],
) -> None:
    spec = spec_from_dict(tree, name)
    level = "INFO" if options.log_level.upper() == "DEBUG" else "ERROR"
    setup_logging(layout.log_path(trial, session), "DEBUG", stderr_level=level)
    with _stop_on_signals() as should_stop:
        end = _run_session(spec, layout, trial, session, options, messages.put, should_stop)
    messages.put(end)


def _run_session(
    spec: Spec,
    layout: RunLayout,
    trial: int,
    session: int,
    options: RunOptions,
    report: Callable[[Progress], None],
    should_stop: Callable[[], bool],
) -> SessionEnd:
    # torch is imported here, in the process that trains: the trial's own process starts at once.
    from slm_lab.env.error import EnvError
    from slm_lab.experiment.session import Session
    from slm_lab.experiment.threads import set_threads

    set_threads(spec, options)
    try:
        Session(spec, layout, trial, session, options, report=report, should_stop=should_stop).run()
    except (SpecError, EnvError) as error:
        return SessionEnd(session, str(error), bad_input=error)
    except Exception:
        details = traceback.format_exc().rstrip()
        logger.error(f"Session {session} failed\n{details}")
        return SessionEnd(session, details)
    return SessionEnd(session)


def _last_words(end: SessionEnd) -> str:
    if end.error is None:
        return f"Session {end.session} done"
    return f"Session {end.session} failed: {end.error.splitlines()[-1]}"


@contextmanager
def _stop_on_signals() -> Iterator[Callable[[], bool]]:
    """SIGINT and SIGTERM ask for a clean end; a second one of either ends at once."""
    received: list[int] = []

    def remember(signum: int, _frame: object) -> None:
        if received:
            sys.exit(128 + signum)
        received.append(signum)

    previous = {s: signal.signal(s, remember) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
