"""How a finished checkpoint takes the place of the one before it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def rotate(beside: Path, newest: Path) -> None:
    """`beside` becomes `newest`, and that becomes `{newest}-1`.

    Killed between any two steps, the newest good one is one of these two.
    """
    older = newest.with_name(f"{newest.name}-1")
    if newest.exists():
        if older.exists():
            shutil.rmtree(older)
        newest.rename(older)
    beside.rename(newest)
    sync_folder(newest.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link(source: Path, target: Path) -> None:
    """The same file under a second name; a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
