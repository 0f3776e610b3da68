"""A process that is killed, or fails, at a step of our choice of what it does to its files."""

from __future__ import annotations

import builtins
import io
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

CHANGES = ("fsync", "link", "rename", "replace", "mkdir", "unlink", "rmdir")


@contextmanager
def killed_at(at: int) -> Iterator[Callable[[], int]]:
    """Send SIGKILL to this process at its `at`-th change of a file system; yields a step counter.

    A step is a change that does not happen any more, or a file that was opened for writing and
    stays empty. For a child that was forked: what is patched here stays patched.
    """

    def kill(step: int) -> None:
        if step == at:
            os.kill(os.getpid(), signal.SIGKILL)

    yield before_each_change(kill)


def _is_no_file(file: Any) -> bool:
    """Whether it is the descriptor of a pipe, to a process that is being started for example."""
    return isinstance(file, int) and not stat.S_ISREG(os.fstat(file).st_mode)


def before_each_change(act: Callable[[int], None]) -> Callable[[], int]:
    """Call `act` with the number of the step before each change; returns the number so far.

    It is never undone: for a child that was forked.
    """
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        act(count)

    def before(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            step()
            return original(*arguments, **options)

        return call

    def around_writing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if not set(mode) & set("wax+") or _is_no_file(file):
                return original(file, mode, *arguments, **options)
            step()
            opened = original(file, mode, *arguments, **options)
            step()
            return opened

        return call

    def open_descriptor(original: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR):
                step()
            return original(path, flags, *arguments, **options)

        return call

    for name in CHANGES:
        setattr(os, name, before(getattr(os, name)))
    os.open = open_descriptor(os.open)
    builtins.open = around_writing(builtins.open)
    io.open = builtins.open
    torch.save = before(torch.save)
    return lambda: count
