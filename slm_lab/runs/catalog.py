"""The runs of a data folder, looked at again only where files have changed.

Nothing is written, no lock is taken, and a folder that cannot be read hides no other.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slm_lab.runs.layout import FOLDERS, RunLayout
from slm_lab.runs.lock import is_held, lock_holders
from slm_lab.runs.saved_run import TIMESTAMP, RunFolderError
from slm_lab.runs.summary import (
    RunSummary,
    last_updated,
    moving_files,
    stamp,
    summarize,
    unreadable,
)
from slm_lab.spec.run_folder import SPEC_FILE

DEPTH = 3  # folders below the data folder in which runs are looked for
# A lock of another machine cannot be seen. Its run counts as running while its files change.
QUIET_SECONDS = 600.0
RUN_FOLDERS = frozenset({*FOLDERS, "checkpoint", "ray_tune", "video", "validation"})


class RunCatalog:
    """Owns what is known of a data folder. `scan` looks again only at runs whose files changed;
    `version` counts the scans that brought news."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).resolve()
        self.version = 0
        self._known: dict[Path, tuple[_Trace, RunSummary]] = {}
        self._by_key: dict[str, RunSummary] = {}
        self._lock = threading.Lock()

    def scan(self) -> tuple[RunSummary, ...]:
        """All runs, the one that started last first."""
        with self._lock:
            holders = lock_holders()
            found: dict[Path, tuple[_Trace, RunSummary]] = {}
            for folder in self._run_folders():
                seen = self._look(folder, holders)
                if seen is not None:
                    found[folder] = seen
            self.version += found != self._known
            self._known = found
            self._by_key = {run.key: run for _, run in found.values()}
            runs = self._by_key.values()
        return tuple(sorted(runs, key=lambda run: (run.started, run.key), reverse=True))

    def get(self, key: str) -> RunSummary | None:
        """The run of a key, as the last scan saw it; a key it did not see means nothing."""
        return self._by_key.get(key)

    def _run_folders(self) -> Iterator[Path]:
        return _run_folders(self.root, DEPTH, self._known)

    def _look(
        self, folder: Path, holders: frozenset[int] | None
    ) -> tuple[_Trace, RunSummary] | None:
        before = self._known.get(folder)
        if before is not None:
            trace = _trace(before[1].layout, holders, is_live=before[0].is_live)
            if trace == before[0]:
                return before
        is_root = folder == self.root  # the folder to look at is itself a run
        key = folder.name if is_root else folder.relative_to(self.root).as_posix()
        try:
            name = _run_name(folder)
            if name is None:
                return None
            layout = RunLayout(folder, name)
            trace = _trace(layout, holders, is_live=None)
        except OSError:  # it went away meanwhile, or is not ours to read
            return None
        try:
            return trace, summarize(key, layout, is_running=trace.is_live)
        except FileNotFoundError:
            return None
        except Exception as error:  # one folder, whatever is in it, must not hide the others
            return trace, unreadable(key, layout, error)


def read_run(folder: str | Path) -> RunSummary:
    """The summary of one run folder."""
    path = Path(folder).resolve()
    name = _run_name(path) if path.is_dir() else None
    if name is None:
        raise RunFolderError(
            f"{folder}: not a run folder, it holds no *_spec.json or *_spec.yaml. "
            "Give the folder that a run printed as `Folder`, such as data/NAME_TIMESTAMP."
        )
    layout = RunLayout(path, name)
    trace = _trace(layout, lock_holders(), is_live=None)
    return summarize(path.name, layout, is_running=trace.is_live)


# Where runs are, and whether they have changed


def _run_folders(folder: Path, depth: int, known: Mapping[Path, object]) -> Iterator[Path]:
    """Run folders at or below a folder. Inside a run only its validation runs are looked for."""
    if folder in known and depth < DEPTH:  # at the top, runs may have come meanwhile
        is_run, below = True, []
    else:
        try:
            entries = list(os.scandir(folder))
        except OSError:
            return
        below = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        has_spec = any(entry.name.endswith(_SPEC_ENDINGS) for entry in entries)
        is_run = has_spec and not _holds_runs({entry.name for entry in below})
    if is_run:
        yield folder
        validation = folder / "validation"
        if validation.is_dir() and not validation.is_symlink():
            yield from _run_folders(validation, 1, known)
    elif depth:
        for entry in below:
            if not entry.name.startswith("."):
                yield from _run_folders(folder / entry.name, depth - 1, known)


def _holds_runs(names: set[str]) -> bool:
    """Whether a folder of folders with these names holds runs, and a spec file has strayed there.

    A run holds folders of its own; runs have names that end with a time.
    """
    is_like_a_run = not names or any(name in RUN_FOLDERS for name in names)
    return not is_like_a_run or any(TIMESTAMP.search(name) for name in names)


_SPEC_ENDINGS = ("_spec.json", "_spec.yaml", "_spec.yml")


def _run_name(folder: Path) -> str | None:
    matches = (SPEC_FILE.fullmatch(entry.name) for entry in os.scandir(folder))
    return min((match["name"] for match in matches if match), key=len, default=None)


@dataclass(frozen=True, slots=True)
class _Trace:
    """What tells that a run folder has changed, found without opening a file."""

    is_live: bool
    stamps: tuple[tuple[int, int], ...]


def _trace(layout: RunLayout, holders: frozenset[int] | None, *, is_live: bool | None) -> _Trace:
    held = is_held(layout.run_lock(), holders, folder=layout.predir)
    predir = layout.predir
    paths = [
        predir,
        predir / "info",
        predir / "checkpoint",
        predir / "video",
        layout.run_lock(),
        layout.trial_metrics_scalar(0),
        layout.trial_provenance(0),
        layout.journal_path(),
        layout.log_path(0),
    ]
    if held is None:
        held = time.time() - last_updated(layout) < QUIET_SECONDS
    if held or is_live:
        paths += moving_files(layout)
    return _Trace(bool(held), tuple(stamp(path) for path in paths))
