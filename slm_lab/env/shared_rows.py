"""Rows of a batch in memory that several processes map."""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

import numpy as np

from slm_lab.env.error import EnvError

_ALIGNMENT = 64  # bytes: a cache line

Layout = Sequence[tuple[tuple[int, ...], str]]
"""Shape and dtype of each array in the memory."""


@dataclass(frozen=True, slots=True)
class SharedRows:
    """Arrays that all processes see, one row per env. Two arrays of observations take turns."""

    actions: np.ndarray  # in the env's own units
    obs: tuple[np.ndarray, np.ndarray]
    final_obs: np.ndarray  # rows of episodes that ended, others are left as they were
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    @classmethod
    def mapped(cls, file: IO[bytes], layout: Layout, slots: slice = slice(None)) -> SharedRows:
        """Map the file. The arrays keep the memory, also when the file is removed."""
        memory = mmap.mmap(file.fileno(), _size(layout))
        arrays, start = [], 0
        for shape, dtype in layout:
            array = np.ndarray(shape, dtype, memory, start)
            arrays.append(array[slots])
            start += _padded(array.nbytes)
        actions, obs, other_obs, *others = arrays
        return cls(actions, (obs, other_obs), *others)


def rows_layout(actions: np.ndarray, obs: np.ndarray) -> Layout:
    """The layout of batches whose actions and observations are like these."""
    flags, reward = (obs.shape[:1], "bool"), (obs.shape[:1], "float32")
    rows = [(obs.shape, obs.dtype.str)] * 3
    return [(actions.shape, actions.dtype.str), *rows, reward, flags, flags]


def _size(layout: Layout) -> int:
    return sum(_padded(int(np.prod(shape)) * np.dtype(dtype).itemsize) for shape, dtype in layout)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


@contextmanager
def memory_file(layout: Layout) -> Iterator[IO[bytes]]:
    """A file in memory that has a name only here, until all processes have mapped it."""
    if sys.platform == "win32":
        raise EnvError(
            "env.backend: `subprocess` shares a file between processes, which Windows does not "
            "allow. Use `gymnasium`, or WSL."
        )
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.NamedTemporaryFile(prefix="slm_lab_env_", dir=folder) as file:
        size = _size(layout)
        try:
            file.truncate(size)
            if hasattr(os, "posix_fallocate"):  # now: a page that is missing later is a SIGBUS
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise EnvError(
                f"env.num_envs: the rows of all envs take {size:,} bytes of shared memory, more "
                f"than {os.path.dirname(file.name)} has ({error.strerror}). Lower it, or give the "
                "container more (docker run --shm-size)."
            ) from error
        yield file
