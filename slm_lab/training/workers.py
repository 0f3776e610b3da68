"""`meta.distributed`: what connects the sessions of a trial that train one set of nets.

This half needs no torch, because the trial's own process imports none; `distributed.py` is the
other half.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

from slm_lab.spec import Problem, Spec, SpecError

try:
    import fcntl
except ImportError:  # Windows
    HAS_FILE_LOCKS = False
else:
    HAS_FILE_LOCKS = True


class SharedFile:
    """A file in memory that child processes inherit, and a lock on it.

    The file has no name: it disappears with the last process that has it open, however that one
    ends. The kernel releases the lock of a process that dies, so that no other waits for ever.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[Callable[..., SharedFile], tuple[Any]]:
        return _inherited, (reduction.DupFd(self.descriptor),)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Wait for the lock and hold it, against other processes but not other threads."""
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)


def _inherited(duplicate: Any) -> SharedFile:
    return SharedFile(duplicate.detach())


@dataclass(frozen=True, slots=True)
class SharedNets:
    """The file that all workers map into memory, their number, and whether they take turns."""

    file: SharedFile
    workers: int
    synced: bool


@contextmanager
def shared_nets(spec: Spec) -> Iterator[SharedNets | None]:
    """The shared nets of a trial while it runs; None if each session trains its own."""
    if not spec.meta.distributed or spec.meta.max_session == 1:
        yield None
        return
    if not HAS_FILE_LOCKS:
        found = f"found `{spec.meta.distributed}`; this system has no locks for its workers"
        raise SpecError([Problem("meta.distributed", f"{found}. Leave it out.")], spec.name)
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # a file that is never written out
    with tempfile.TemporaryFile(dir=memory) as file:
        is_synced = spec.meta.distributed == "synced"
        yield SharedNets(SharedFile(file.fileno()), spec.meta.max_session, is_synced)


def worker_spec(spec: Spec) -> Spec:
    """The spec of one worker, with its part of the frames. Schedules keep their length: a worker
    counts the frames of all."""
    whole = spec.to_dict()["agent"]["algorithm"]  # with schedules that are a default's
    part = -(-spec.env.max_frame // spec.meta.max_session)
    return spec.with_values({"env.max_frame": part, "agent.algorithm": whole})
