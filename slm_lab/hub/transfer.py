"""Push a run folder to a remote, or pull one from it.

Beside the run folders lies `.hub`, where a push keeps its copy and a pull the files that have
arrived. An interrupted transfer goes on from there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from threading import Lock

from slm_lab.hub.remote import (
    MAX_BYTES,
    Remote,
    RemoteError,
    RemoteFile,
    check_folder,
    file_entry,
    known_files,
    listed,
    manifest_bytes,
    read_run_manifest,
)
from slm_lab.hub.run_card import write_card
from slm_lab.hub.snapshot import take_snapshot
from slm_lab.runs.checkpoint_manifest import MANIFEST, FileEntry
from slm_lab.runs.files import check_no_links, make_folder, write_atomic
from slm_lab.runs.lock import locked
from slm_lab.spec.run_folder import HUB_FOLDER, RunFolderError, spec_files

THREADS = 4
SHOWN = 3  # names in a message

# Called with the bytes that have arrived, and their total.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Result of a push or a pull: files transferred, their bytes, and unchanged files."""

    files: int
    bytes: int
    same: int
    removed: int = 0
    skipped: tuple[str, ...] = ()  # on the remote, but hidden or not in the manifest
    damaged: tuple[str, ...] = ()  # here, but damaged, and so not sent

    def __str__(self) -> str:
        if not self.files and not self.removed:
            return f"up to date, {self.same} file(s)"
        same = f"; {self.same} were there already" if self.same else ""
        removed = f"; {self.removed} removed" if self.removed else ""
        return f"{self.files} file(s), {human_bytes(self.bytes)}{same}{removed}"


def matching(folders: list[str], pattern: str) -> list[str]:
    """Folders that match a pattern: that name, else all that contain it; `*` and `?` work."""
    if pattern in folders:
        return [pattern]
    folded = pattern if any(c in pattern for c in "*?[") else f"*{pattern}*"
    return [name for name in folders if fnmatchcase(name, folded)]


def push(
    remote: Remote, run_dir: Path, *, force: bool = False, progress: Progress | None = None
) -> Transfer:
    """Send the new and changed files of a run folder, whose run may go on meanwhile.

    Refused if the remote holds files that were never here: they would be lost. `force` sends all.
    """
    with _explained(run_dir.name):
        spec_files(run_dir)
    run_dir = run_dir.resolve()
    name = run_dir.name
    check_folder(name)
    scratch = run_dir.parent / HUB_FOLDER / "push" / name
    remote.check_upload()
    with _explained(name), _turn(run_dir.parent, name):
        there = remote.files(name)
        ours = [run_dir / MANIFEST, scratch / MANIFEST]  # as last shared, and as last tried
        is_ours = not there or any(there[MANIFEST].is_same(p) for p in ours if MANIFEST in there)
        known = known_files(run_dir)
        make_folder(run_dir.parent, scratch.parent)
        write_card(run_dir)
        snapshot = take_snapshot(run_dir, scratch)
        changed = {
            file: entry
            for file, entry in snapshot.files.items()
            if file not in there or not there[file].is_same(snapshot.folder / file, entry)
        }
        lost = [file for file in there if file in changed and file != MANIFEST]
        if lost and not is_ours and not force:
            found = f"{remote.label} holds another state than was last pushed or pulled here"
            fix = f"See it with `slm-lab pull {name} --data elsewhere`, or replace it with --force."
            raise RemoteError(f"{name}: {found} ({_some(lost)}). {fix}")
        gone = [file for file in known if file in there and file not in snapshot.files]
        if changed or gone:
            total = sum(entry.size for entry in changed.values())
            sources = {file: snapshot.folder / file for file in changed}
            remote.upload(name, sources, gone, _counter(total, progress))
        write_atomic(run_dir, run_dir / MANIFEST, (snapshot.folder / MANIFEST).read_bytes())
        shutil.rmtree(scratch, ignore_errors=True)
    sizes = [entry.size for file, entry in changed.items() if file != MANIFEST]
    same = len(snapshot.files) - 1 - len(sizes)  # without the manifest
    return Transfer(len(sizes), sum(sizes), same, len(gone), damaged=snapshot.left_out)


def pull(
    remote: Remote,
    folder: str,
    data_dir: Path,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> Transfer:
    """Fetch the new and changed files of a run folder, each checked before it is put in place.

    No fetched file is loaded or executed. Refused if files here were changed since they were last
    pushed or pulled; `force` replaces them.
    """
    check_folder(folder)
    target = data_dir / folder
    scratch = data_dir / HUB_FOLDER / "pull" / folder
    arrived, unfinished = scratch / "files", scratch / "unfinished"
    with _explained(folder), _turn(data_dir, folder):
        _refuse_links(target)
        there = remote.files(folder)
        if not there:
            fix = "`slm-lab list --remote` shows what is."
            raise RemoteError(f"{folder}: not in {remote.label}. {fix}")
        make_folder(data_dir, unfinished)
        check_no_links(scratch)
        manifest = _fetch_manifest(remote, folder, there, arrived, unfinished)
        wanted = _wanted(folder, there, manifest)
        # The listing may have a git SHA-1 where the manifest has a SHA-256.
        expected = there if manifest is None else {f: listed(e) for f, e in manifest.items()}
        missing = {f: r for f, r in wanted.items() if not expected[f].is_same(target / f)}
        known = known_files(target)
        if not force:
            _refuse_changed(target, missing, known)
        total = sum(file.size for file in missing.values())
        _check_space(data_dir, total)
        count = _counter(total, progress)

        def fetch(name: str) -> None:
            path = arrived / name
            make_folder(data_dir, path.parent)
            if not expected[name].is_same(path):
                _download(remote, folder, name, there[name], expected[name], path, unfinished)
            count(there[name].size)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(fetch, missing))  # the first failure cancels all that has not begun
        gone = [file for file in known if file not in wanted]  # those changed here stay
        removed = [file for file in gone if _is_unchanged(target, file, known)]
        if manifest is None:  # by which later changes are found
            places = {f: arrived / f if f in missing else target / f for f in wanted}
            manifest = {name: file_entry(path) for name, path in places.items()}
        write_atomic(data_dir, arrived / MANIFEST, manifest_bytes(manifest))
        _remove_others(arrived, {*missing, MANIFEST})  # of an earlier attempt
        _put_in_place(arrived, target, [*missing, MANIFEST], removed)
        shutil.rmtree(scratch, ignore_errors=True)
    same, skipped = len(wanted) - len(missing), there.keys() - wanted.keys() - {MANIFEST}
    return Transfer(len(missing), total, same, len(removed), skipped=tuple(sorted(skipped)))


def human_bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


# Steps of a pull


def _fetch_manifest(
    remote: Remote, folder: str, there: Mapping[str, RemoteFile], arrived: Path, unfinished: Path
) -> dict[str, FileEntry] | None:
    """Fetch the manifest; None if the folder was shared without one, as by the original."""
    if MANIFEST not in there:
        return None
    path, file = arrived / MANIFEST, there[MANIFEST]
    if file.size > MAX_BYTES:
        raise RemoteError(f"{folder}: its {MANIFEST} has {file.size:,} bytes. Refused.")
    arrived.mkdir(exist_ok=True)
    _download(remote, folder, MANIFEST, file, file, path, unfinished)
    return read_run_manifest(path, folder)


def _wanted(
    folder: str, there: Mapping[str, RemoteFile], manifest: Mapping[str, FileEntry] | None
) -> dict[str, RemoteFile]:
    """The files to fetch: those of the manifest, which must agree with the listing.

    A name with a part that begins with a dot is left out: `.env` and `.git` steer programs.
    """
    for name, entry in (manifest or {}).items():
        file = there.get(name)
        if file is None or not file.may_be(entry):
            found = "is missing" if file is None else "is another than its manifest says"
            reason = "It is being pushed at this moment, or was damaged"
            fix = "try again, or have it pushed again."
            raise RemoteError(f"{folder}: {name} {found}. {reason}: {fix}")
    names = there if manifest is None else manifest
    hidden = {name for name in names if any(part.startswith(".") for part in name.split("/"))}
    return {name: there[name] for name in names if name not in hidden}


def _download(
    remote: Remote,
    folder: str,
    name: str,
    file: RemoteFile,
    expected: RemoteFile,
    path: Path,
    unfinished: Path,
) -> None:
    remote.download(folder, name, file, path, unfinished)
    if not (file.is_same(path) and expected.is_same(path)):
        size = path.stat().st_size if path.is_file() else 0
        path.unlink(missing_ok=True)
        raise RemoteError(
            f"{folder}: {name} arrived damaged ({size:,} of {file.size:,} bytes, or with another "
            "checksum). It was thrown away, and nothing was put in place. Try again."
        )


def _is_unchanged(target: Path, name: str, known: Mapping[str, FileEntry]) -> bool:
    return name in known and listed(known[name]).is_same(target / name)


def _refuse_changed(target: Path, missing: Iterable[str], known: Mapping[str, FileEntry]) -> None:
    here = (name for name in missing if os.path.lexists(target / name))
    if changed := [name for name in here if not _is_unchanged(target, name, known)]:
        raise RemoteError(
            f"{target}: {len(changed)} file(s) here are not what was pushed or pulled last "
            f"({_some(changed)}). Nothing was changed. Keep yours with `slm-lab push {target}`, "
            "pull elsewhere with --data DIR, or replace them with --force."
        )


def _refuse_links(target: Path) -> None:
    """Refuse links in the target, also in `wandb`: a pull would write through them."""
    below = (Path(parent, n) for parent, *names in os.walk(target) for n in chain(*names))
    for path in chain([target], below):
        if path.is_symlink():
            raise RemoteError(f"{path}: is a link, and is not written through. Remove it first.")


def _check_space(data_dir: Path, needed: int) -> None:
    free = shutil.disk_usage(data_dir).free
    if needed > free:
        found = f"{human_bytes(needed)} to fetch, {human_bytes(free)} free"
        fix = "Make room, or give another disk with --data DIR."
        raise RemoteError(f"{data_dir}: {found}. {fix}")


def _remove_others(folder: Path, keep: set[str]) -> None:
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            path = Path(parent, name)
            if path.relative_to(folder).as_posix() not in keep:
                path.unlink()
        with suppress(OSError):  # not empty
            os.rmdir(parent)


def _put_in_place(arrived: Path, target: Path, names: list[str], removed: list[str]) -> None:
    if not target.exists():
        arrived.rename(target)  # in one step
        return
    # The lock keeps a run out. The manifest comes last: after a kill the next pull finds the files
    # that are already in place.
    with locked(target / "checkpoint" / "run.lock", f"run folder {target}", folder=target):
        for name in names:
            make_folder(target.parent, (target / name).parent)
            (arrived / name).replace(target / name)
        for name in removed:
            (target / name).unlink(missing_ok=True)


# Shared by both


def _turn(data_dir: Path, name: str) -> AbstractContextManager[None]:
    """Lock for one push or pull of a folder at a time; a link instead of `.hub` is refused."""
    path = data_dir / HUB_FOLDER / "lock" / name
    return locked(path, f"{name} (a push or pull)", folder=data_dir)


def _counter(total: int, progress: Progress | None) -> Callable[[int], None]:
    done = 0
    turn = Lock()  # files arrive side by side

    def count(size: int) -> None:
        nonlocal done
        with turn:
            done += size
            if progress is not None:
                progress(done, total)

    return count


@contextmanager
def _explained(folder: str) -> Iterator[None]:
    """Make a RemoteError of an error of the disk."""
    try:
        yield
    except RunFolderError as error:
        raise RemoteError(str(error)) from None
    except OSError as error:
        found = f"{error.filename or folder}: {error.strerror or error}"
        fix = "What has arrived is kept; run the command again once that is mended."
        raise RemoteError(f"{folder}: {found}. {fix}") from None


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
