"""Processes that end with the one that started them, however that one ended."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

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
