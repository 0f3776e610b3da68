"""Processes that end with the one that started them, however that one ended."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # of Linux's prctl


def end_with(wait: Callable[[], object]) -> None:
    """End this process at once when `wait` returns, which a thread waits for.

    `wait` reads from a pipe whose other end only the parent holds. The kernel closes that end when
    the parent dies, by whatever signal and on any system.
    """

    def watch() -> None:
        with suppress(EOFError, OSError):
            wait()
        os._exit(1)

    threading.Thread(target=watch, name="lifetime", daemon=True).start()


def end_with_parent() -> None:
    """End this process when the one that started it dies, where no pipe leads to it: on Linux.

    For processes of Ray, whose parent is its raylet, which in turn dies with the search.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel was asked
        os._exit(1)


def scratch_folder() -> Path:
    """Make a temporary folder for this process, and remove those of processes that were killed."""
    place = f"slm_lab_{socket.gethostname()}_"
    for folder in Path(tempfile.gettempdir()).glob(f"{place}*_*"):
        pid = folder.name.removeprefix(place).partition("_")[0]
        if pid.isdecimal() and not _lives(int(pid)) and folder.lstat().st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{place}{os.getpid()}_"))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's, or no process id at all
        return True
    return True
