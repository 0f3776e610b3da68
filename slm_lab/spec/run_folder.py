"""A run folder from outside: which spec files it holds, and that no path leads out of it.

A folder may come from anywhere, ours or the original's. Names are read off its files and never off
what the files say; what is read is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slm_lab.spec.text import TextError, decode, parse

SPEC_FILE = re.compile(r"(?P<name>.+?)(_t(?P<trial>\d{1,6}))?_spec\.(json|yaml|yml)")


class RunFolderError(ValueError):
    """A run folder that cannot be used as asked: the message names the file and the way out."""


def spec_files(folder: Path) -> tuple[str, Mapping[int | None, Path]]:
    """The name of the run, and its spec files by trial; None is the run's own."""
    files = {match: path for path in listed(folder) if (match := SPEC_FILE.fullmatch(path.name))}
    if not files:
        raise RunFolderError(
            f"{folder}: not a run folder, it holds no *_spec.json or *_spec.yaml. "
            "Give the folder that a run printed as `Folder`, such as data/NAME_TIMESTAMP."
        )
    name = min((match["name"] for match in files), key=len)
    return name, {
        None if match["trial"] is None else int(match["trial"]): path
        for match, path in files.items()
        if match["name"] == name
    }


def read_spec_tree(folder: Path, path: Path) -> Mapping[str, Any]:
    """A saved spec as it stands, not validated: for what needs no more of it than a few names."""
    resolved = inside(folder, path)
    try:
        tree = parse(decode(read_bounded(resolved, 1_000_001)), is_json=path.suffix == ".json")
    except (TextError, OSError) as error:
        raise RunFolderError(f"{path}: {error}") from None
    if not isinstance(tree, Mapping):
        raise RunFolderError(f"{path}: expected a mapping of keys, found {type(tree).__name__}")
    return tree


def inside(folder: Path, path: Path) -> Path:
    """The path with links followed, if that stays inside the folder."""
    resolved = path.resolve()
    if not resolved.is_relative_to(folder.resolve()):
        raise RunFolderError(f"{path}: leads out of the run folder, to {resolved}. Not followed.")
    return resolved


def check_links(folder: Path) -> None:
    """Refuse a folder in which a link leads out: what is written there would land elsewhere."""
    for path in folder.rglob("*"):
        if path.is_symlink():
            inside(folder, path)


def read_bounded(path: Path, limit: int) -> bytes:
    """The first `limit` bytes of a plain file."""
    if not path.is_file():  # a pipe or a device would never end
        raise RunFolderError(f"{path}: expected a plain file")
    with path.open("rb") as file:
        return file.read(limit)


def listed(folder: Path) -> list[Path]:
    """What a folder holds, by name; nothing if there is none, or it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
