"""Push a run folder to a remote, or pull one from it.

Beside the run folders lies `.hub`, where a push keeps its copy and a pull the files that have
arrived. An interrupted transfer goes on from there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from threading import Lock

from slm_lab.hub.error import RemoteError
from slm_lab.hub.names import check_folder
from slm_lab.hub.remote import Remote, RemoteFile, file_sha256
from slm_lab.hub.run_manifest import MAX_BYTES, RunManifest, known_manifest, read_run_manifest
from slm_lab.hub.snapshot import Snapshot, take_snapshot
from slm_lab.runs.checkpoint_manifest import MANIFEST, FileEntry
from slm_lab.runs.files import check_no_links, make_folder, write_atomic
from slm_lab.runs.lock import locked
from slm_lab.spec.run_folder import RunFolderError, spec_files

SCRATCH = ".hub"
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
    run_dir = _run_folder(run_dir)
    name = run_dir.name
    scratch = run_dir.parent / SCRATCH / "push" / name
    remote.check_upload()
    with _explained(name), _turn(run_dir.parent, name):
        there = remote.files(name)
        ours = [run_dir / MANIFEST, scratch / MANIFEST]  # as last shared, and as last tried
        is_ours = not there or any(there[MANIFEST].is_same(p) for p in ours if MANIFEST in there)
        known = known_manifest(run_dir)
        make_folder(run_dir.parent, scratch.parent)
        snapshot = take_snapshot(run_dir, scratch)
        changed = _changed(snapshot, there)
        if not is_ours and not force:
            _refuse_to_lose(remote, name, snapshot, there)
        gone = [file for file in (known.files if known else ()) if file in there]
        gone = [file for file in gone if file not in snapshot.manifest.files]
        if changed or gone:
            total = sum(entry.size for entry in changed.values())
            remote.upload(
                name,
                {file: snapshot.folder / file for file in changed},
                gone,
                f"slm-lab push {name}",
                _counter(total, progress),
            )
        write_atomic(run_dir, run_dir / MANIFEST, (snapshot.folder / MANIFEST).read_bytes())
        shutil.rmtree(scratch, ignore_errors=True)
    same = len(snapshot.manifest.files) - len(changed.keys() - {MANIFEST})
    sent = {file: entry for file, entry in changed.items() if file != MANIFEST}
    size = sum(entry.size for entry in sent.values())
    return Transfer(len(sent), size, same, len(gone), damaged=snapshot.left_out)


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
    scratch = data_dir / SCRATCH / "pull" / folder
    arrived, unfinished = scratch / "files", scratch / "unfinished"
    with _explained(folder), _turn(data_dir, folder):
        _refuse_links(data_dir, folder)
        there = remote.files(folder)
        if not there:
            raise RemoteError(
                f"{folder}: not in {remote.label}. `slm-lab list --remote` shows what is."
            )
        make_folder(data_dir, unfinished)
        check_no_links(scratch)
        manifest = _fetch_manifest(remote, folder, there, arrived, unfinished)
        wanted = _wanted(folder, there, manifest)
        missing = {f: r for f, r in wanted.items() if not _is_here(target / f, r, manifest, f)}
        known = known_manifest(target)
        if not force:
            _refuse_to_overwrite(target, missing, known)
        _check_space(data_dir, sum(file.size for file in missing.values()))
        count = _counter(sum(file.size for file in missing.values()), progress)

        def fetch(item: tuple[str, RemoteFile]) -> None:
            name, file = item
            path = arrived / name
            make_folder(data_dir, path.parent)
            if not _is_here(path, file, manifest, name):
                remote.download(folder, name, file, path, unfinished)
                _check_arrival(folder, path, name, file, manifest)
            count(file.size)

        _in_parallel(fetch, list(missing.items()))
        removed = _stale(target, known, wanted)
        if manifest is None:
            manifest = _manifest_of(wanted, arrived, target)
        write_atomic(data_dir, arrived / MANIFEST, manifest.to_bytes())
        _remove_others(arrived, {*missing, MANIFEST})  # of an earlier attempt
        _put_in_place(arrived, target, [*missing, MANIFEST], removed)
        shutil.rmtree(scratch, ignore_errors=True)
    return Transfer(
        len(missing),
        sum(file.size for file in missing.values()),
        len(wanted) - len(missing),
        len(removed),
        skipped=tuple(sorted(there.keys() - wanted.keys() - {MANIFEST})),
    )


def human_bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


# Pushing


def _run_folder(path: Path) -> Path:
    try:
        spec_files(path)
    except RunFolderError as error:
        raise RemoteError(str(error)) from None
    run_dir = path.resolve()
    check_folder(run_dir.name)
    return run_dir


def _changed(snapshot: Snapshot, there: Mapping[str, RemoteFile]) -> dict[str, FileEntry]:
    return {
        name: entry
        for name, entry in snapshot.entries.items()
        if name not in there or not there[name].is_same(snapshot.folder / name, entry)
    }


def _refuse_to_lose(
    remote: Remote, name: str, snapshot: Snapshot, there: Mapping[str, RemoteFile]
) -> None:
    """Refuse to replace files that were not pushed from here, unless they are the same."""
    entries = snapshot.entries
    lost = [
        file
        for file, remote_file in there.items()
        if file != MANIFEST
        and file in entries
        and not remote_file.is_same(snapshot.folder / file, entries[file])
    ]
    if lost:
        raise RemoteError(
            f"{name}: {remote.label} holds another state than was last pushed or pulled here "
            f"({_some(lost)}). See it with `slm-lab pull {name} -d elsewhere`, or replace it with "
            "--force."
        )


# Pulling


def _fetch_manifest(
    remote: Remote,
    folder: str,
    there: Mapping[str, RemoteFile],
    arrived: Path,
    unfinished: Path,
) -> RunManifest | None:
    """Fetch the manifest; None if the folder was shared without one, as by the original."""
    if MANIFEST not in there:
        return None
    path, file = arrived / MANIFEST, there[MANIFEST]
    if file.size > MAX_BYTES:
        raise RemoteError(f"{folder}: its {MANIFEST} has {file.size:,} bytes. Refused.")
    arrived.mkdir(exist_ok=True)
    remote.download(folder, MANIFEST, file, path, unfinished)
    _check_arrival(folder, path, MANIFEST, file, None)
    return read_run_manifest(path, folder)


def _wanted(
    folder: str, there: Mapping[str, RemoteFile], manifest: RunManifest | None
) -> dict[str, RemoteFile]:
    """The files to fetch: those of the manifest, which must agree with the listing.

    A name with a part that begins with a dot is left out: `.env` and `.git` steer programs.
    """
    if manifest is None:
        return {name: file for name, file in there.items() if not _is_hidden(name)}
    for name, entry in manifest.files.items():
        file = there.get(name)
        if file is None or file.size != entry.size or not _agrees(file, entry):
            found = "is missing" if file is None else "is another than its manifest says"
            raise RemoteError(
                f"{folder}: {name} {found}. It is being pushed at this moment, or was damaged: "
                "try again, or have it pushed again."
            )
    return {name: there[name] for name in manifest.files if not _is_hidden(name)}


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _agrees(file: RemoteFile, entry: FileEntry) -> bool:
    return len(file.oid) != len(entry.sha256) or file.oid == entry.sha256


def _is_here(path: Path, file: RemoteFile, manifest: RunManifest | None, name: str) -> bool:
    if manifest is None:
        return _is_plain(path) and file.is_same(path)
    return _has_content(path, manifest.files[name])


def _is_unchanged(target: Path, name: str, known: RunManifest | None) -> bool:
    entry = known.files.get(name) if known else None
    return entry is not None and _has_content(target / name, entry)


def _has_content(path: Path, entry: FileEntry) -> bool:
    return (
        _is_plain(path) and path.stat().st_size == entry.size and file_sha256(path) == entry.sha256
    )


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _check_arrival(
    folder: str, path: Path, name: str, file: RemoteFile, manifest: RunManifest | None
) -> None:
    is_good = file.is_same(path)
    if is_good and manifest is not None:
        is_good = file_sha256(path) == manifest.files[name].sha256
    if not is_good:
        size = path.stat().st_size if path.is_file() else 0
        path.unlink(missing_ok=True)
        raise RemoteError(
            f"{folder}: {name} arrived damaged ({size:,} of {file.size:,} bytes, or with another "
            "checksum). It was thrown away, and nothing was put in place. Try again."
        )


def _refuse_to_overwrite(
    target: Path, missing: Mapping[str, RemoteFile], known: RunManifest | None
) -> None:
    changed = [
        name
        for name in missing
        if os.path.lexists(target / name) and not _is_unchanged(target, name, known)
    ]
    if changed:
        raise RemoteError(
            f"{target}: {len(changed)} file(s) here are not what was pushed or pulled last "
            f"({_some(changed)}). Nothing was changed. Keep yours with `slm-lab push {target}`, "
            "pull elsewhere with -d FOLDER, or replace them with --force."
        )


def _stale(target: Path, known: RunManifest | None, wanted: Mapping[str, RemoteFile]) -> list[str]:
    """Unchanged files of an earlier pull that are no longer part of the run."""
    return [
        name
        for name in (known.files if known else ())
        if name not in wanted and _is_unchanged(target, name, known)
    ]


def _refuse_links(data_dir: Path, folder: str) -> None:
    """Refuse links in the target, also in `wandb`: a pull would write through them."""
    target = data_dir / folder
    links = [target] if target.is_symlink() else []
    for parent, folders, names in os.walk(target) if not links else ():
        links += [path for n in (*folders, *names) if (path := Path(parent, n)).is_symlink()]
    if links:
        raise RemoteError(f"{links[0]}: is a link, and is not written through. Remove it first.")


def _check_space(data_dir: Path, needed: int) -> None:
    free = shutil.disk_usage(data_dir).free
    if needed > free:
        raise RemoteError(
            f"{data_dir}: {human_bytes(needed)} to fetch, {human_bytes(free)} free. "
            "Make room, or give another disk with -d FOLDER."
        )


def _manifest_of(wanted: Mapping[str, RemoteFile], arrived: Path, target: Path) -> RunManifest:
    """Manifest for a folder that came without one, by which later changes are found."""
    files = {}
    for name in wanted:
        path = arrived / name if (arrived / name).is_file() else target / name
        files[name] = FileEntry(path.stat().st_size, file_sha256(path))
    return RunManifest(files)


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
    path = data_dir / SCRATCH / "lock" / name
    return locked(path, f"{name} (a push or pull)", folder=data_dir)


def _in_parallel(
    work: Callable[[tuple[str, RemoteFile]], None], items: list[tuple[str, RemoteFile]]
) -> None:
    """Do the work in threads; the first failure cancels all that has not begun."""
    pool = ThreadPoolExecutor(THREADS)
    try:
        for future in [pool.submit(work, item) for item in items]:
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)


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
        where = error.filename or folder
        raise RemoteError(
            f"{folder}: {where}: {error.strerror or error}. What has arrived is kept; run the "
            "command again once that is mended."
        ) from None


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
