"""Start processes so that Ctrl-C and SIGTERM reach each of them only when it can handle them."""

from __future__ import annotations

import signal
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess

from slm_lab.spec.main_module import without_main_module

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
CAN_BLOCK = hasattr(signal, "pthread_sigmask")  # not on Windows: a Ctrl-C may end what is starting


def start_process(process: BaseProcess) -> None:
    """Start a process that has the stop signals blocked until it calls `unblock_stop_signals`.

    A Ctrl-C while it imports would kill it. It does not run the main module again, so that a script
    needs no guard.
    """
    if CAN_BLOCK:
        resource_tracker.ensure_running()  # now, because starting it unblocks the signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        with without_main_module():
            process.start()
    finally:
        if CAN_BLOCK:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def block_stop_signals() -> None:
    """Leave the stop signals to other threads of this process."""
    if CAN_BLOCK:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def unblock_stop_signals() -> None:
    """Take the stop signals from now on; the handlers are set."""
    if CAN_BLOCK:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
