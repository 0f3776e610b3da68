"""`manifest.json` of a run folder: size and SHA-256 of every shared file, with checked names.

It is written by every push and pull: a file that differs from it has been changed here since. Names
that come from a remote are checked before they become file names here.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from slm_lab.hub.remote import SHA256_LENGTH, RemoteError
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

MAX_BYTES = 32_000_000
MAX_FILES = 100_000
MAX_PART_BYTES, MAX_NAME_BYTES, MAX_DEPTH = 255, 1024, 16
# Reserved names of Windows, whatever follows the first dot.
PORTS = (f"{port}{number}" for port in ("com", "lpt") for number in range(10))
DEVICES = {"con", "prn", "aux", "nul", *PORTS}


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
        raise RemoteError(
            f"{folder}: its {MANIFEST} cannot be used ({error!s:.100}). "
            "Whoever shared it should push again."
        ) from None
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
        parents = name.split("/")[:-1]
        for depth in range(1, len(parents) + 1):
            if seen.get(_as_one("/".join(parents[:depth]))) is not None:
                raise RemoteError(
                    f"{folder}: holds {name!r:.200} inside of something that is itself a file. "
                    "Nothing was written."
                )


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
