"""The spec that a run folder has kept, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slm_lab.runs.files import read_bytes
from slm_lab.spec.run_folder import RunFolderError
from slm_lab.spec.text import TextError, decode, parse

MAX_SPEC_BYTES = 1_000_000


def read_spec_tree(folder: Path, path: Path) -> Mapping[str, Any]:
    """A saved spec as it stands, not validated: for what needs no more of it than a few names."""
    try:
        text = decode(read_bytes(folder, path, MAX_SPEC_BYTES))
        tree = parse(text, is_json=path.suffix == ".json")
    except TextError as error:
        raise RunFolderError(f"{path}: {error}") from None
    if not isinstance(tree, Mapping):
        raise RunFolderError(f"{path}: expected a mapping of keys, found {type(tree).__name__}")
    return tree
