"""Read and write the files of a run folder; no other module opens one.

A run folder may have been downloaded, so nothing in it is trusted. `folder` is the run folder that
the user named, and may itself be reached through links; below it no link is followed. Only plain
files are opened: a pipe would hang the reader, a link would lead a writer somewhere else. Reading
has a size limit. A written file appears under its name when it is whole.

A file that cannot be read is a `RunFolderError`; so is a link or a pipe in the place of a file to
be written. A disk that is full or read-only is an OSError that names the file: `write_or_warn`
makes a warning of it.

Every step is taken relative to an open directory, so that nobody can exchange a checked directory
for a link. Windows has no such handles: there each part of a path is looked at before the file is
opened, and whoever may write to the folder could exchange it in between.
docs/design/run-folder-files.md has the reasons.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, NoReturn

from loguru import logger

from slm_lab.spec.run_folder import RunFolderError
from slm_lab.spec.text import TextError, decode, parse

MAX_TEXT_BYTES = 64_000_000  # far above any other text that a run writes
MAX_TABLE_BYTES = 200_000_000  # of the table of a session
MAX_SPEC_BYTES = MAX_METRICS_BYTES = 1_000_000
WANDB = "wandb"  # W&B's own folder, in which it keeps links; nothing here reads or writes there

HAS_HANDLES = os.open in os.supports_dir_fd and hasattr(os, "O_DIRECTORY")  # of directories


def _flags(*names: str) -> int:
    """Flags for `os.open`; those that a system does not have are left out."""
    return sum(getattr(os, name, 0) for name in names)


_FOLDER = _flags("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC")
# Without O_NONBLOCK, opening a pipe waits for the process at its other end.
_FILE = _flags("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
FOR_READING = os.O_RDONLY | _FILE
_MODE = 0o666  # the umask takes its share, as for every file


# Reading


@contextmanager
def open_for_reading(
    folder: Path, path: Path, limit: int | None = None
) -> Iterator[BufferedReader]:
    """Open a plain file of at most `limit` bytes, or raise a RunFolderError."""
    try:
        with _parent(folder, path) as (handle, name):
            descriptor = os.open(name, FOR_READING, dir_fd=handle)
    except (OSError, ValueError) as error:
        _refuse(folder, path, error)
    status = os.fstat(descriptor)
    problem = ""
    if not stat.S_ISREG(status.st_mode):
        problem = "expected a plain file. Remove it, or put one there."
    elif limit is not None and status.st_size > limit:
        found = f"{status.st_size:,} bytes, expected {limit:,} at most"
        problem = f"{found}. No run writes so much; remove it."
    if problem:
        os.close(descriptor)
        raise RunFolderError(f"{path}: {problem}")
    with os.fdopen(descriptor, "rb") as file:
        try:
            yield file
        except OSError as error:
            raise RunFolderError(f"{path}: cannot be read ({error.strerror or error}).") from None


def read_bytes(folder: Path, path: Path, limit: int = MAX_TEXT_BYTES) -> bytes:
    with open_for_reading(folder, path, limit) as file:
        return file.read(limit)  # it may have grown meanwhile


def read_text(folder: Path, path: Path, limit: int = MAX_TEXT_BYTES) -> str:
    try:
        return read_bytes(folder, path, limit).decode()
    except UnicodeDecodeError as error:
        raise RunFolderError(f"{path}: is no text in UTF-8 ({error.reason}).") from None


def read_json(folder: Path, path: Path, limit: int = MAX_TEXT_BYTES) -> dict[str, Any]:
    """Read a JSON object; NaN and Infinity are numbers, as in the metrics of a run."""
    text = read_text(folder, path, limit)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path}: is damaged, expected JSON ({error!s:.100}).") from None
    if not isinstance(content, dict):
        raise RunFolderError(f"{path}: holds a {type(content).__name__}, expected a JSON object.")
    return content


def read_json_or_empty(folder: Path, path: Path, limit: int = MAX_METRICS_BYTES) -> dict[str, Any]:
    """Read a JSON object that may be missing, half written or damaged; empty if it is."""
    try:
        return read_json(folder, path, limit)
    except RunFolderError:
        return {}


def read_spec_tree(folder: Path, path: Path) -> Mapping[str, Any]:
    """Read a saved spec as plain data, not validated: for a reader of a few names in it."""
    try:
        text = decode(read_bytes(folder, path, MAX_SPEC_BYTES))
        tree = parse(text, is_json=path.suffix == ".json")
    except TextError as error:
        raise RunFolderError(f"{path}: {error}") from None
    if not isinstance(tree, Mapping):
        raise RunFolderError(f"{path}: expected a mapping of keys, found {type(tree).__name__}")
    return tree


def read_tail(folder: Path, path: Path, size: int) -> str:
    """The last whole lines of a text file, at most `size` bytes; empty if it cannot be read."""
    try:
        with open_for_reading(folder, path) as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - size))
            text = file.read(size).decode("utf-8", errors="replace")
    except RunFolderError:
        return ""
    return text if length <= size else text.partition("\n")[2]


def plain_files(folder: Path, where: Path) -> list[Path]:
    """The plain files of a folder inside, by name; none if it is a link or does not exist."""
    try:
        with (
            _parent(folder, where / "_") as (handle, _),
            os.scandir(where if handle is None else handle) as entries,
        ):
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except (OSError, RunFolderError):
        return []
    return sorted(where / name for name in names)


# Writing


@contextmanager
def replacing(folder: Path, path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of `path` when the block ends without an error; a kill
    leaves the old one or the new one. Missing folders above it are created."""
    with _written(folder, path), _parent(folder, path, make=True) as (handle, name):
        _check_replaceable(handle, name)
        beside, flags = _beside(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
        try:
            with suppress(FileNotFoundError):  # the remains of an earlier write
                os.unlink(beside, dir_fd=handle)
            with os.fdopen(os.open(beside, flags, _MODE, dir_fd=handle), "wb") as file:
                yield file
            os.replace(beside, name, src_dir_fd=handle, dst_dir_fd=handle)
        except BaseException:
            with suppress(OSError):
                os.unlink(beside, dir_fd=handle)
            raise


def write_atomic(folder: Path, path: Path, content: str | bytes) -> None:
    """Write a whole file, which takes the place of the old one at once."""
    with replacing(folder, path) as file:
        # UTF-8 has no bytes for a lone surrogate, which the text of a spec may hold.
        file.write(content if isinstance(content, bytes) else content.encode(errors="replace"))


def write_or_warn(folder: Path, path: Path, content: str | bytes) -> bool:
    """Write a file that a run can do without; a full or read-only disk is a warning."""
    try:
        write_atomic(folder, path, content)
    except OSError as error:
        logger.warning(f"{path}: not written ({error.strerror or error})")
        return False
    return True


def remove_file(folder: Path, path: Path) -> None:
    """Remove a file, if it exists; a link is removed itself, and none above it is followed."""
    with (
        suppress(FileNotFoundError),
        _written(folder, path),
        _parent(folder, path) as (handle, name),
    ):
        os.unlink(name, dir_fd=handle)


def open_for_append(folder: Path, path: Path) -> IO[bytes]:
    """Open a plain file at its end; the file and the folders above it are created if missing."""
    descriptor = _open_for_writing(folder, path, os.O_WRONLY | os.O_APPEND)
    return os.fdopen(descriptor, "ab")


def open_for_locking(folder: Path, path: Path) -> int:
    """Descriptor of a plain file, which is created if missing and never truncated."""
    return _open_for_writing(folder, path, os.O_RDWR)


def make_folder(folder: Path, path: Path) -> None:
    """Create a folder and those above it, or check that they are folders and no links."""
    with _written(folder, path), _parent(folder, path / "_", make=True):
        pass


def check_place(folder: Path, path: Path) -> None:
    """Check a path that a library will open itself: no link above it, at most a file there."""
    with _written(folder, path), _parent(folder, path, make=True) as (handle, name):
        _check_replaceable(handle, name)


@contextmanager
def path_beside(
    path: Path, name: str, folder: Path | None, error: type[Exception]
) -> Iterator[Path]:
    """A path that a library writes to; the file takes the place of `path` if the block ends well.
    `folder` is the run folder, if `path` is in one. A place that cannot be written is an `error`.
    """
    beside = path.with_name(name)
    try:
        if folder is None:
            path.parent.mkdir(parents=True, exist_ok=True)
        for place in (path, beside):
            check_place(folder or path.parent, place)
        beside.touch()
    except OSError as reason:
        found = f"--output: {path} cannot be written ({reason.strerror}). Choose another place."
        raise error(found) from None
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def check_no_links(folder: Path) -> None:
    """Refuse a run folder that holds a link, a pipe or a device: a run would write through it."""
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(parent, name)
            with suppress(FileNotFoundError):  # files come and go
                mode = path.lstat().st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    raise _not_plain(path, mode)
        if Path(parent) == folder and WANDB in folders:
            folders.remove(WANDB)


# Directories and errors


@contextmanager
def _parent(folder: Path, path: Path, *, make: bool = False) -> Iterator[tuple[int | None, str]]:
    """Open the directory that holds the file; yields its handle and the name of the file.

    Without handles it is None and the whole path, of which every part was looked at.
    """
    *above, name = _parts(folder, path)
    if not HAS_HANDLES:
        yield None, _checked_path(folder, above, name, make=make)
        return
    handle = os.open(folder, _flags("O_DIRECTORY", "O_CLOEXEC"))
    try:
        for part in above:
            try:
                below = os.open(part, _FOLDER, dir_fd=handle)
            except FileNotFoundError:
                if not make:
                    raise
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=handle)
                below = os.open(part, _FOLDER, dir_fd=handle)
            os.close(handle)
            handle = below
        yield handle, name
    finally:
        os.close(handle)


def _checked_path(folder: Path, above: Sequence[str], name: str, *, make: bool) -> str:
    """The path of a file none of whose parts below the folder is a link."""
    place = folder.resolve(strict=True)
    for part in above:
        place = place / part
        if make:
            with suppress(FileExistsError):
                place.mkdir()
        if not stat.S_ISDIR(_mode(place)):
            raise OSError(errno.ENOTDIR, "no folder")
    with suppress(FileNotFoundError):
        if stat.S_ISLNK(_mode(place / name)):
            raise OSError(errno.ELOOP, "a link")
    return str(place / name)


def _mode(path: Path) -> int:
    """The mode of a path; a junction of Windows, which leads elsewhere, is a link."""
    status = path.lstat()
    leads_on = getattr(status, "st_reparse_tag", 0) == getattr(
        stat, "IO_REPARSE_TAG_MOUNT_POINT", -1
    )
    return stat.S_IFLNK if leads_on else status.st_mode


def _beside(name: str) -> str:
    """Where a file is written before it takes its name, which may be a whole path."""
    parent, last = os.path.split(name)
    return os.path.join(parent, f".{last}.tmp")


def _parts(folder: Path, path: Path) -> tuple[str, ...]:
    try:
        parts = path.relative_to(folder).parts
    except ValueError:
        parts = ()
    if not parts or ".." in parts:
        raise RunFolderError(f"{path}: is no file of the folder {folder}.")
    return parts


def _open_for_writing(folder: Path, path: Path, flags: int) -> int:
    with _written(folder, path), _parent(folder, path, make=True) as (handle, name):
        descriptor = os.open(name, flags | os.O_CREAT | _FILE, _MODE, dir_fd=handle)
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            os.close(descriptor)
            raise _not_plain(path, mode)
        return descriptor


def _check_replaceable(handle: int | None, name: str) -> None:
    """Refuse to replace a link, which somebody made for a reason, or a folder."""
    with suppress(FileNotFoundError):
        mode = os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.ELOOP, "no plain file")


@contextmanager
def _written(folder: Path, path: Path) -> Iterator[None]:
    """Name the file in an OSError; a link or a pipe in the way is a RunFolderError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR):
            _refuse_not_plain(folder, path)
        if os.sep in str(error.filename or ""):  # named already: by a `replacing` inside this one
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def _refuse(folder: Path, path: Path, error: OSError | ValueError) -> NoReturn:
    """Say why a file cannot be read."""
    if isinstance(error, RunFolderError):
        raise error
    if isinstance(error, FileNotFoundError):
        raise RunFolderError(f"{path}: no such file.") from None
    if isinstance(error, OSError):
        _refuse_not_plain(folder, path)
    reason = getattr(error, "strerror", None) or error
    raise RunFolderError(f"{path}: cannot be read ({reason}).") from None


def _refuse_not_plain(folder: Path, path: Path) -> None:
    """Name the part of the path that is a link, or neither a folder nor a file."""
    place = folder
    for part in _parts(folder, path):
        place = place / part
        try:
            mode = place.lstat().st_mode
        except OSError:
            return
        if not (stat.S_ISDIR(mode) if place != path else stat.S_ISREG(mode)):
            raise _not_plain(place, mode) from None


def _not_plain(path: Path, mode: int) -> RunFolderError:
    if stat.S_ISLNK(mode):
        try:
            where = f" to {os.readlink(path)!r:.200}"
        except OSError:
            where = ""
        return RunFolderError(
            f"{path}: is a link{where}. No link in a run folder is followed, to read or to write. "
            "Remove it, or put there what it leads to."
        )
    if stat.S_ISREG(mode):
        return RunFolderError(f"{path}: is a file, expected a folder. Remove it.")
    kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
    return RunFolderError(f"{path}: is {kind}, expected a plain file. Remove it.")
