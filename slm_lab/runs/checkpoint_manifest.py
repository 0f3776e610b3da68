"""Manifest of a checkpoint: its counters, and the size and checksum of every file.

A checkpoint may have been downloaded, so nothing here trusts it: names must be plain file names
of its own folder, sizes are compared before anything is read, and nothing is ever unpickled.
Imports no torch, so that a trial can check its sessions' checkpoints at no cost.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slm_lab.error import LabError
from slm_lab.runs.files import HAS_HANDLES, open_for_reading, read_bytes
from slm_lab.spec.run_folder import RunFolderError

SCHEMA = 2  # of the state that a checkpoint holds; manifests of all schemas are read
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 4_000_000


class CheckpointError(LabError, RuntimeError):
    """A checkpoint that cannot be used; the message names the file and the reason."""

    exit_code = 1

    def __init__(self, path: Path, found: str) -> None:
        self.path = path
        super().__init__(f"{path}: {found}")


class OldCheckpointError(CheckpointError):
    """A whole checkpoint whose state was written by an earlier version of slm-lab."""

    def __init__(self, path: Path, manifest: CheckpointManifest) -> None:
        version = f"slm-lab {manifest.versions.get('slm-lab', '(unknown)')}"
        found = f"was written by {version} with schema {manifest.schema}; expected {SCHEMA}"
        fix = "Resume with that version, or start a new run."
        uses = "Its models still work in enjoy, eval and export."
        super().__init__(path, f"{found}. {fix} {uses}")


@dataclass(frozen=True, slots=True)
class FileEntry:
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """`counters` are frame, opt_step, updates; `finished` says that the budget was used up, or that
    a callback ended the session, for the `stop_reason`."""

    session: str
    spec_sha256: str
    versions: Mapping[str, str]
    counters: Mapping[str, int]
    finished: bool
    saved_at: str
    files: Mapping[str, FileEntry]
    schema: int = SCHEMA
    stop_reason: str = ""

    @property
    def frame(self) -> int:
        return self.counters["frame"]

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files.values())

    def to_bytes(self) -> bytes:
        return sealed(asdict(self))


def read_manifest(folder: Path, *, run_dir: Path | None = None) -> CheckpointManifest:
    """Read the manifest of a checkpoint and check that all its files exist in the stated sizes;
    `check_files` checks the checksums, which takes a while. `run_dir` is the run folder, if known.
    """
    manifest = load_manifest(folder, run_dir=run_dir)
    for name, entry in manifest.files.items():
        actual = _regular_size(folder / name)
        if actual != entry.size:
            raise CheckpointError(folder / name, f"has {actual:,} bytes, expected {entry.size:,}")
    return manifest


def load_manifest(folder: Path, *, run_dir: Path | None = None) -> CheckpointManifest:
    """Read the manifest of a checkpoint, and check it but for the files that it names."""
    path = folder / MANIFEST
    try:
        data = read_bytes(run_dir or folder, path, MAX_MANIFEST_BYTES)
    except RunFolderError as error:
        raise CheckpointError(path, str(error).removeprefix(f"{path}: ")) from None
    try:
        content = unsealed(data)
    except ValueError as error:
        raise CheckpointError(path, f"is damaged ({error!s:.100})") from None
    if content.get("schema") not in range(1, SCHEMA + 1):
        found = f"found schema {content.get('schema')!r:.20}, this version reads {SCHEMA}"
        raise CheckpointError(path, f"{found}. Resume with the version of slm-lab that wrote it.")
    manifest = _build(content, path)
    for name in manifest.files:
        if not is_plain_name(name):
            raise CheckpointError(path, f"names {name!r:.80}, which is no file of its folder")
    return manifest


def check_file(path: Path, entry: FileEntry) -> None:
    """Raise a CheckpointError unless the file has the checksum of its entry."""
    try:
        with open_for_reading(path.parent, path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except RunFolderError as error:
        raise CheckpointError(path, str(error).removeprefix(f"{path}: ")) from None
    if digest != entry.sha256:
        raise CheckpointError(path, "is damaged (its checksum does not match)")


def check_files(folder: Path, manifest: CheckpointManifest) -> None:
    for name, entry in manifest.files.items():
        check_file(folder / name, entry)


def is_plain_name(name: str) -> bool:
    """Whether a name can only refer to a file directly in its folder."""
    return name not in ("", ".", "..") and not any(c in name for c in "/\\:\0")


def _regular_size(path: Path) -> int:
    """Size of a plain file; a link may lead out of the folder and is refused."""
    try:
        status = path.lstat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(path, f"cannot be read ({reason})") from None
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(path, "is no plain file")
    return status.st_size


def _build(content: dict[str, Any], path: Path) -> CheckpointManifest:
    try:
        return CheckpointManifest(
            session=str(content["session"]),
            spec_sha256=str(content["spec_sha256"]),
            versions={str(k): str(v) for k, v in content["versions"].items()},
            counters={str(k): int(v) for k, v in content["counters"].items()},
            finished=bool(content["finished"]),
            saved_at=str(content["saved_at"]),
            files=file_entries(content["files"]),
            schema=int(content["schema"]),
            stop_reason=str(content.get("stop_reason", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(path, f"is no manifest ({error!r:.100})") from None


def file_entries(files: Mapping[str, Any]) -> dict[str, FileEntry]:
    """Entries of a manifest by name, from its JSON."""
    return {
        name: FileEntry(int(entry["size"]), str(entry["sha256"])) for name, entry in files.items()
    }


def sealed(content: Mapping[str, Any]) -> bytes:
    """JSON of the content with a checksum of itself."""
    return json.dumps({**content, "sha256": _digest(content)}, indent=1).encode() + b"\n"


def unsealed(data: bytes) -> dict[str, Any]:
    """Content of sealed JSON; ValueError if it is damaged."""
    try:
        content: dict[str, Any] = json.loads(data)
        checksum = content.pop("sha256")
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(repr(error)) from None
    if checksum != _digest(content):
        raise ValueError("its checksum does not match")
    return content


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def rotate(beside: Path, newest: Path) -> None:
    """Rename `newest` to `{newest}-1`, and `beside` to `newest`; after a kill between any two
    steps, the newest good checkpoint is one of these two."""
    older = newest.with_name(f"{newest.name}-1")
    if newest.exists():
        if older.exists():
            shutil.rmtree(older)
        newest.rename(older)
    beside.rename(newest)
    sync_folder(newest.parent)


def sync_folder(folder: Path) -> None:
    """Write the entries of a folder to disk, which makes a rename survive a power loss."""
    if not HAS_HANDLES:
        return
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
