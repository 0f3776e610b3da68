"""The sessions of a trial on the nodes of a Ray cluster, their files gathered in one folder here.

An actor per session, on whichever node has room, starts the session as a process of its own, just
as this machine would, in a scratch folder of that node. It is asked again and again for what is
new: progress, files (see `shipping.py`), and in the end how the session ended. The run folder here
is therefore never far behind, and a session whose node dies goes on elsewhere from the last
checkpoint that arrived.
"""

from __future__ import annotations

import math
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from loguru import logger

from slm_lab.runs.layout import FOLDERS, RunLayout
from slm_lab.spec import Problem, Spec, SpecError
from slm_lab.training.console import Progress, TrialDisplay
from slm_lab.training.executors.local import SessionProcess
from slm_lab.training.executors.ray_connection import cluster_ready, ray
from slm_lab.training.executors.session_job import (
    STOP_GRACE_SECONDS,
    SessionEnd,
    StopRequest,
    TrialJob,
)
from slm_lab.training.executors.shipping import Inbox, Outbox, Parcel, session_files, write_plain
from slm_lab.training.lifetime import scratch_folder

SHIP_SECONDS = 5.0  # between two looks for changed files
POLL_SECONDS = 0.5  # how long an actor waits for news before it answers
BULLETIN_BYTES = 32_000_000  # of files in one answer
CLOSE_SECONDS = 5.0
DEATHS = 3  # how often a session is started again after its node died


@dataclass(frozen=True, slots=True)
class Bulletin:
    """What is new of a session. Its end comes last, when all files have been sent."""

    progress: Progress | None
    parcels: list[Parcel]
    end: SessionEnd | None


class SessionHost:
    """On a node: a session's process, and its scratch folder."""

    def __init__(self, job: TrialJob, session: int) -> None:
        self._scratch = scratch_folder()
        layout = RunLayout(self._scratch / job.layout.predir.name, job.layout.name)
        for folder in FOLDERS:
            (layout.predir / folder).mkdir(parents=True)
        self._job, self._session = replace(job, layout=layout), session
        self._process: SessionProcess | None = None
        self._end: SessionEnd | None = None
        self._look_at = 0.0

    def bring(self, parcels: list[Parcel]) -> None:
        """Take what the session needs to go on; before `start`."""
        for parcel in parcels:
            write_plain(self._job.layout.predir, parcel)

    def start(self) -> None:
        self._outbox = Outbox(self._job.layout.predir)
        self._process = SessionProcess.start(self._job, self._session)
        self._look_at = time.monotonic() + SHIP_SECONDS

    def news(self) -> Bulletin:
        progress = self._listen()
        if self._outbox.is_empty and time.monotonic() >= self._look_at:
            self._outbox.look()
            # The last look comes after the end, when nothing changes any more.
            self._look_at = math.inf if self._end else time.monotonic() + SHIP_SECONDS
        parcels = self._outbox.take(BULLETIN_BYTES)
        is_over = self._look_at == math.inf and self._outbox.is_empty
        return Bulletin(progress, parcels, self._end if is_over else None)

    def send_again(self) -> None:
        self._outbox.forget()

    def stop(self) -> None:
        """The session ends its step and writes its files."""
        if self._process is not None and self._end is None:
            self._process.process.terminate()

    def close(self) -> None:
        if self._process is not None and self._end is None:
            self._process.process.kill()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _listen(self) -> Progress | None:
        """The latest progress; an end is kept until the files that belong to it are sent."""
        latest = None
        assert self._process is not None
        if self._end is None and self._outbox.is_empty:
            wait([self._process.reports], timeout=POLL_SECONDS)
        while self._end is None and (message := self._process.receive()) is not None:
            if isinstance(message, Progress):
                latest = message
            else:
                self._end, self._look_at = message, 0.0
        return latest


def run_on_cluster(
    job: TrialJob, sessions: Sequence[int], display: TrialDisplay, stop: StopRequest
) -> Iterator[SessionEnd]:
    _check(job)
    assert job.options.ray_address is not None
    with cluster_ready(job.options.ray_address, _own_modules(job.spec)):
        resources = _resources(job.spec, len(sessions))
        guests = {session: _Guest(job, session, resources) for session in sessions}
        try:
            yield from _attend(guests, display, stop)
        finally:
            for guest in guests.values():  # of those that are still there
                guest.leave(in_haste=True)


def _attend(
    guests: dict[int, _Guest], display: TrialDisplay, stop: StopRequest
) -> Iterator[SessionEnd]:
    present = dict(guests)
    give_up_at = math.inf
    for guest in present.values():
        guest.arrive()
    while present:
        if stop() and give_up_at == math.inf:
            give_up_at = time.monotonic() + STOP_GRACE_SECONDS
            for session in [s for s, guest in present.items() if not guest.stop()]:
                del present[session]  # it never began
        ray.wait([guest.asked for guest in present.values()], timeout=POLL_SECONDS)
        for session, guest in list(present.items()):
            bulletin = guest.listen(may_return=not stop())
            if bulletin is None and time.monotonic() > give_up_at:
                late = f"it did not stop within {STOP_GRACE_SECONDS:.0f} s; resume it later"
                bulletin = Bulletin(None, [], SessionEnd(session, late))
            if bulletin is None:
                continue
            if bulletin.progress is not None:
                display.update(bulletin.progress)
            if bulletin.end is not None:
                del present[session]
                guest.leave()
                display.finish(session, bulletin.end.last_words())
                yield bulletin.end


class _Guest:
    """A session elsewhere, as this process sees it."""

    def __init__(self, job: TrialJob, session: int, resources: dict[str, float]) -> None:
        self._job, self._session, self._resources = job, session, resources
        self._inbox = Inbox(job.layout.predir)
        self._deaths = 0
        self._actor: Any = None
        self._has_begun = False
        self.asked: Any = None

    def arrive(self) -> None:
        """Ask for room, and for the session to be started there, from its checkpoint if any."""
        name = self._job.layout.session_name(self._job.trial, self._session)
        goes_on = self._job.options.resume or self._deaths > 0
        job = replace(self._job, options=replace(self._job.options, resume=goes_on))
        host = ray.remote(SessionHost).options(scheduling_strategy="SPREAD", **self._resources)
        self._actor = host.remote(job, self._session)
        if goes_on:
            for parcel in session_files(self._job.layout.predir, name):
                self._actor.bring.remote([parcel])
        self._actor.start.remote()
        self._has_begun = False
        self.asked = self._actor.news.remote()

    def listen(self, *, may_return: bool) -> Bulletin | None:
        """The answer to what was asked last, its files put in place; None while there is none."""
        if not ray.wait([self.asked], timeout=0)[0]:
            return None
        try:
            bulletin: Bulletin = ray.get(self.asked)
        except ray.exceptions.RayTaskError as error:  # a mistake of the host itself
            return Bulletin(None, [], SessionEnd(self._session, str(error).rstrip()))
        except ray.exceptions.RayError as error:
            return self._after_death(error, may_return)
        self._has_begun = True
        received = [self._inbox.accept(parcel) for parcel in bulletin.parcels]
        if not all(received):
            self._actor.send_again.remote()
        if bulletin.end is None:
            self.asked = self._actor.news.remote()
        return bulletin

    def stop(self) -> bool:
        """Ask for a clean end. False if it has not begun, and need not be waited for."""
        if not self._has_begun:
            self.leave()
            return False
        self._actor.stop.remote()
        return True

    def leave(self, *, in_haste: bool = False) -> None:
        """Give the room back, with nothing left behind on the node unless in haste."""
        if self._actor is None:
            return
        actor, self._actor = self._actor, None
        if self._has_begun and not in_haste:
            # An error means that it is dead already, or does not answer.
            with suppress(ray.exceptions.RayError):
                ray.get(actor.close.remote(), timeout=CLOSE_SECONDS)
        ray.kill(actor)

    def _after_death(self, error: Exception, may_return: bool) -> Bulletin:
        self._actor = None
        self._deaths += 1
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        lost = f"its node or process died ({reason})"
        if may_return and self._deaths <= DEATHS and _has_room(self._resources):
            logger.warning(f"Session {self._session}: {lost}; it goes on elsewhere")
            self.arrive()
            return Bulletin(None, [], None)
        fix = "what had arrived of it is here, and a resume goes on from there"
        return Bulletin(None, [], SessionEnd(self._session, f"{lost}; {fix}"))


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
    """What one session takes; the GPUs there are, if it wants one, are shared by all sessions."""
    wanted: dict[str, float] = {"num_cpus": spec.meta.threads or 1}
    gpus = sum(node.get("GPU", 0) for node in _nodes())
    if gpus and spec.agent.net.gpu is not False:
        wanted["num_gpus"] = 1 / math.ceil(max(sessions, 1) / gpus)
    if not _has_room(wanted):
        most = max((node.get("CPU", 0) for node in _nodes()), default=0)
        message = f"found {wanted['num_cpus']:g}; no node has more than {most:g} cores"
        raise SpecError([Problem("meta.threads", message)], "a trial over several machines")
    return wanted


def _has_room(wanted: dict[str, float]) -> bool:
    """Whether there is a node that could take such a session, now or when others are done."""
    return any(
        node.get("CPU", 0) >= wanted["num_cpus"] and node.get("GPU", 0) >= wanted.get("num_gpus", 0)
        for node in _nodes()
    )


def _nodes() -> list[dict[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _own_modules(spec: Spec) -> list[Path]:
    """The module of `env.name: my_module:MyEnv-v0`, where it lies in the working directory."""
    module, colon, _ = spec.env.name.partition(":")
    if not colon or not re.fullmatch(r"\w+(\.\w+)*", module):
        return []
    top = module.partition(".")[0]
    return [path.resolve() for path in (Path(f"{top}.py"), Path(top)) if path.exists()][:1]
