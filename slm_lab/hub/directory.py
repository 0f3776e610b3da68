"""A directory as a remote: a mounted share, a second disk, a synchronised folder."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from slm_lab.hub.remote import (
    DATA,
    NotAllowed,
    RemoteError,
    RemoteFile,
    Sent,
    check_files,
    check_folder,
    file_sha256,
)
from slm_lab.runs.files import check_place, open_for_reading, read_json, remove_file, replacing
from slm_lab.runs.lock import locked
from slm_lab.spec.run_folder import RunFolderError, listed

INCOMING = ".incoming"  # beside data/: files that have arrived and are not in place yet
DONE = "complete.json"  # written last: it makes the upload count
THREADS = 4
MAX_NOTE_BYTES = 32_000_000


class DirectoryRemote:
    """Run folders under `{root}/data`.

    An upload arrives in `{root}/.incoming/{folder}` and is then moved into place, file by file.
    An upload killed before `complete.json` exists has no effect. One killed later is complete: a
    listing shows the files that have arrived instead of the old ones, and the next upload moves
    them.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def label(self) -> str:
        return f"file:{self._root}"

    def folders(self) -> list[str]:
        self._check_root()
        names = {path.name for path in listed(self._root / DATA) if path.is_dir()}
        names |= {path.parent.name for path in (self._root / INCOMING).glob(f"*/{DONE}")}
        return sorted(name for name in names if not name.startswith("."))

    def files(self, folder: str) -> dict[str, RemoteFile]:
        check_folder(folder)
        self._check_root()
        with self._explained(folder):
            paths = dict(_walk(self._root / DATA / folder))
            arrived, gone = self._arrived(folder)
            paths = {name: path for name, path in (paths | arrived).items() if name not in gone}
            check_files(folder, paths)
            return {name: _remote_file(path) for name, path in sorted(paths.items())}

    def download(self, folder: str, name: str, file: RemoteFile, target: Path, temp: Path) -> None:
        with self._explained(folder):
            arrived, _ = self._arrived(folder)
            source = arrived.get(name, self._root / DATA / folder / name)
            part = temp / f"{hashlib.sha256(name.encode()).hexdigest()}.part"
            _copy(self._root, source, temp, part)
            part.replace(target)

    def check_upload(self) -> None:
        self._check_root()
        if not os.access(self._root, os.W_OK | os.X_OK):
            raise NotAllowed(f"{self.label}: cannot be written to. Ask for write access to it.")

    def upload(
        self, folder: str, files: Mapping[str, Path], gone: Collection[str], sent: Sent
    ) -> None:
        check_folder(folder)
        check_files(folder, files)
        self._check_root()
        incoming = self._root / INCOMING / folder
        lock = self._root / INCOMING / ".locks" / folder
        with self._explained(folder), locked(lock, f"{folder} in {self.label}", folder=self._root):
            self._finish(folder)

            def send(item: tuple[str, Path]) -> None:
                name, source = item
                target = incoming / "files" / name
                _copy(source.parent, source, self._root, target)
                sent(target.stat().st_size)

            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(send, files.items()))
            message = f"slm-lab push {folder}"
            note = {"files": sorted(files), "gone": sorted(gone), "message": message}
            with replacing(self._root, incoming / DONE) as file:
                file.write(json.dumps(note).encode())
                file.flush()
                os.fsync(file.fileno())
            self._finish(folder)

    def _finish(self, folder: str) -> None:
        """Move a complete upload into place, or discard a partial one."""
        incoming, target = self._root / INCOMING / folder, self._root / DATA / folder
        arrived, gone = self._arrived(folder)
        for name, path in arrived.items():
            check_place(self._root, target / name)  # a link there would lead it elsewhere
            path.replace(target / name)
        for name in gone:
            remove_file(self._root, target / name)
        for parent in {(target / name).parent for name in gone}:
            _remove_empty(parent, target)
        # The note goes first: without it the remaining files are ignored.
        remove_file(self._root, incoming / DONE)
        shutil.rmtree(incoming, ignore_errors=True)

    def _arrived(self, folder: str) -> tuple[dict[str, Path], set[str]]:
        """(files of a complete upload that are not in place yet, files it removes)."""
        incoming = self._root / INCOMING / folder
        if not os.path.lexists(incoming / DONE):
            return {}, set()
        try:
            note = read_json(self._root, incoming / DONE, MAX_NOTE_BYTES)
            names, gone = list(map(str, note["files"])), set(map(str, note["gone"]))
        except RunFolderError as error:
            raise RemoteError(str(error)) from None
        except (KeyError, TypeError) as error:
            found = f"is damaged ({error!r:.80})"
            raise RemoteError(f"{incoming / DONE}: {found}. Remove it.") from None
        check_files(folder, names)
        check_files(folder, gone)
        paths = {name: incoming / "files" / name for name in names}
        here = {name: path for name, path in paths.items() if os.path.lexists(path)}
        for path in here.values():
            with open_for_reading(self._root, path):  # refuses a link in any part of it
                pass
        return here, gone

    def _check_root(self) -> None:
        # It is never created: a share that is not mounted would fill the disk beneath it.
        if not self._root.is_dir():
            fix = f"Mount it, create it with `mkdir -p {self._root}`, or give another with HF_REPO"
            raise NotAllowed(f"{self.label}: no such directory. {fix} or --repo.")

    @contextmanager
    def _explained(self, folder: str) -> Iterator[None]:
        try:
            yield
        except RunFolderError as error:
            raise RemoteError(f"{self.label}: {error}") from None
        except OSError as error:
            found = f"{error.filename or folder}: {error.strerror}"
            fix = "What was copied so far is kept; run the command again."
            raise RemoteError(f"{self.label}: {found}. {fix}") from None


def _remote_file(path: Path) -> RemoteFile:
    status = path.lstat()
    oid = _sha256(path, status.st_size, status.st_mtime_ns, status.st_ino)
    return RemoteFile(status.st_size, oid)


@functools.lru_cache(maxsize=100_000)
def _sha256(path: Path, *stamp: int) -> str:
    """Checksum of a file, which is read again only if its stamp has changed."""
    return file_sha256(path)


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Plain files of a folder, by path in it; a link may lead anywhere and is refused."""
    if folder.is_symlink():
        raise RemoteError(f"{folder}: is a link. Not followed.")
    if not folder.is_dir():
        return
    for parent, folders, names in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *names)):
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                yield path.relative_to(folder).as_posix(), path
            elif not stat.S_ISDIR(mode):
                raise RemoteError(f"{path}: is no plain file. Not followed; remove it.")


def _copy(source_root: Path, source: Path, target_root: Path, target: Path) -> None:
    with open_for_reading(source_root, source) as reader, replacing(target_root, target) as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
        writer.flush()
        os.fsync(writer.fileno())


def _remove_empty(folder: Path, root: Path) -> None:
    with suppress(OSError):  # not empty
        while folder != root:
            folder.rmdir()
            folder = folder.parent
