"""`meta.distributed`: the sessions of a trial as workers that train one set of nets.

This half needs no torch, because the trial's own process has none; `distributed.py` is the other.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Lock
from pathlib import Path

from slm_lab.spec import Spec


@dataclass(frozen=True, slots=True)
class SharedNets:
    """How the workers find each other: a file that all of them map, and whose turn it is."""

    path: str
    lock: Lock
    workers: int
    synced: bool


@contextmanager
def shared_nets(spec: Spec) -> Iterator[SharedNets | None]:
    """The meeting place of a trial's workers while it runs; None where each trains its own nets."""
    if not spec.meta.distributed or spec.meta.max_session == 1:
        yield None
        return
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # a file that is never written out
    handle, path = tempfile.mkstemp(prefix="slm_lab_nets_", dir=memory)
    os.close(handle)
    lock = multiprocessing.get_context("spawn").Lock()
    try:
        yield SharedNets(path, lock, spec.meta.max_session, spec.meta.distributed == "synced")
    finally:
        Path(path).unlink(missing_ok=True)


def worker_spec(spec: Spec) -> Spec:
    """What one worker does: its part of the frames.

    Schedules stay whole, those of learning rates too: a worker counts the frames of all workers.
    """
    whole = spec.to_dict()["agent"]["algorithm"]  # with schedules that are a default's
    part = -(-spec.env.max_frame // spec.meta.max_session)
    return spec.with_values({"env.max_frame": part, "agent.algorithm": whole})
