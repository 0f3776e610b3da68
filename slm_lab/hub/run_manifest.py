"""`manifest.json` of a run folder: size and SHA-256 of every shared file.

It is written by every push and pull: a file that differs from it has been changed here since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slm_lab.hub.error import RemoteError
from slm_lab.hub.names import check_files
from slm_lab.runs.checkpoint_manifest import MANIFEST, FileEntry, sealed, unsealed
from slm_lab.runs.files import read_bytes
from slm_lab.spec.run_places import RUN_MANIFEST_SCHEMA as SCHEMA

MAX_BYTES = 32_000_000


@dataclass(frozen=True, slots=True)
class RunManifest:
    """The files of a run folder by their path in it, apart from the manifest itself."""

    files: Mapping[str, FileEntry]

    def to_bytes(self) -> bytes:
        files = {
            name: {"size": entry.size, "sha256": entry.sha256}
            for name, entry in sorted(self.files.items())
        }
        return sealed({"schema": SCHEMA, "files": files})


def read_run_manifest(path: Path, folder: str) -> RunManifest:
    """Read a manifest and check all its names."""
    try:
        content: dict[str, Any] = unsealed(read_bytes(path.parent, path, MAX_BYTES))
        if content.get("schema") != SCHEMA:
            raise ValueError(f"found schema {content.get('schema')!r:.40}, expected {SCHEMA}")
        files = {
            str(name): FileEntry(int(entry["size"]), str(entry["sha256"]))
            for name, entry in content["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RemoteError(
            f"{folder}: its {MANIFEST} cannot be used ({error!s:.100}). "
            "Whoever shared it should push again."
        ) from None
    check_files(folder, files)
    return RunManifest(files)


def known_manifest(run_dir: Path) -> RunManifest | None:
    """The manifest of the last push or pull; None if there was none."""
    try:
        return read_run_manifest(run_dir / MANIFEST, run_dir.name)
    except RemoteError:
        return None
