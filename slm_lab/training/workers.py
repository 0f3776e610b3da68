"""`meta.distributed`: the sessions of a trial as workers that train one set of nets.

This half needs no torch, because the trial's own process has none; `distributed.py` is the other.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

from slm_lab.spec import Spec


class SharedFile:
    """A file in memory that processes can be started with, and a lock on it.

    It has no name: when the last process that has it is gone, however it went, so is the file. The
    kernel holds the lock for a process, so one that dies with the lock holds up nobody.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[Callable[..., SharedFile], tuple[Any]]:
        return _inherited, (reduction.DupFd(self.descriptor),)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Wait for the lock and hold it. Between processes: threads of one are not kept apart."""
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)


def _inherited(duplicate: Any) -> SharedFile:
    return SharedFile(duplicate.detach())


@dataclass(frozen=True, slots=True)
class SharedNets:
    """How the workers find each other: a file that all of them map, and how they take turns."""

    file: SharedFile
    workers: int
    synced: bool


@contextmanager
def shared_nets(spec: Spec) -> Iterator[SharedNets | None]:
    """The meeting place of a trial's workers while it runs; None where each trains its own nets."""
    if not spec.meta.distributed or spec.meta.max_session == 1:
        yield None
        return
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # a file that is never written out
    with tempfile.TemporaryFile(dir=memory) as file:
        is_synced = spec.meta.distributed == "synced"
        yield SharedNets(SharedFile(file.fileno()), spec.meta.max_session, is_synced)


def worker_spec(spec: Spec) -> Spec:
    """What one worker does: its part of the frames.

    Schedules stay whole, those of learning rates too: a worker counts the frames of all workers.
    """
    whole = spec.to_dict()["agent"]["algorithm"]  # with schedules that are a default's
    part = -(-spec.env.max_frame // spec.meta.max_session)
    return spec.with_values({"env.max_frame": part, "agent.algorithm": whole})
