"""Rotation of checkpoints: a finished one takes the place of the one before it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def rotate(beside: Path, newest: Path) -> None:
    """Rename `newest` to `{newest}-1`, and `beside` to `newest`.

    After a kill between any two steps, the newest good checkpoint is one of these two.
    """
    older = newest.with_name(f"{newest.name}-1")
    if newest.exists():
        if older.exists():
            shutil.rmtree(older)
        newest.rename(older)
    beside.rename(newest)
    sync_folder(newest.parent)


def sync_folder(folder: Path) -> None:
    """Write the entries of a folder to disk, which makes a rename survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it if the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
