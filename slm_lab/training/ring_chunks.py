"""The rows of a replay on disk, in chunks that successive checkpoints share.

A replay is too large to be written at every save. A checkpoint links to the chunks of the one it
replaces, and adds the rows written since.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.numpy
import torch
from safetensors import safe_open
from torch import Tensor

from slm_lab.agent.memory.ring import Ring
from slm_lab.runs.checkpoint_manifest import CheckpointManifest, FileEntry
from slm_lab.runs.rotation import link
from slm_lab.training.state_tree import to_array

MAX_CHUNK_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class Chunk:
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

    def copy_into(self, columns: Mapping[str, Tensor]) -> None:
        slots = next(iter(columns.values())).shape[0]
        row = oldest = max(0, self.written - slots)
        for chunk in self.chunks:
            if chunk.start > row or chunk.stop <= row:
                raise ValueError(f"rows {row} to {chunk.start} of a ring are missing")
            self._copy_chunk(chunk, row, columns, slots)
            row = chunk.stop
        if row != self.written:
            raise ValueError(f"rows {row} to {self.written} of a ring of {oldest} are missing")

    def _copy_chunk(
        self, chunk: Chunk, first: int, columns: Mapping[str, Tensor], slots: int
    ) -> None:
        with safe_open(self.folder / chunk.file, framework="numpy") as stored:
            for name, column in columns.items():
                part = stored.get_slice(name)
                shape = (chunk.stop - chunk.start, *column.shape[1:])
                if tuple(part.get_shape()) != shape:
                    found = f"{chunk.file}: {name} is {part.get_shape()}, expected {shape}"
                    raise ValueError(found)
                for start, stop in _split_at_wrap(first, chunk.stop, slots):
                    rows = part[start - chunk.start : stop - chunk.start]
                    slot = start % slots
                    column[slot : slot + stop - start] = torch.from_numpy(rows)


def write_ring(
    folder: Path, path: str, ring: Ring, base: StoredRing | None
) -> tuple[dict[str, Any], dict[str, FileEntry]]:
    """Store a ring in `folder`, with links to the chunks of `base` that still hold its rows.

    Returns the layout, for `StoredRing.of`, and the files written.
    """
    kept, start = _reusable(ring, base)
    entries: dict[str, FileEntry] = {}
    for chunk in kept:
        assert base is not None
        link(base.folder / chunk.file, folder / chunk.file)
        entries[chunk.file] = base.entries[chunk.file]
    step = max(1, MAX_CHUNK_BYTES // ring.row_bytes)
    for first in range(start, ring.written, step):
        stop = min(first + step, ring.written)
        file = f"{path.replace('/', '.')}-{first:012d}-{stop:012d}.safetensors"
        rows = {name: to_array(column) for name, column in ring.rows(first, stop).items()}
        entries[file] = write_synced(folder / file, safetensors.numpy.save(rows))
        kept.append(Chunk(first, stop, file))
    chunks = [[chunk.start, chunk.stop, chunk.file] for chunk in kept]
    layout = {"written": ring.written, "generation": ring.generation, "chunks": chunks}
    return layout, entries


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
