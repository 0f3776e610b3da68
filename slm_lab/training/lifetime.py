"""Processes that end with the one that started them, however that one ended."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil


def end_with(wait: Callable[[], object]) -> None:
    """End this process at once when `wait` returns, which a thread waits for.

    `wait` may read from a pipe whose other end only the parent holds. The system closes that end
    when the parent dies, by whatever signal.
    """

    def watch() -> None:
        with suppress(EOFError, OSError):
            wait()
        os._exit(1)

    threading.Thread(target=watch, name="lifetime", daemon=True).start()


def end_with_parent() -> None:
    """End this process when the one that started it dies, and no pipe leads to it.

    For processes of Ray: their parent is its raylet, which dies with the search.
    """
    try:
        parent = psutil.Process(os.getppid())
    except psutil.NoSuchProcess:  # it died before it could be watched
        os._exit(1)
    end_with(parent.wait)


def scratch_folder() -> Path:
    """Make a temporary folder for this process, and remove those of processes that were killed."""
    prefix = f"slm_lab_{socket.gethostname()}_"
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*_*"):
        pid = folder.name.removeprefix(prefix).partition("_")[0]
        if pid.isdecimal() and not _is_alive(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}_"))


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.pid_exists(pid))
    except OverflowError:  # no process id at all
        return True
