"""Check the names in the listing of a remote, before they become file names here."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from slm_lab.hub.error import RemoteError
from slm_lab.runs.checkpoint_manifest import is_plain_name

MAX_FILES = 100_000
MAX_PART_BYTES, MAX_NAME_BYTES, MAX_DEPTH = 255, 1024, 16
# Reserved names of Windows, whatever follows the first dot.
PORTS = (f"{port}{number}" for port in ("com", "lpt") for number in range(10))
DEVICES = {"con", "prn", "aux", "nul", *PORTS}


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
