"""Interface of a remote, the files that it holds, and the remote that a name refers to.

A remote keeps run folders under `data/`. There are two kinds: a dataset on a Hugging Face hub, and
a plain directory, for teams that share a disk.

`manifest.json` of a run folder has size and SHA-256 of every shared file. It is written by every
push and pull: a file that differs from it has been changed here since. Names that come from a
remote are checked before they become file names here.
"""

from __future__ import annotations

import hashlib
import os
import stat
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from slm_lab.error import LabError
from slm_lab.runs.checkpoint_manifest import (
    MANIFEST,
    FileEntry,
    file_entries,
    is_plain_name,
    sealed,
    unsealed,
)
from slm_lab.runs.files import read_bytes
from slm_lab.spec.run_folder import RUN_MANIFEST_SCHEMA as SCHEMA

DATA = "data"  # the folder of a remote that holds the run folders
DEFAULT_REPO = "SLM-Lab/benchmark-dev"
SHA256_LENGTH = 64

MAX_BYTES = 32_000_000
MAX_FILES = 100_000
MAX_PART_BYTES, MAX_NAME_BYTES, MAX_DEPTH = 255, 1024, 16
# Reserved names of Windows, whatever follows the first dot.
PORTS = (f"{port}{number}" for port in ("com", "lpt") for number in range(10))
DEVICES = {"con", "prn", "aux", "nul", *PORTS}

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

    def download(self, folder: str, name: str, file: RemoteFile, target: Path, temp: Path) -> None:
        """Write a file's content to `target`; `temp` is a folder for partial files."""

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


def manifest_bytes(files: Mapping[str, FileEntry]) -> bytes:
    """The manifest of a folder with these files, which it does not list itself."""
    entries = {name: asdict(entry) for name, entry in sorted(files.items())}
    return sealed({"schema": SCHEMA, "files": entries})


def read_run_manifest(path: Path, folder: str) -> dict[str, FileEntry]:
    """Read the files that a manifest lists, and check all their names."""
    try:
        content = unsealed(read_bytes(path.parent, path, MAX_BYTES))
        if content.get("schema") != SCHEMA:
            raise ValueError(f"found schema {content.get('schema')!r:.40}, expected {SCHEMA}")
        files = file_entries(content["files"])
        if any(len(entry.sha256) != SHA256_LENGTH for entry in files.values()):
            raise ValueError("holds what is no SHA-256")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fix = "Whoever shared it should push again."
        found = f"its {MANIFEST} cannot be used ({error!s:.100})"
        raise RemoteError(f"{folder}: {found}. {fix}") from None
    check_files(folder, files)
    return files


def known_files(run_dir: Path) -> dict[str, FileEntry]:
    """The files of the last push or pull; none if there was none."""
    try:
        return read_run_manifest(run_dir / MANIFEST, run_dir.name)
    except RemoteError:
        return {}


def is_folder_name(name: str) -> bool:
    """Whether a name can be that of a run folder: one part, and none that slm-lab reserves."""
    return not _problem_of_folder(name)


def check_folder(name: str) -> None:
    if reason := _problem_of_folder(name):
        raise RemoteError(f"{name!r:.100}: not a run folder's name ({reason}). Refused.")


def check_files(folder: str, names: Iterable[str]) -> None:
    """Refuse a folder if a name leads out of it, or if two names are the same file somewhere."""
    seen: dict[str, str] = {}
    for count, name in enumerate(names, start=1):
        if count > MAX_FILES:
            raise RemoteError(f"{folder}: more than {MAX_FILES:,} files. Refused.")
        if reason := _problem_of_path(name):
            raise RemoteError(
                f"{folder}: holds {name!r:.200}, which {reason}. Nothing was written. "
                "Whoever shared it should rename that file and push again."
            )
        other = seen.setdefault(_as_one(name), name)
        if other != name:
            raise RemoteError(
                f"{folder}: holds {other!r:.200} and {name!r:.200}, which are one file where case "
                "is not told apart. Nothing was written."
            )
    for name in seen.values():
        if any(_as_one(str(parent)) in seen for parent in PurePosixPath(name).parents):
            found = f"holds {name!r:.200} inside of something that is itself a file"
            raise RemoteError(f"{folder}: {found}. Nothing was written.")


def _problem_of_folder(name: str) -> str:
    return _problem_of_part(name) or ("begins with a dot" if name.startswith(".") else "")


def _problem_of_path(name: str) -> str:
    parts = name.split("/")
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES or len(parts) > MAX_DEPTH:
        return "is too long"
    return next(filter(None, map(_problem_of_part, parts)), "")


def _problem_of_part(part: str) -> str:
    if not is_plain_name(part):
        return "leads out of the folder"
    if any(unicodedata.category(character) in ("Cc", "Cf", "Cs") for character in part):
        return "holds characters that cannot be seen"
    if len(part.encode()) > MAX_PART_BYTES:
        return "is too long"
    if part != part.strip() or part.endswith(".") or part.partition(".")[0].lower() in DEVICES:
        return "is no file name on every system"
    return ""


def _as_one(name: str) -> str:
    """Normal form that is equal for names which some file system takes for the same."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKD", name).casefold())
