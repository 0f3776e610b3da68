"""Run the sessions of a trial on the nodes of a Ray cluster, and gather their files here.

An actor per session, on any node with free cores, starts the session as a process of its own, as
this machine would, in a scratch folder of that node. The actor is asked repeatedly for news:
progress, files (see `shipping.py`), and at last how the session ended. The run folder here is
therefore never far behind, and a session whose node dies continues elsewhere from the last
checkpoint that arrived.
"""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from loguru import logger

from slm_lab.runs.layout import FOLDERS, RunLayout
from slm_lab.runs.own_modules import own_modules
from slm_lab.runs.provenance import PACKAGE_ROOT
from slm_lab.spec import Problem, Spec, SpecError
from slm_lab.training.console import Progress, Told
from slm_lab.training.executors import local, shipping
from slm_lab.training.executors.local import (
    SessionEnd,
    SessionProcess,
    StopRequest,
    TrialJob,
    Watcher,
)

# Ray reads these when it is imported: no usage reports, and a process that asks for no GPU still
# sees those of its machine.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

import ray as ray  # read from here, so that the settings above come first

SHIP_SECONDS = 5.0  # between two looks for changed files
POLL_SECONDS = 0.5  # how long an actor waits for news before it answers
NEWS_BYTES = 32_000_000  # of files in one answer
CLOSE_SECONDS = 5.0
RESTARTS = 3  # of a session whose node died
CONNECT_SECONDS = 10.0
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


@dataclass(frozen=True, slots=True)
class SessionNews:
    """New progress and files of a session; `end` comes last, when all files have been sent."""

    progress: Progress | None = None
    files: Sequence[shipping.FileMessage] = ()
    end: SessionEnd | None = None


class SessionHost:
    """The actor on a node: owns a session's process and its scratch folder."""

    def __init__(self, job: TrialJob, session: int) -> None:
        self._scratch = local.scratch_folder()
        layout = RunLayout(self._scratch / job.layout.predir.name, job.layout.name)
        for folder in FOLDERS:
            (layout.predir / folder).mkdir(parents=True)
        self._job, self._session = replace(job, layout=layout), session
        self._process: SessionProcess | None = None
        self._end: SessionEnd | None = None
        self._look_at = 0.0

    def receive(self, message: shipping.FileMessage) -> None:
        """Write a file that the session needs to continue; before `start`."""
        shipping.write_plain(self._job.layout.predir, message)

    def start(self) -> None:
        self._sender = shipping.FileSender(self._job.layout.predir)
        self._process = SessionProcess.start(self._job, self._session)
        self._look_at = time.monotonic() + SHIP_SECONDS

    def news(self) -> SessionNews:
        progress = self._latest_progress()
        if self._sender.is_empty and time.monotonic() >= self._look_at:
            self._sender.look()
            # The last look comes after the end, when nothing changes any more.
            self._look_at = math.inf if self._end else time.monotonic() + SHIP_SECONDS
        files = self._sender.take(NEWS_BYTES)
        is_over = self._look_at == math.inf and self._sender.is_empty
        return SessionNews(progress, files, self._end if is_over else None)

    def send_again(self) -> None:
        self._sender.forget()

    def stop(self) -> None:
        """Ask the session to end its step and write its files."""
        if self._process is not None and self._end is None:
            self._process.process.terminate()

    def close(self) -> None:
        if self._process is not None and self._end is None:
            self._process.process.kill()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _latest_progress(self) -> Progress | None:
        """Read the process's messages; an end is kept until its files have been sent."""
        latest = None
        assert self._process is not None
        if self._end is None and self._sender.is_empty:
            wait([self._process.reports], timeout=POLL_SECONDS)
        while self._end is None and (message := self._process.receive()) is not None:
            if isinstance(message, Progress):
                latest = message
            elif isinstance(message, Told):
                sys.stderr.write(message.line)
            else:
                self._end, self._look_at = message, 0.0
        return latest


def run_on_cluster(
    job: TrialJob, sessions: Sequence[int], display: Watcher, stop: StopRequest
) -> Iterator[SessionEnd]:
    _check(job)
    assert job.options.ray_address is not None
    with cluster_ready(job.options.ray_address, own_modules(job.spec)):
        resources = _resources(job.spec, len(sessions))
        remote = {session: _RemoteSession(job, session, resources) for session in sessions}
        try:
            yield from _run_all(remote, display, stop)
        finally:
            for each in remote.values():
                each.release(at_once=True)


def _run_all(
    remote: dict[int, _RemoteSession], display: Watcher, stop: StopRequest
) -> Iterator[SessionEnd]:
    running = dict(remote)
    give_up_at = math.inf
    for each in running.values():
        each.start()
    while running:
        if stop() and give_up_at == math.inf:
            give_up_at = time.monotonic() + local.STOP_GRACE_SECONDS
            for session in [s for s, each in running.items() if not each.stop()]:
                del running[session]  # it never began
        ray.wait([each.answer for each in running.values()], timeout=POLL_SECONDS)
        for session, each in list(running.items()):
            news = each.poll(may_restart=not stop())
            if news is None and time.monotonic() > give_up_at:
                late = f"it did not stop within {local.STOP_GRACE_SECONDS:.0f} s; resume it later"
                news = SessionNews(end=SessionEnd(session, late))
            if news is None:
                continue
            if news.progress is not None:
                display.update(news.progress)
            if news.end is not None:
                del running[session]
                each.release()
                display.finish(session, news.end.describe())
                yield news.end


class _RemoteSession:
    """A session on the cluster, as this process sees it."""

    def __init__(self, job: TrialJob, session: int, resources: dict[str, float]) -> None:
        self._job, self._session, self._resources = job, session, resources
        self._receiver = shipping.FileReceiver(job.layout.predir)
        self._deaths = 0
        self._actor: Any = None
        self._has_begun = False
        self.answer: Any = None  # Ray's reference to the next news

    def start(self) -> None:
        """Queue for a node, and start the session there, from its checkpoint if it has one."""
        name = self._job.layout.session_name(self._job.trial, self._session)
        resumes = self._job.options.resume or self._deaths > 0
        cores = int(self._resources["num_cpus"])
        options = replace(self._job.options, resume=resumes, cores=cores)
        job = replace(self._job, options=options)
        host = ray.remote(SessionHost).options(scheduling_strategy="SPREAD", **self._resources)
        self._actor = host.remote(job, self._session)
        if resumes:
            for message in shipping.session_files(self._job.layout.predir, name):
                self._actor.receive.remote(message)
        self._actor.start.remote()
        self._has_begun = False
        self.answer = self._actor.news.remote()

    def poll(self, *, may_restart: bool) -> SessionNews | None:
        """The news that have arrived, their files written; None while there are none."""
        if not ray.wait([self.answer], timeout=0)[0]:
            return None
        try:
            news: SessionNews = ray.get(self.answer)
        except ray.exceptions.RayTaskError as error:  # a mistake of the host itself
            return SessionNews(end=SessionEnd(self._session, str(error).rstrip()))
        except ray.exceptions.RayError as error:
            return self._after_death(error, may_restart)
        self._has_begun = True
        received = [self._receiver.accept(message) for message in news.files]
        if not all(received):
            self._actor.send_again.remote()
        if news.end is None:
            self.answer = self._actor.news.remote()
        return news

    def stop(self) -> bool:
        """Ask for a clean end. False if the session has not begun, and has nothing to end."""
        if not self._has_begun:
            self.release()
            return False
        self._actor.stop.remote()
        return True

    def release(self, *, at_once: bool = False) -> None:
        """Free the node's resources; unless `at_once`, remove the scratch folder first."""
        if self._actor is None:
            return
        actor, self._actor = self._actor, None
        if self._has_begun and not at_once:
            # An error means that the actor is dead already, or does not answer.
            with suppress(ray.exceptions.RayError):
                ray.get(actor.close.remote(), timeout=CLOSE_SECONDS)
        ray.kill(actor)

    def _after_death(self, error: Exception, may_restart: bool) -> SessionNews:
        self._actor = None
        self._deaths += 1
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        lost = f"its node or process died ({reason})"
        if may_restart and self._deaths <= RESTARTS and _fits_some_node(self._resources):
            logger.warning(f"Session {self._session}: {lost}; it goes on elsewhere")
            self.start()
            return SessionNews()
        fix = "what had arrived of it is here, and a resume goes on from there"
        return SessionNews(end=SessionEnd(self._session, f"{lost}; {fix}"))


def _check(job: TrialJob) -> None:
    problems = []
    if job.spec.meta.distributed:
        found = f"found `{job.spec.meta.distributed}`; its workers share the memory of one machine"
        problems.append(Problem("meta.distributed", f"{found}. Leave --ray-address out."))
    if job.options.render:
        problems.append(Problem("--render", "a node of a cluster has no screen. Leave it out."))
    if problems:
        raise SpecError(problems, "a trial over several machines")


def _resources(spec: Spec, sessions: int) -> dict[str, float]:
    """Resources of one session; if it wants a GPU, all sessions share the GPUs there are."""
    wanted: dict[str, float] = {"num_cpus": spec.meta.threads or 1}
    gpus = sum(node.get("GPU", 0) for node in _nodes())
    if gpus and spec.agent.net.gpu is not False:
        wanted["num_gpus"] = 1 / math.ceil(max(sessions, 1) / gpus)
    if not _fits_some_node(wanted):
        most = max((node.get("CPU", 0) for node in _nodes()), default=0)
        message = f"found {wanted['num_cpus']:g}; no node has more than {most:g} cores"
        raise SpecError([Problem("meta.threads", message)], "a trial over several machines")
    return wanted


def _fits_some_node(wanted: dict[str, float]) -> bool:
    """Whether some node could take such a session, now or when others are done."""
    return any(
        node.get("CPU", 0) >= wanted["num_cpus"] and node.get("GPU", 0) >= wanted.get("num_gpus", 0)
        for node in _nodes()
    )


def _nodes() -> list[dict[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


@contextmanager
def cluster_ready(address: str, modules: Sequence[Path] = ()) -> Iterator[None]:
    """Connect to the cluster at an address, unless the caller has connected to a Ray already. This
    package and `modules` are sent to the nodes. The cluster is left running."""
    if ray.is_initialized():
        yield
        return
    code = [str(path) for path in (PACKAGE_ROOT / "slm_lab", *modules)]
    try:
        # Ray itself tries for minutes to reach an address where nothing listens.
        if match := re.fullmatch(r"(?:ray://)?([^:/]+):(\d+)", address):
            socket.create_connection((match[1], int(match[2])), timeout=CONNECT_SECONDS).close()
        with local.signals_kept():  # that of Ray for SIGTERM would end a run without a save
            ray.init(address=address, runtime_env={"py_modules": code}, **QUIET)
    except (OSError, ValueError, RuntimeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        message = (
            f"found `{address}`; no Ray cluster answers there: {reason}. Is it running, and does "
            "it want a token (RAY_AUTH_MODE=token)?"
        )
        raise SpecError([Problem("--ray-address", message)], "the command") from None
    try:
        yield
    finally:
        ray.shutdown()
