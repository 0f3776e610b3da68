"""Locks that keep two processes from working on one run folder.

The kernel holds a lock for as long as its process lives, so a dead process never holds one. The
lock file stays behind: removing it would let two processes lock two files of the same name. While
the lock is held the file names its owner. Over NFS the lock needs the lock service of NFS.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from filelock import lock_descriptor
from loguru import logger

from slm_lab.error import LabError
from slm_lab.runs.files import open_for_locking, read_json

MAX_OWNER_BYTES = 1_000
CLOCK_SECONDS = 1.0  # by which the start of a process may be read differently the next time


class LockedError(LabError):
    """Another process works on the folder."""


@contextmanager
def locked(
    path: Path, what: str, *, folder: Path | None = None, patience: float = 0.0
) -> Iterator[None]:
    """Hold the lock `path`, or raise a LockedError that names `what`, after `patience` seconds. A
    link below `folder`, by default the folder of the lock, is refused."""
    folder = folder or path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = open_for_locking(folder, path)
    except OSError as error:
        # A folder nobody can write to needs no lock: nothing in it can be lost.
        logger.warning(f"{path}: no lock could be taken ({error.strerror})")
        yield
        return
    try:
        _acquire(descriptor, path, what, patience)
        started = psutil.Process().create_time()
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "started": started}
        _write_owner(descriptor, json.dumps(owner))
        try:
            yield
        finally:
            _write_owner(descriptor, "")  # the process may go on to another folder
    finally:
        os.close(descriptor)  # which releases the lock


def is_held(path: Path, *, folder: Path | None = None) -> bool | None:
    """Whether a process holds the lock; None if its owner is on another machine.

    The lock is not touched: taking it, even for a moment, could turn away a run that starts just
    then. The file names its holder. A process that started later has only got the same id.
    """
    try:
        status = os.lstat(path)
        if not status.st_size:  # released
            return False
        owner = read_json(folder or path.parent, path, MAX_OWNER_BYTES)
        pid, host = int(owner["pid"]), str(owner["host"])
        # Files of earlier versions do not say when their owner started.
        started = float(owner.get("started", status.st_mtime))
        if host != socket.gethostname():
            return None
        process = psutil.Process(pid)
        is_same = bool(process.create_time() <= started + CLOCK_SECONDS)
        return is_same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.AccessDenied:  # a process of somebody else
        return True
    except (OSError, ValueError, KeyError, TypeError, OverflowError, psutil.NoSuchProcess):
        return False  # no such file, not a lock of ours, or a dead owner


def _write_owner(descriptor: int, owner: str) -> None:
    with suppress(OSError):  # a full disk; the lock is held all the same
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, owner.encode())


def _acquire(descriptor: int, path: Path, what: str, patience: float) -> None:
    give_up_at = time.monotonic() + patience
    try:
        while not lock_descriptor(descriptor, blocking=False):
            if time.monotonic() >= give_up_at:
                raise LockedError(
                    f"{what} is in use by {_owner(path)}. Expected no other process on it. "
                    "Wait for it to end, or stop it."
                )
            time.sleep(0.05)
    except OSError as error:  # a file system without locks
        logger.warning(f"{path}: no lock could be taken ({error.strerror})")


def _owner(path: Path) -> str:
    try:
        owner = read_json(path.parent, path, MAX_OWNER_BYTES)
        return f"process {int(owner['pid'])} on {owner['host']!s:.80}"
    except (ValueError, KeyError, TypeError, OverflowError):
        return "another process"
