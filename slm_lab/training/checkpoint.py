"""Checkpoints of a session: its whole state as a folder, and back.

    checkpoint/{session}/last/       the newest: manifest.json, state.json, tensors.safetensors, and
                                     the rows of a replay as {ring}-{first}-{end}.safetensors
    checkpoint/{session}/last-1/     the one before it, in case the newest is damaged
    checkpoint/{session}/best/       the agent alone, at its best score; best-1 the one before

A folder is written under another name, synced and renamed: a kill at any instant leaves the last
good one. It shares files with the one it pushes out and never with the one that stays as its
fallback, so that damage to one file costs one checkpoint. `runs/checkpoint_manifest.py` says how
the files are verified.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.numpy
from loguru import logger
from safetensors import SafetensorError, safe_open

from slm_lab.agent.memory.ring import Ring
from slm_lab.runs.checkpoint_manifest import (
    MANIFEST,
    SCHEMA,
    CheckpointError,
    CheckpointManifest,
    FileEntry,
    OldCheckpointError,
    check_file,
    read_manifest,
)
from slm_lab.runs.files import make_folder
from slm_lab.runs.provenance import versions
from slm_lab.runs.rotation import rotate, sync_folder
from slm_lab.training.ring_chunks import StoredRing, write_ring, write_synced
from slm_lab.training.state_tree import flatten, unflatten

Slot = Literal["last", "best"]
STATE, TENSORS = "state.json", "tensors.safetensors"
MAX_STATE_BYTES = 256_000_000  # of JSON: arrays are elsewhere


class CheckpointStore:
    """The checkpoints of one session; `run_dir` is the run folder that they are in."""

    def __init__(
        self, folder: Path, session: str, spec_sha256: str, *, run_dir: Path | None = None
    ) -> None:
        self.folder = folder
        self._run_dir = run_dir or folder.parent
        self._session = session
        self._spec_sha256 = spec_sha256

    def write(
        self,
        slot: Slot,
        state: Mapping[str, Any],
        counters: Mapping[str, int],
        *,
        finished: bool = False,
    ) -> CheckpointManifest:
        """Replace the newest checkpoint, which becomes the fallback. OSError leaves both alone.

        Writing the same best agent once more, after a kill, replaces nothing.
        """
        newest, beside = self.folder / slot, self.folder / f"{slot}.writing"
        try:
            self._run_dir.mkdir(parents=True, exist_ok=True)
            make_folder(self._run_dir, self.folder)  # refuses a link on the way
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir()
            # Only the checkpoint to be pushed out may share its chunks. Without a newest, the
            # fallback is all there is, and stays.
            pushed_out = self.folder / f"{slot}-1" if newest.exists() else None
            files = _write_state(beside, state, base=pushed_out)
            manifest = CheckpointManifest(
                session=self._session,
                spec_sha256=self._spec_sha256,
                versions=versions(),
                counters=counters,
                finished=finished,
                saved_at=datetime.now(UTC).isoformat(timespec="seconds"),
                files=files,
            )
            if slot == "best" and _holds(newest, manifest):
                shutil.rmtree(beside)
                return manifest
            write_synced(beside / MANIFEST, manifest.to_bytes())
            sync_folder(beside)
            rotate(beside, newest)
        except OSError:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        return manifest

    def read(
        self, slot: Slot, *, max_bytes: int
    ) -> tuple[CheckpointManifest, dict[str, Any]] | None:
        """The newest good checkpoint, or None if there never was one.

        A damaged one is named and set aside, so that it can never push out a good one.
        """
        problems = []
        for folder in (self.folder / slot, self.folder / f"{slot}-1"):
            if not folder.exists():
                continue
            try:
                manifest, state = read_checkpoint(folder, max_bytes=max_bytes)
            except OldCheckpointError:
                raise
            except CheckpointError as error:
                problems.append(error)
                logger.warning(f"damaged checkpoint: {error}")
                _set_aside(folder)
                continue
            if manifest.spec_sha256 != self._spec_sha256:
                raise CheckpointError(folder, "belongs to another spec")
            if problems:
                logger.warning(f"going on from the checkpoint before it, frame {manifest.frame:,}")
            return manifest, state
        if problems:
            named = "; ".join(str(error) for error in problems)
            fix = "Restore it from a copy, or delete the folder to start this session anew."
            raise CheckpointError(self.folder, f"no good checkpoint is left ({named}). {fix}")
        return None


def read_checkpoint(folder: Path, *, max_bytes: int) -> tuple[CheckpointManifest, dict[str, Any]]:
    """Manifest and state of a checkpoint folder, after every checksum was verified.

    `max_bytes` bounds what is allocated, whatever the folder claims. Rings come as `StoredRing`s.
    """
    manifest = read_manifest(folder)
    if manifest.schema != SCHEMA:
        raise OldCheckpointError(folder, manifest)
    if manifest.size > max_bytes:
        found = f"claims {manifest.size:,} bytes, expected {max_bytes:,} at most for this spec"
        raise CheckpointError(folder / MANIFEST, found)
    _check_files(folder, manifest)
    content = _read_json(folder, manifest)
    path = folder / TENSORS
    try:
        with safe_open(path, framework="numpy") as tensors:
            state = unflatten(
                content["tree"],
                tensors,
                lambda ring: StoredRing.of(content["rings"][ring], folder, manifest),
            )
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(path, f"does not fit its {STATE} ({error!r:.200})") from None
    if not isinstance(state, dict):
        raise CheckpointError(folder / STATE, "is no state")
    return manifest, state


def _write_state(folder: Path, state: Mapping[str, Any], base: Path | None) -> dict[str, FileEntry]:
    """Write a state into an empty folder, linking to the chunks of the checkpoint `base`."""
    arrays: dict[str, np.ndarray] = {}
    rings: dict[str, Ring] = {}
    tree = flatten(state, "", arrays, rings)
    files: dict[str, FileEntry] = {}
    layouts: dict[str, Any] = {}
    known = _stored_rings(base) if rings and base is not None else {}
    for path, ring in rings.items():
        layouts[path], entries = write_ring(folder, path, ring, known.get(path))
        files |= entries
    files[TENSORS] = write_synced(folder / TENSORS, safetensors.numpy.save(arrays))
    content = json.dumps({"tree": tree, "rings": layouts}).encode()
    files[STATE] = write_synced(folder / STATE, content)
    return files


def _stored_rings(folder: Path) -> dict[str, StoredRing]:
    """The rings of an older checkpoint; none if it is missing or cannot be used."""
    try:
        manifest = read_manifest(folder)
        layouts = _read_json(folder, manifest)["rings"]
        return {path: StoredRing.of(layouts[path], folder, manifest) for path in layouts}
    except (CheckpointError, KeyError, TypeError, ValueError):
        return {}


def _read_json(folder: Path, manifest: CheckpointManifest) -> dict[str, Any]:
    path = folder / STATE
    for name in (STATE, TENSORS):
        if name not in manifest.files:
            raise CheckpointError(folder / name, f"is not in the {MANIFEST}")
    if manifest.files[STATE].size > MAX_STATE_BYTES:
        raise CheckpointError(path, f"{manifest.files[STATE].size:,} bytes are too many")
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(path, f"is damaged ({error!r:.100})") from None
    if not isinstance(content, dict):
        raise CheckpointError(path, "is no state")
    return content


def _check_files(folder: Path, manifest: CheckpointManifest) -> None:
    for name, entry in manifest.files.items():
        check_file(folder / name, entry)


def _holds(folder: Path, manifest: CheckpointManifest) -> bool:
    """Whether a folder holds, undamaged, the checkpoint that a manifest describes."""
    try:
        found = read_manifest(folder)
        _check_files(folder, found)
    except CheckpointError:
        return False
    return found.files == manifest.files and found.spec_sha256 == manifest.spec_sha256


def _set_aside(folder: Path) -> None:
    damaged = folder.with_name(f"{folder.name}.damaged")
    try:
        shutil.rmtree(damaged, ignore_errors=True)
        folder.rename(damaged)
    except OSError as error:
        logger.warning(f"{folder}: could not be set aside ({error.strerror})")
