"""Consistent copy of a run folder, taken while the run goes on.

A run replaces its checkpoints, appends to its logs and rewrites its tables while the copy is
made. A checkpoint is copied whole or not at all: the names in its manifest are copied through a
handle on its folder, which a rotation renames and does not change. Other files are copied as they
are at some moment; a resume rewrites them from the checkpoint.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from loguru import logger

from slm_lab.hub.remote import file_entry, manifest_bytes
from slm_lab.runs.checkpoint_manifest import (
    MANIFEST,
    CheckpointError,
    FileEntry,
    load_manifest,
    read_manifest,
)
from slm_lab.runs.files import FOR_READING, HAS_HANDLES

# Locks, files that are being written, and checkpoints found damaged.
LEFT_OUT = (".lock", ".writing", ".damaged", ".tmp")
FALLBACK = "-1"  # ends the name of the checkpoint before; it is left out where the newest is good
ATTEMPTS = 5  # a checkpoint that is replaced while it is taken is tried again


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy, and its files by their path in it; its manifest lists all the others.

    `left_out` names files that were not copied: damaged ones, links and no plain files.
    """

    folder: Path
    files: Mapping[str, FileEntry]
    left_out: tuple[str, ...] = ()


def take_snapshot(run_dir: Path, into: Path) -> Snapshot:
    """Copy a run folder into an empty or absent folder on the same disk."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    left_out: list[str] = []
    files = dict(_take_folder(run_dir, into, "", left_out))
    (into / MANIFEST).write_bytes(manifest_bytes(files))
    return Snapshot(into, files | {MANIFEST: file_entry(into / MANIFEST)}, tuple(left_out))


def _take_folder(
    source: Path, into: Path, prefix: str, left_out: list[str]
) -> Iterator[tuple[str, FileEntry]]:
    folders: list[str] = []
    for entry in _listed(source):
        if entry.name.startswith(".") or entry.name.endswith(LEFT_OUT):
            continue
        if entry.is_dir(follow_symlinks=False):
            folders.append(entry.name)
        elif entry.is_file(follow_symlinks=False):
            if not prefix and entry.name == MANIFEST:
                continue  # of the last push or pull
            copied = _copy(Path(entry.path), into / entry.name)
            if copied is not None:
                yield prefix + entry.name, copied
        else:
            left_out.append(prefix + entry.name)
            logger.warning(f"{entry.path}: a link or no plain file, not shared")
    slots = {name.removesuffix(FALLBACK) for name in folders}
    slots = {slot for slot in slots if _is_slot(source, slot)}
    for slot in sorted(slots):
        files = _take_checkpoint(source, slot, into / slot)
        if not files:
            left_out.append(prefix + slot)
        yield from ((f"{prefix}{slot}/{file}", entry) for file, entry in files.items())
    for name in sorted(folders):
        if name.removesuffix(FALLBACK) not in slots:
            (into / name).mkdir()
            yield from _take_folder(source / name, into / name, f"{prefix}{name}/", left_out)


def _is_slot(parent: Path, slot: str) -> bool:
    """Whether checkpoints are kept under this name: a folder with a manifest, written last.

    During a rotation only the fallback exists, and it may be renamed between two looks. Taken for a
    plain folder, the checkpoint would be missing from the copy. Hence several attempts.
    """
    names = (slot, slot + FALLBACK)
    return any((parent / name / MANIFEST).is_file() for _ in range(ATTEMPTS) for name in names)


def _take_checkpoint(parent: Path, slot: str, into: Path) -> dict[str, FileEntry]:
    """Copy the newest good checkpoint of a slot; returns no files if there is none."""
    for _ in range(ATTEMPTS):
        for name in (slot, slot + FALLBACK):
            try:
                return _take_sealed(parent / name, into)
            except (OSError, CheckpointError):  # being replaced, or damaged
                shutil.rmtree(into, ignore_errors=True)
    logger.debug(f"{parent / slot}: no whole checkpoint to share at this moment")
    return {}


def _take_sealed(folder: Path, into: Path) -> dict[str, FileEntry]:
    if not HAS_HANDLES:  # a rotation meanwhile shows in the checksums
        return _take_listed(None, folder, into)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        return _take_listed(handle, Path(), into)
    finally:
        os.close(handle)


def _take_listed(handle: int | None, folder: Path, into: Path) -> dict[str, FileEntry]:
    """Copy a checkpoint's manifest and the files in it; `folder` is relative to the handle."""
    into.mkdir()
    _link(handle, folder / MANIFEST, into / MANIFEST)
    # Read where it was linked to: its files are then taken from the same folder, by the handle.
    for name in load_manifest(into).files:
        _link(handle, folder / name, into / name)
    manifest = read_manifest(into)
    return {**manifest.files, MANIFEST: file_entry(into / MANIFEST)}


def _link(handle: int | None, source: Path, target: Path) -> None:
    """Link a file of a checkpoint, which is never written to again; copy it without links."""
    if not stat.S_ISREG(os.stat(source, dir_fd=handle, follow_symlinks=False).st_mode):
        raise FileNotFoundError(2, "no plain file", str(source))
    try:
        os.link(source, target, src_dir_fd=handle, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except (OSError, NotImplementedError):  # not every file system has links
        descriptor = os.open(source, FOR_READING, dir_fd=handle)
        with open(descriptor, "rb") as reader, target.open("wb") as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)


def _copy(source: Path, target: Path) -> FileEntry | None:
    try:
        shutil.copyfile(source, target, follow_symlinks=False)
    except FileNotFoundError:  # files come and go while a run goes on
        return None
    return file_entry(target)


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
