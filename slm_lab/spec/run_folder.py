"""Names of run folders and of the spec files in them.

A folder may come from anywhere, ours or the original's. Names are read off its files and never off
what the files say. `slm_lab.runs.files` reads and writes the files themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from slm_lab.error import LabError

SPEC_FILE = re.compile(r"(?P<name>.+?)(_t(?P<trial>\d{1,6}))?_spec\.(json|yaml|yml)")


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
    return name, {
        None if match["trial"] is None else int(match["trial"]): path
        for match, path in files.items()
        if match["name"] == name
    }


def listed(folder: Path) -> list[Path]:
    """List a folder by name; nothing if there is none, or it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
