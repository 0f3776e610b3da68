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

from loguru import logger

from slm_lab.runs.child_process import STOP_SIGNALS
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.resume import unfinished_sessions
from slm_lab.spec import Problem, Spec, SpecError
from slm_lab.training.console import TrialDisplay
from slm_lab.training.executors import local
from slm_lab.training.executors.carried import NOTHING, CannotBeCarried, Carried, carry
from slm_lab.training.executors.local import Executor, StopRequest, TrialJob
from slm_lab.training.notebook_display import NotebookDisplay, in_notebook
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
    execute: Executor = local.run_here
    carried = NOTHING
    if options.ray_address is not None:
        module = import_with_ray("slm_lab.training.executors.ray_cluster", "--ray-address")
        execute = module.run_on_cluster
    elif spec.meta.max_session > 1:
        execute, carried = _in_processes(spec)
    budget = local.session_spec(spec).env.max_frame
    display: NotebookDisplay | TrialDisplay = TrialDisplay(trial, sessions, budget)
    if in_notebook():
        display = NotebookDisplay(sessions)
    with display, stop_on_signals() as stop:
        job = TrialJob(spec, layout, trial, options, carried=carried)
        ends = list(execute(job, sessions, display, stop))
    for end in ends:
        if end.bad_input is not None and not layout.sessions(trial):
            raise end.bad_input
    is_whole = len(ends) == len(sessions) and not any(end.stopped_early for end in ends)
    return TrialEnd(
        failed={end.session: end.error for end in ends if end.error is not None},
        stopped_by=None if is_whole else stop.signal,
    )


def _in_processes(spec: Spec) -> tuple[Executor, Carried]:
    """How to run several sessions, and what their processes need of this one."""
    try:
        return local.run_in_processes, carry(spec)
    except CannotBeCarried as reason:
        what = f"{reason} cannot be sent to another process"
        if spec.meta.distributed:
            fix = "Define it in a module"
            raise SpecError([Problem("meta.distributed", f"{what}. {fix}")], spec.name) from None
        logger.warning(f"The sessions run one after another in this process: {what}.")
        return local.run_here, NOTHING


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
        for signum in STOP_SIGNALS:
            signal.signal(signum, remember)
        yield stop
