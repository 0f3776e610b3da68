"""Copy the files of a session on another machine into the run folder here, while they grow.

No disk is shared. A session elsewhere writes to a scratch folder with the layout of a run. A
`FileSender` there turns what is new in it into a stream of messages, which a `FileReceiver` here
carries out in order. Each message is small, whatever the size of a file.

- A file that only grows (a log, TensorBoard events) is sent from where it ended before; any other
  file is sent again when it has changed.
- A checkpoint is sent as a whole, frozen by hard links meanwhile. It arrives under another name and
  becomes the newest only after every checksum was verified, so that the run folder always holds a
  good one. Files that the last but one had as well, such as the old rows of a replay, are not sent
  again; as on the other side, the newest shares nothing with the one it falls back to.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from loguru import logger

from slm_lab.runs import checkpoint_manifest
from slm_lab.runs.checkpoint_manifest import MANIFEST, CheckpointError, FileEntry, read_manifest
from slm_lab.runs.files import check_place, make_folder

Files = dict[str, FileEntry]

PIECE_BYTES = 8_000_000
# Whole checkpoints (sent as such), what is being written, and locks, which mean nothing elsewhere.
_APART = re.compile(r"checkpoint/[^/]+/(last|best)[^/]*/|(^|/)[^/]*\.(lock|tmp)$")


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a file from an offset on; at offset 0 the file begins anew."""

    path: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Begin:
    """The files of a checkpoint follow; those of one that was not completed are void."""

    checkpoint: str


@dataclass(frozen=True, slots=True)
class Same:
    """A file of a checkpoint that equals its namesake in the checkpoint to be pushed out."""

    path: str


@dataclass(frozen=True, slots=True)
class Complete:
    """All files of the checkpoint have been sent."""

    checkpoint: str


FileMessage = Begin | Piece | Same | Complete


class FileSender:
    """Finds what is new in a scratch folder, and sends it in order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._frozen = folder.with_name(f"{folder.name}.frozen")
        self._seen: dict[str, tuple[int, int, int]] = {}  # path: inode, size, time of change
        self._messages: deque[Iterator[FileMessage]] = deque()
        # The files of the receiver's newest checkpoint and of the one before. Checkpoints that are
        # here at the start came from the receiver.
        self._newest = {name: _contents(folder / name) for name in self._checkpoints()}
        self._older = {name: _contents(folder / f"{name}-1") for name in self._checkpoints()}

    def look(self) -> None:
        """Queue what has changed. To be called again only when everything has been taken.

        Checkpoints are frozen first, and `last` ones are sent at the end: when one that says
        "finished" has arrived, so have the files that were written before it.
        """
        frozen = {name: self._freeze(name) for name in self._checkpoints()}
        for path in sorted(self._folder.rglob("*")):
            name = path.relative_to(self._folder).as_posix()
            if not _APART.search(name) and path.is_file():
                self._queue_file(path, name)
        for name in sorted(frozen, key=lambda name: name.endswith("/last")):
            if (messages := frozen[name]) is not None:
                self._messages.append(messages)

    def take(self, limit: int) -> list[FileMessage]:
        """The next messages, of `limit` bytes or little more; empty when all have been taken."""
        taken: list[FileMessage] = []
        size = 0
        while self._messages and size < limit:
            message = next(self._messages[0], None)
            if message is None:
                self._messages.popleft()
                continue
            taken.append(message)
            size += len(message.data) if isinstance(message, Piece) else 0
        return taken

    @property
    def is_empty(self) -> bool:
        return not self._messages

    def forget(self) -> None:
        """Send everything again at the next look, because something was not received."""
        self._seen.clear()
        self._newest.clear()
        self._older.clear()

    def _checkpoints(self) -> list[str]:
        return [
            path.relative_to(self._folder).as_posix()
            for slot in ("last", "best")
            for path in sorted(self._folder.glob(f"checkpoint/*/{slot}"))
        ]

    def _queue_file(self, path: Path, name: str) -> None:
        try:
            status = path.stat()
        except OSError:  # replaced at this moment; the next look finds it
            return
        now = (status.st_ino, status.st_size, status.st_mtime_ns)
        before = self._seen.get(name)
        if now == before:
            return
        self._seen[name] = now
        grows = path.suffix == ".log" or "tfevents" in path.name
        grew = before is not None and before[0] == now[0] and before[1] <= now[1]
        start = before[1] if before is not None and grows and grew else 0
        self._messages.append(_pieces(path, name, start, status.st_size))

    def _freeze(self, checkpoint: str) -> Iterator[FileMessage] | None:
        """Keep the files of a new checkpoint under other names until they have been sent."""
        source, frozen = self._folder / checkpoint, self._frozen / checkpoint
        files = _contents(source)
        if not files or files == self._newest.get(checkpoint):
            return None
        try:
            shutil.rmtree(frozen, ignore_errors=True)
            frozen.mkdir(parents=True)
            for name in files:
                checkpoint_manifest.link(source / name, frozen / name)
        except OSError:
            return None
        if _contents(frozen) != files:  # it was replaced meanwhile; the next look finds the new one
            return None
        known = self._older.get(checkpoint, {})
        self._older[checkpoint] = self._newest.get(checkpoint, {})
        self._newest[checkpoint] = files
        return _checkpoint(checkpoint, frozen, files, known)


class FileReceiver:
    """Writes what a `FileSender` sends into a run folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def accept(self, message: FileMessage) -> bool:
        """Carry out a message; a failure is a warning and False, since training goes on."""
        try:
            match message:
                case Begin(checkpoint):
                    arriving = _arriving(self._inside(checkpoint))
                    make_folder(self._folder, arriving.parent)
                    shutil.rmtree(arriving, ignore_errors=True)
                    arriving.mkdir()
                case Piece():
                    self._write(message)
                case Same(name):
                    path = self._inside(name)
                    older = path.parent.with_name(f"{path.parent.name}-1")
                    checkpoint_manifest.link(older / path.name, _arriving(path.parent) / path.name)
                case Complete(checkpoint):
                    return self._install(self._inside(checkpoint))
        except OSError as error:
            logger.warning(f"{self._folder}: {error.filename}: not written ({error.strerror})")
            return False
        return True

    def _write(self, piece: Piece) -> None:
        path = self._inside(piece.path)
        if re.match(r"checkpoint/[^/]+/(last|best)/", piece.path):
            path = _arriving(path.parent) / path.name
        check_place(self._folder, path)
        with path.open("wb" if piece.offset == 0 else "r+b") as file:
            file.seek(piece.offset)
            file.write(piece.data)

    def _install(self, checkpoint: Path) -> bool:
        arriving = _arriving(checkpoint)
        try:
            checkpoint_manifest.check_files(arriving, read_manifest(arriving))
        except CheckpointError as error:
            logger.warning(f"a checkpoint did not arrive, the one before it is kept: {error}")
            shutil.rmtree(arriving, ignore_errors=True)
            return False
        checkpoint_manifest.rotate(arriving, checkpoint)
        return True

    def _inside(self, name: str) -> Path:
        parts = PurePosixPath(name).parts
        if not parts or not all(checkpoint_manifest.is_plain_name(part) for part in parts):
            raise ValueError(f"{name!r:.80} is no file of a run folder")
        return self._folder.joinpath(*parts)


def session_files(folder: Path, session_name: str) -> Iterator[FileMessage]:
    """The files a session needs to continue elsewhere: checkpoints, curves and log."""
    checkpoints = folder / "checkpoint" / session_name
    files = [path for path in sorted(checkpoints.rglob("*")) if path.is_file()]
    files += sorted(folder.glob(f"info/{session_name}_*.csv"))
    files += sorted(folder.glob(f"log/{session_name}.log"))
    for path in files:
        name = path.relative_to(folder).as_posix()
        if path.suffix != ".lock" and ".arriving/" not in name:
            yield from _pieces(path, name, 0, path.stat().st_size)


def write_plain(folder: Path, message: FileMessage) -> None:
    """Write a message of `session_files` into a scratch folder that nothing reads yet."""
    assert isinstance(message, Piece)
    path = folder / message.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb" if message.offset == 0 else "ab") as file:
        file.write(message.data)


def _pieces(path: Path, name: str, start: int, end: int) -> Iterator[Piece]:
    try:
        with path.open("rb") as file:
            file.seek(start)
            offset = start
            while True:
                data = file.read(min(PIECE_BYTES, end - offset))
                yield Piece(name, offset, data)
                offset += len(data)
                if offset >= end or not data:
                    return
    except OSError:  # gone before it could be read; the next look tells
        return


def _checkpoint(name: str, frozen: Path, files: Files, known: Files) -> Iterator[FileMessage]:
    yield Begin(name)
    for file, entry in files.items():
        if known.get(file) == entry:
            yield Same(f"{name}/{file}")
        else:
            yield from _pieces(frozen / file, f"{name}/{file}", 0, entry.size)
    yield Complete(name)
    shutil.rmtree(frozen, ignore_errors=True)


def _contents(checkpoint: Path) -> Files:
    """The files of a checkpoint and its manifest, with checksums; none unless it is whole now."""
    try:
        files = dict(read_manifest(checkpoint).files)
        text = (checkpoint / MANIFEST).read_bytes()
    except (CheckpointError, OSError):
        return {}
    return files | {MANIFEST: FileEntry(len(text), hashlib.sha256(text).hexdigest())}


def _arriving(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.arriving")
