"""One process at a time on a run folder.

The kernel holds the lock for as long as the process lives, so a dead one never does, however it
died. The file itself stays: it says who holds the lock, or died with it, and removing it would let
two processes lock two files of the same name. Over NFS the lock needs its lock service, as usual.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from loguru import logger

from slm_lab.error import LabError
from slm_lab.runs.files import open_for_locking, read_json

MAX_OWNER_BYTES = 1_000


class LockedError(LabError):
    """Another process works on the folder."""


@contextmanager
def locked(
    path: Path, what: str, *, folder: Path | None = None, patience: float = 0.0
) -> Iterator[None]:
    """Hold the lock `path`; `what` it protects is named in the error, after `patience` seconds.

    Below `folder`, by default the lock's own, a link is refused with a RunFolderError.
    """
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
        _sign(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        try:
            yield
        finally:
            _sign(descriptor, "")  # the process may go on to another folder
    finally:
        os.close(descriptor)  # which lets go of the lock


def _sign(descriptor: int, owner: str) -> None:
    with suppress(OSError):  # a full disk; the lock holds without a name
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, owner.encode(), 0)


def lock_holders() -> frozenset[int] | None:
    """Process ids that hold a lock on any file of this machine; None where the system is silent.

    For those who only look: asking by taking a lock could turn away a run that starts just then.
    """
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    # 1: FLOCK  ADVISORY  WRITE 10576 fe:00:2394609 0 EOF
    fields = (line.split() for line in lines)
    return frozenset(int(f[4]) for f in fields if len(f) > 4 and f[1] == "FLOCK")


def is_held(
    path: Path, holders: frozenset[int] | None, *, folder: Path | None = None
) -> bool | None:
    """Whether a process holds the lock, without touching it; None if it is on another machine."""
    try:
        if not os.lstat(path).st_size:  # let go of: asked of every run, at every look
            return False
        owner = read_json(folder or path.parent, path, MAX_OWNER_BYTES)
        pid, host = int(owner["pid"]), str(owner["host"])
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        OverflowError,
    ):  # no such file, or not a lock of ours
        return False
    if host != socket.gethostname():
        return None
    if holders is not None:
        return pid in holders
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's, or no process id at all
        return True
    return True


def _acquire(descriptor: int, path: Path, what: str, patience: float) -> None:
    give_up_at = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= give_up_at:
                raise LockedError(
                    f"{what} is in use by {_owner(path)}. Expected no other process on it. "
                    "Wait for it to end, or stop it."
                ) from None
        except OSError as error:  # a file system without locks
            logger.warning(f"{path}: no lock could be taken ({error.strerror})")
            return
        time.sleep(0.05)


def _owner(path: Path) -> str:
    try:
        owner = read_json(path.parent, path, MAX_OWNER_BYTES)
        return f"process {int(owner['pid'])} on {owner['host']!s:.80}"
    except (ValueError, KeyError, TypeError, OverflowError):
        return "another process"
