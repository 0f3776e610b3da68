"""Checkpoints of a session: its whole state as a folder, and back.

    checkpoint/{session}/last/       the newest: manifest.json, state.json, tensors.safetensors, and
                                     the rows of a replay as {ring}-{first}-{end}.safetensors
    checkpoint/{session}/last-1/     the one before it, in case the newest is damaged
    checkpoint/{session}/best/       the agent alone, at its best score; best-1 the one before

A folder is written under another name, synced and renamed: a kill at any instant leaves the last
good one. It shares files with the one it pushes out and never with the one that stays as its
fallback, so that damage to one file costs one checkpoint. `runs/checkpoint_manifest.py` says how
the files are verified.

A state is a tree: dicts and lists of numbers, text, tensors, arrays and rings. It becomes JSON with
a reference in place of each array, which is stored under its path in the tree. A replay is too big
to be written at every save: a checkpoint links to the chunks of the one it replaces, and adds the
rows written since.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import safetensors.numpy
import torch
from loguru import logger
from safetensors import SafetensorError, safe_open
from torch import Tensor

from slm_lab.agent.memory.ring import Ring
from slm_lab.runs import checkpoint_manifest
from slm_lab.runs.checkpoint_manifest import CheckpointError, CheckpointManifest, FileEntry
from slm_lab.runs.files import make_folder
from slm_lab.runs.provenance import versions

Slot = Literal["last", "best"]
State = Mapping[str, Any]
Columns = Mapping[str, Tensor]
Checkpoint = tuple[CheckpointManifest, dict[str, Any]]
STATE, TENSORS = "state.json", "tensors.safetensors"
MAX_STATE_BYTES = 256_000_000  # of JSON: arrays are elsewhere
MAX_CHUNK_BYTES = 64_000_000


class CheckpointStore:
    """The checkpoints of one session; `run_dir` is the run folder that they are in."""

    def __init__(
        self,
        folder: Path,
        session: str,
        spec_sha256: str,
        *,
        run_dir: Path | None = None,
        earlier: Collection[str] = (),
    ) -> None:
        """`earlier` are fingerprints of the specs that the run had before it was extended."""
        self.folder, self._run_dir = folder, run_dir or folder.parent
        self._session, self._spec_sha256 = session, spec_sha256
        self._earlier = frozenset(earlier)

    def write(
        self,
        slot: Slot,
        state: State,
        counters: Mapping[str, int],
        *,
        finished: bool = False,
        stop_reason: str = "",
    ) -> CheckpointManifest:
        """Replace the newest checkpoint, which becomes the fallback. OSError leaves both alone.
        Writing the same best agent once more, after a kill, replaces nothing."""
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
                stop_reason=stop_reason,
                saved_at=datetime.now(UTC).isoformat(timespec="seconds"),
                files=files,
            )
            if slot == "best" and _holds(newest, manifest):
                shutil.rmtree(beside)
                return manifest
            write_synced(beside / checkpoint_manifest.MANIFEST, manifest.to_bytes())
            checkpoint_manifest.sync_folder(beside)
            checkpoint_manifest.rotate(beside, newest)
        except OSError:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        return manifest

    def read(self, slot: Slot, *, max_bytes: int) -> Checkpoint | None:
        """The newest good checkpoint, or None if there never was one. A damaged one is named and
        set aside, so that it can never push out a good one."""
        problems = []
        for folder in (self.folder / slot, self.folder / f"{slot}-1"):
            if not folder.exists():
                continue
            try:
                manifest, state = read_checkpoint(folder, max_bytes=max_bytes)
            except checkpoint_manifest.OldCheckpointError:
                raise
            except CheckpointError as error:
                problems.append(error)
                logger.warning(f"damaged checkpoint: {error}")
                _set_aside(folder)
                continue
            if manifest.spec_sha256 not in self._earlier | {self._spec_sha256}:
                raise CheckpointError(folder, "belongs to another spec")
            if problems:
                logger.warning(f"going on from the checkpoint before it, frame {manifest.frame:,}")
            return manifest, state
        if problems:
            named = "; ".join(str(error) for error in problems)
            fix = "Restore it from a copy, or delete the folder to start this session anew."
            raise CheckpointError(self.folder, f"no good checkpoint is left ({named}). {fix}")
        return None


def read_checkpoint(folder: Path, *, max_bytes: int) -> Checkpoint:
    """Manifest and state of a checkpoint folder, with every checksum verified. `max_bytes` bounds
    what is allocated, whatever the folder claims. Rings come as `StoredRing`s."""
    manifest = checkpoint_manifest.read_manifest(folder)
    if manifest.schema != checkpoint_manifest.SCHEMA:
        raise checkpoint_manifest.OldCheckpointError(folder, manifest)
    if manifest.size > max_bytes:
        found = f"claims {manifest.size:,} bytes, expected {max_bytes:,} at most for this spec"
        raise CheckpointError(folder / checkpoint_manifest.MANIFEST, found)
    checkpoint_manifest.check_files(folder, manifest)
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


def _write_state(folder: Path, state: State, base: Path | None) -> dict[str, FileEntry]:
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
        manifest = checkpoint_manifest.read_manifest(folder)
        layouts = _read_json(folder, manifest)["rings"]
        return {path: StoredRing.of(layouts[path], folder, manifest) for path in layouts}
    except (CheckpointError, KeyError, TypeError, ValueError):
        return {}


def _read_json(folder: Path, manifest: CheckpointManifest) -> dict[str, Any]:
    path = folder / STATE
    for name in (STATE, TENSORS):
        if name not in manifest.files:
            raise CheckpointError(folder / name, f"is not in the {checkpoint_manifest.MANIFEST}")
    if manifest.files[STATE].size > MAX_STATE_BYTES:
        raise CheckpointError(path, f"{manifest.files[STATE].size:,} bytes are too many")
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(path, f"is damaged ({error!r:.100})") from None
    if not isinstance(content, dict):
        raise CheckpointError(path, "is no state")
    return content


def _holds(folder: Path, manifest: CheckpointManifest) -> bool:
    """Whether a folder holds, undamaged, the checkpoint that a manifest describes."""
    try:
        found = checkpoint_manifest.read_manifest(folder)
        checkpoint_manifest.check_files(folder, found)
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


class Chunk(NamedTuple):
    """Rows `start` to `stop` of a ring, numbered as they were written, in one file."""

    start: int
    stop: int
    file: str


@dataclass(frozen=True, slots=True)
class StoredRing:
    """A ring on disk, to be copied into a live one of the same layout."""

    folder: Path
    written: int
    generation: int
    chunks: tuple[Chunk, ...]
    entries: Mapping[str, FileEntry]

    @classmethod
    def of(cls, layout: Any, folder: Path, manifest: CheckpointManifest) -> StoredRing:
        """The ring that a checkpoint's `layout` describes, a dict as `write_ring` returns it."""
        chunks = tuple(Chunk(int(a), int(b), str(file)) for a, b, file in layout["chunks"])
        entries = {chunk.file: manifest.files[chunk.file] for chunk in chunks}
        return cls(folder, int(layout["written"]), int(layout["generation"]), chunks, entries)

    def copy_into(self, columns: Columns) -> None:
        slots = next(iter(columns.values())).shape[0]
        row = oldest = max(0, self.written - slots)
        for chunk in self.chunks:
            if chunk.start > row or chunk.stop <= row:
                raise ValueError(f"rows {row} to {chunk.start} of a ring are missing")
            self._copy_chunk(chunk, row, columns, slots)
            row = chunk.stop
        if row != self.written:
            raise ValueError(f"rows {row} to {self.written} of a ring of {oldest} are missing")

    def _copy_chunk(self, chunk: Chunk, first: int, columns: Columns, slots: int) -> None:
        with safe_open(self.folder / chunk.file, framework="numpy") as stored:
            for name, column in columns.items():
                part = stored.get_slice(name)
                shape = (chunk.stop - chunk.start, *column.shape[1:])
                if (found := tuple(part.get_shape())) != shape:
                    raise ValueError(f"{chunk.file}: {name} is {list(found)}, expected {shape}")
                for start, stop in _split_at_wrap(first, chunk.stop, slots):
                    rows = part[start - chunk.start : stop - chunk.start]
                    slot = start % slots
                    column[slot : slot + stop - start] = torch.from_numpy(rows)


def write_ring(
    folder: Path, path: str, ring: Ring, base: StoredRing | None
) -> tuple[dict[str, Any], dict[str, FileEntry]]:
    """Store a ring in `folder`, with links to the chunks of `base` that still hold its rows.
    Returns the layout, for `StoredRing.of`, and the files written."""
    kept, start = _reusable(ring, base)
    entries: dict[str, FileEntry] = {}
    for chunk in kept:
        assert base is not None
        checkpoint_manifest.link(base.folder / chunk.file, folder / chunk.file)
        entries[chunk.file] = base.entries[chunk.file]
    step = max(1, MAX_CHUNK_BYTES // ring.row_bytes)
    for first in range(start, ring.written, step):
        stop = min(first + step, ring.written)
        file = f"{path.replace('/', '.')}-{first:012d}-{stop:012d}.safetensors"
        rows = {name: to_array(column) for name, column in ring.rows(first, stop).items()}
        entries[file] = write_synced(folder / file, safetensors.numpy.save(rows))
        kept.append(Chunk(first, stop, file))
    return {"written": ring.written, "generation": ring.generation, "chunks": kept}, entries


def _reusable(ring: Ring, base: StoredRing | None) -> tuple[list[Chunk], int]:
    """Chunks that still hold rows of the ring, and the first row that is in none of them.

    Small chunks are written again together with newer rows: both the number of chunks and the
    number of times that a row is written then grow like a logarithm.
    """
    if base is None or base.generation != ring.generation or base.written > ring.written:
        return [], ring.oldest
    kept = [chunk for chunk in base.chunks if chunk.stop > ring.oldest]
    start = max(base.written, ring.oldest)
    while kept and kept[-1].stop - kept[-1].start <= ring.written - start:
        first = max(kept[-1].start, ring.oldest)
        if (ring.written - first) * ring.row_bytes > MAX_CHUNK_BYTES:
            break
        kept.pop()
        start = first
    return kept, start


def _split_at_wrap(start: int, stop: int, slots: int) -> Iterator[tuple[int, int]]:
    """Split a range of row numbers where the ring wraps around to slot 0."""
    while start < stop:
        end = min(stop, (start // slots + 1) * slots)
        yield start, end
        start = end


def write_synced(path: Path, content: bytes) -> FileEntry:
    """Write a new file of a checkpoint, and wait until it is on disk."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(len(content), hashlib.sha256(content).hexdigest())


def flatten(node: Any, path: str, arrays: dict[str, np.ndarray], rings: dict[str, Ring]) -> Any:
    """The tree with references in place of arrays and rings, which are collected by path."""
    if isinstance(node, Ring):
        rings[path] = node
        return {"$ring": path}
    if isinstance(node, Tensor):
        arrays[path] = to_array(node)
        return {"$tensor": path}
    if isinstance(node, np.ndarray):
        arrays[path] = node if node.flags.c_contiguous else node.copy()
        return {"$array": path}
    if isinstance(node, Mapping):
        return {k: flatten(v, f"{path}/{k}" if path else k, arrays, rings) for k, v in node.items()}
    if isinstance(node, Sequence) and not isinstance(node, str):
        return [flatten(v, f"{path}/{i}", arrays, rings) for i, v in enumerate(node)]
    return node.item() if isinstance(node, np.generic) else node


def unflatten(node: Any, arrays: Any, ring: Callable[[str], Any]) -> Any:
    """The inverse of `flatten`: `arrays` is an open safetensors file, `ring` finds one by path."""
    if isinstance(node, list):
        return [unflatten(value, arrays, ring) for value in node]
    if not isinstance(node, dict):
        return node
    match node:
        case {"$tensor": str(path)}:
            return torch.from_numpy(arrays.get_tensor(path))
        case {"$array": str(path)}:
            return arrays.get_tensor(path)
        case {"$ring": str(path)}:
            return ring(path)
    return {key: unflatten(value, arrays, ring) for key, value in node.items()}


def to_array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().contiguous().numpy()
    return array


def has_rings(state: Any) -> bool:
    if isinstance(state, Mapping):
        return any(map(has_rings, state.values()))
    return isinstance(state, Ring)


def tree_bytes(state: Any) -> int:
    """Memory that the tensors and arrays of a tree take, rings in full."""
    if isinstance(state, Ring):
        return sum(column.nbytes for column in state.columns.values())
    if isinstance(state, Tensor | np.ndarray):
        return int(state.nbytes)
    if isinstance(state, Mapping):
        return sum(map(tree_bytes, state.values()))
    if isinstance(state, Sequence) and not isinstance(state, str):
        return sum(map(tree_bytes, state))
    return 0


def check_fits(saved: Any, live: Any, path: str = "") -> None:
    """Raise ValueError unless the saved tree has the keys, shapes and types of the live one."""
    if isinstance(live, Mapping):
        if not isinstance(saved, Mapping) or saved.keys() != live.keys():
            found = sorted(saved) if isinstance(saved, Mapping) else type(saved).__name__
            raise ValueError(f"{path}: found {found}, expected {sorted(live)}")
        for key, value in live.items():
            check_fits(saved[key], value, f"{path}/{key}")
    elif isinstance(live, Tensor) and (
        not isinstance(saved, Tensor) or saved.shape != live.shape or saved.dtype != live.dtype
    ):
        found = f"{tuple(saved.shape)}" if isinstance(saved, Tensor) else type(saved).__name__
        raise ValueError(f"{path}: found {found}, expected {tuple(live.shape)} of {live.dtype}")


def check_actions(saved: Any, sizes: Sequence[int]) -> None:
    """Raise ValueError if a stored discrete action is none of the env's.

    `sizes` are the numbers of actions. Another one would be an index beyond the output of a net.
    """
    columns = saved.columns if isinstance(saved, Ring) else saved
    if not isinstance(columns, Mapping):
        return
    for key, value in columns.items():
        if key == "action" and isinstance(value, Tensor) and not value.is_floating_point():
            if bool(((value < 0) | (value >= torch.tensor(sizes, device=value.device))).any()):
                found = f"found {int(value.min())} to {int(value.max())}"
                raise ValueError(f"stored actions: {found}, expected less than {sizes}")
        else:
            check_actions(value, sizes)
