"""`meta.distributed`: the sessions of a trial as workers that train one set of nets.

This half needs no torch, because the trial's own process has none; `distributed.py` is the other.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Lock
from pathlib import Path
from typing import Any

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
    """What one worker does: its part of the frames, over which its learning rate decays too.

    Schedules of frames stay whole: a worker counts those of all workers for them.
    """
    workers = spec.meta.max_session
    agent = spec.to_dict()["agent"]
    changes: dict[str, Any] = {"env.max_frame": -(-spec.env.max_frame // workers)}
    changes["agent.algorithm"] = agent["algorithm"]  # schedules of the whole budget, defaults too
    for block in ("net", "critic_net"):
        for key, value in agent.get(block, {}).items():
            if (
                key.endswith("lr_scheduler_spec")
                and isinstance(value, Mapping)
                and "frame" in value
            ):
                changes[f"agent.{block}.{key}.frame"] = max(1, int(value["frame"]) // workers)
    return spec.with_values(changes)
