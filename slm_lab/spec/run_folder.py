"""Run folders: their names, the spec files in them, and whether a path lies in one.

A run folder may have come from anywhere, ours or the original's. `pull` writes its files and
nothing else, so whatever lies below it was chosen by whoever shared it: no code and no settings
(`.env`) are taken from there. Names are read off its files and never off what the files say.
`slm_lab.runs.files` reads and writes the files themselves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from slm_lab.error import LabError

SPEC_FILE = re.compile(r"(?P<name>.+?)(_t(?P<trial>\d{1,6}))?_spec\.(json|yaml|yml)")
FOLDERS = ("info", "graph", "model", "log")
TIMESTAMP = r"\d{4}_\d\d_\d\d_\d{6}"
DATA_FOLDER = "data"  # where runs go unless told otherwise
HUB_FOLDER = ".hub"  # beside run folders: what a push sends and what of a pull has arrived
RUN_MANIFEST, RUN_MANIFEST_SCHEMA = "manifest.json", "run-folder-1"

_STAMPED = re.compile(rf".+_{TIMESTAMP}(_\d+)?")
_SESSION_FILE = re.compile(r"(?P<name>.+)_t\d+_s\d+.*")
_MANIFEST_HEAD_BYTES = 4096


class RunFolderError(LabError, ValueError):
    """Error about an unusable run folder; the message names the file and the fix."""


def spec_files(folder: Path) -> tuple[str, Mapping[int | None, Path]]:
    """Read the name of a run off its files, and its spec files by trial; None is the run's own."""
    files = {match: path for path in listed(folder) if (match := SPEC_FILE.fullmatch(path.name))}
    if not files:
        raise RunFolderError(
            f"{folder}: not a run folder, it holds no *_spec.json or *_spec.yaml. "
            "Give the folder that a run printed as `Folder`, such as data/NAME_TIMESTAMP."
        )
    name = min((match["name"] for match in files), key=len)
    # Of a spec and its copy as YAML the JSON counts, so it comes last.
    by_suffix = sorted(files.items(), key=lambda item: item[1].suffix == ".json")
    return name, {
        None if match["trial"] is None else int(match["trial"]): path
        for match, path in by_suffix
        if match["name"] == name
    }


def listed(folder: Path) -> list[Path]:
    """List a folder by name; nothing if there is none, or it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def run_place(path: Path) -> Path | None:
    """The run folder or data folder that a path is or lies below, as written or with links
    followed; None if there is none."""
    found = (folder for folder in _lineage(path) if is_data_folder(folder))
    return run_folder_above(path) or next(found, None)


def run_folder_above(path: Path) -> Path | None:
    """The run folder that a path is or lies below; None if there is none."""
    return next((folder for folder in _lineage(path) if is_run_folder(folder)), None)


def is_run_folder(folder: Path) -> bool:
    """Whether a run or `pull` wrote this folder, or it is laid out as if.

    A spec beside one's own code does not make a run folder; a spec beside files that are named
    after its sessions does.
    """
    if folder.name == HUB_FOLDER or _was_shared(folder):
        return True
    parts = [part for part in (*FOLDERS, "checkpoint") if (folder / part).is_dir()]
    is_stamped = _STAMPED.fullmatch(folder.name) is not None
    if not parts and not is_stamped:
        return False
    matches = (SPEC_FILE.fullmatch(name) for name in _names(folder))
    specs = {match["name"] for match in matches if match}
    if is_stamped or set(FOLDERS) <= set(parts):
        return bool(specs or parts)
    files = (_SESSION_FILE.fullmatch(name) for part in parts for name in _names(folder / part))
    return any(match["name"] in specs for match in files if match)


def is_data_folder(folder: Path) -> bool:
    """Whether this is a folder called `data` with runs in it."""
    if folder.name.lower() != DATA_FOLDER:
        return False
    return any(name == HUB_FOLDER or _STAMPED.fullmatch(name) for name in _names(folder))


def _lineage(path: Path) -> Iterator[Path]:
    """A path and its parents, as written, then with links followed."""
    written = Path(os.path.abspath(path))
    followed = Path(os.path.realpath(path))
    yield from (written, *written.parents)
    if followed != written:
        yield from (followed, *followed.parents)


def _was_shared(folder: Path) -> bool:
    """Whether the folder has the manifest that `push` and `pull` leave in every run folder."""
    path = folder / RUN_MANIFEST
    try:
        if not path.is_file():  # a pipe would never end
            return False
        with path.open("rb") as file:
            return f'"{RUN_MANIFEST_SCHEMA}"'.encode() in file.read(_MANIFEST_HEAD_BYTES)
    except OSError:
        return False


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
