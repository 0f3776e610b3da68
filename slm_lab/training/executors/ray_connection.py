"""Connect to Ray, for searches and for trials on a cluster."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slm_lab.spec import Problem, SpecError

# Ray reads these when it is imported: no usage reports, and a process that asks for no GPU still
# sees those of its machine.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

import ray as ray  # read from here, so that the settings above come first

CONNECT_SECONDS = 10.0
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


@contextmanager
def cluster_ready(address: str, modules: Sequence[Path] = ()) -> Iterator[None]:
    """Connect to the cluster at an address, unless the caller has connected to a Ray already.

    The cluster is left running. This package and `modules` are sent to the nodes, whatever version
    these have.
    """
    if ray.is_initialized():
        yield
        return
    code = [str(path) for path in (package_root() / "slm_lab", *modules)]
    try:
        _check_listening(address)
        with signals_kept():
            ray.init(address=address, runtime_env={"py_modules": code}, **QUIET)
    except (OSError, ValueError, RuntimeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        message = (
            f"found `{address}`; no Ray cluster answers there: {reason}. Is it running, and does "
            "it want a token (RAY_AUTH_MODE=token)?"
        )
        raise SpecError([Problem("--ray-address", message)], "the command") from None
    try:
        yield
    finally:
        ray.shutdown()


def package_root() -> Path:
    """The folder that holds the package slm_lab."""
    return Path(__file__).resolve().parents[3]


def _check_listening(address: str) -> None:
    """Fail early: Ray itself tries for minutes to reach an address where nothing listens."""
    if match := re.fullmatch(r"(?:ray://)?([^:/]+):(\d+)", address):
        socket.create_connection((match[1], int(match[2])), timeout=CONNECT_SECONDS).close()


@contextmanager
def signals_kept() -> Iterator[None]:
    """Restore signal handlers: that of `ray.init` for SIGTERM would end a run without a save."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
