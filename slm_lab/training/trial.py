"""Run a trial: every session of a spec, on this machine or on a Ray cluster."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from slm_lab.runs.layout import RunLayout
from slm_lab.runs.resume import unfinished_sessions
from slm_lab.spec import Problem, Spec, SpecError
from slm_lab.training.console import TrialDisplay
from slm_lab.training.executors import local
from slm_lab.training.executors.local import Executor, StopRequest, TrialJob
from slm_lab.training.options import RunOptions


@dataclass(frozen=True, slots=True)
class TrialEnd:
    """Errors of a trial's failed sessions, by index, and the signal that stopped it early."""

    failed: dict[int, str]
    stopped_by: signal.Signals | None = None


def run_sessions(spec: Spec, layout: RunLayout, trial: int, options: RunOptions) -> TrialEnd:
    """Run all sessions of a trial; on a resume, those that are not finished. A mistake in the spec
    that appears only when env and agent are made is raised."""
    sessions = list(range(spec.meta.max_session))
    if options.resume:
        sessions = unfinished_sessions(spec, layout, trial)
    execute: Executor = local.run_here if spec.meta.max_session == 1 else local.run_in_processes
    if options.ray_address is not None:
        module = import_with_ray("slm_lab.training.executors.ray_cluster", "--ray-address")
        execute = module.run_on_cluster
    display = TrialDisplay(trial, spec.meta.max_session)
    with display, stop_on_signals() as stop:
        job = TrialJob(spec, layout, trial, options)
        ends = list(execute(job, sessions, display, stop))
    for end in ends:
        if end.bad_input is not None and not layout.sessions(trial):
            raise end.bad_input
    is_whole = len(ends) == len(sessions) and not any(end.stopped_early for end in ends)
    return TrialEnd(
        failed={end.session: end.error for end in ends if end.error is not None},
        stopped_by=None if is_whole else stop.signal,
    )


def import_with_ray(module: str, path: str, what: str = "") -> ModuleType:
    """Import a module that needs the extra `search`, whose packages are slow to import. The error
    names `path`, the option that asks for it, and `what` needs it."""
    try:
        return import_module(module)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("ray", "optuna"):
            raise
        message = (
            f"{what}needs {missing}, which is not installed. "
            "Install the extra `search`: pip install 'slm-lab[search]'"
        )
        raise SpecError([Problem(path, message)], "the command") from None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a request for a clean end; a second signal exits at once."""
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # Python delivers signals to the main thread alone
        return

    def remember(signum: int, _frame: object) -> None:
        if stop():
            sys.exit(128 + signum)
        stop.remember(signum)

    with local.signals_kept():
        for signum in local.STOP_SIGNALS:
            signal.signal(signum, remember)
        yield stop
