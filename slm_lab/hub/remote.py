"""Interface of a remote and its errors, and the remote that a name refers to.

A remote keeps run folders under `data/`. There are two kinds: a dataset on a Hugging Face hub, and
a plain directory, for teams that share a disk.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slm_lab.error import LabError
from slm_lab.runs.checkpoint_manifest import FileEntry

DATA = "data"  # the folder of a remote that holds the run folders
DEFAULT_REPO = "SLM-Lab/benchmark-dev"
SHA256_LENGTH = 64

Sent = Callable[[int], None]  # called with the number of further bytes that have arrived


class RemoteError(LabError):
    """Sharing failed: the message names the request, the reason and the fix."""


class NotAllowed(RemoteError):
    """The remote refuses access: trying again will not help."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """Entry of a file in the listing of a remote.

    `oid` is the SHA-256 of its content or, for a small file that a hub keeps in git, git's SHA-1.
    `version` pins the download to the moment of the listing, on a remote with versions.
    """

    size: int
    oid: str
    version: str = ""

    def is_same(self, path: Path, entry: FileEntry | None = None) -> bool:
        """Whether a local file has this content and is no link; `entry` spares reading it."""
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or self.size != status.st_size:
                return False
            if len(self.oid) == SHA256_LENGTH:
                return self.oid == (entry.sha256 if entry else file_sha256(path))
            return self.oid == _git_sha1(path)
        except OSError:
            return False

    def may_be(self, entry: FileEntry) -> bool:
        """Whether an entry of a manifest agrees, as far as the listing says what the file is."""
        is_other = len(self.oid) == SHA256_LENGTH and self.oid != entry.sha256
        return self.size == entry.size and not is_other


def listed(entry: FileEntry) -> RemoteFile:
    """A file of a manifest as the listing of a remote would have it."""
    return RemoteFile(entry.size, entry.sha256)


class Remote(Protocol):
    """Where run folders are shared. Every failure is a `RemoteError`."""

    @property
    def label(self) -> str:
        """Name of the remote in messages."""

    def folders(self) -> list[str]:
        """Names of the run folders."""

    def files(self, folder: str) -> dict[str, RemoteFile]:
        """The files of a run folder by their path in it; empty if there is no such folder."""

    def download(
        self, folder: str, name: str, file: RemoteFile, target: Path, scratch: Path
    ) -> None:
        """Write a file's content to `target`; `scratch` is a folder for partial files."""

    def check_upload(self) -> None:
        """Raise if an upload cannot work; creates the dataset if it is missing."""

    def upload(
        self, folder: str, files: Mapping[str, Path], gone: Collection[str], sent: Sent
    ) -> None:
        """Add or replace files and remove others in one step; a reader never sees a part of it."""


def open_remote(repo: str | None = None) -> Remote:
    """Open the remote that a name refers to, by default that of HF_REPO.

    `file:PATH` (or a path that begins with `/`, `./` or `~`) is a directory; anything else is a
    dataset such as `user/name` on the hub at HF_ENDPOINT.
    """
    repo = (repo or os.environ.get("HF_REPO") or DEFAULT_REPO).strip()
    if repo.startswith(("file:", "/", "./", "../", "~")):
        from slm_lab.hub.directory import DirectoryRemote

        path = repo.removeprefix("file:")
        if path.startswith("//"):  # file://host/path: the host must be empty
            path = "/" + path.lstrip("/")
        return DirectoryRemote(Path(path).expanduser())
    from slm_lab.hub.huggingface import HuggingFaceRemote

    return HuggingFaceRemote(repo)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_entry(path: Path) -> FileEntry:
    return FileEntry(path.stat().st_size, file_sha256(path))


def _git_sha1(path: Path) -> str:
    """Git's object name of a file's content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
