"""Catalog of the runs of a data folder, which reads a run again only when its files changed.

Nothing is written, no lock is taken, and a folder that cannot be read hides no other.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slm_lab.runs import summary
from slm_lab.runs.find import SPEC_SUFFIXES, STAMP
from slm_lab.runs.layout import FOLDERS, RunLayout
from slm_lab.runs.lock import is_held
from slm_lab.runs.summary import RunSummary
from slm_lab.spec.run_folder import RunFolderError, spec_files

DEPTH = 3  # folders below the data folder in which runs are looked for
# A lock of another machine cannot be seen. Its run counts as running while its files change.
QUIET_SECONDS = 600.0
RUN_FOLDERS = frozenset({*FOLDERS, "checkpoint", "ray_tune", "video", "validation"})
SPEC_ENDINGS = tuple(f"_spec{suffix}" for suffix in SPEC_SUFFIXES)


class RunCatalog:
    """Owns the summaries of the runs in a data folder; `version` counts scans that found a
    change."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).resolve()
        self.version = 0
        self._known: dict[Path, tuple[_FolderState, RunSummary]] = {}
        self._by_key: dict[str, RunSummary] = {}
        self._lock = threading.Lock()

    def scan(self) -> tuple[RunSummary, ...]:
        """All runs, the one that started last first."""
        with self._lock:
            found: dict[Path, tuple[_FolderState, RunSummary]] = {}
            for folder in _run_folders(self.root, DEPTH, self._known):
                if (seen := self._look(folder)) is not None:
                    found[folder] = seen
            self.version += found != self._known
            self._known = found
            self._by_key = {run.key: run for _, run in found.values()}
            runs = self._by_key.values()
        return tuple(sorted(runs, key=lambda run: (run.started, run.key), reverse=True))

    def get(self, key: str) -> RunSummary | None:
        """The run of a key, as the last scan saw it; None if it saw no such run."""
        return self._by_key.get(key)

    def _look(self, folder: Path) -> tuple[_FolderState, RunSummary] | None:
        before = self._known.get(folder)
        if before is not None:
            state = _folder_state(before[1].layout, is_live=before[0].is_live)
            if state == before[0]:
                return before
        is_root = folder == self.root  # the folder to look at is itself a run
        key = folder.name if is_root else folder.relative_to(self.root).as_posix()
        try:
            layout = RunLayout(folder, spec_files(folder)[0])
            state = _folder_state(layout)
        except (OSError, RunFolderError):  # it went away meanwhile, or may not be read
            return None
        try:
            return state, summary.summarize(key, layout, is_running=state.is_live)
        except FileNotFoundError:
            return None
        except Exception as error:  # one folder, whatever is in it, must not hide the others
            return state, summary.unreadable(key, layout, error)


def read_run(folder: str | Path) -> RunSummary:
    """The summary of one run folder."""
    name, _ = spec_files(Path(folder))
    path = Path(folder).resolve()
    layout = RunLayout(path, name)
    return summary.summarize(path.name, layout, is_running=_is_live(layout))


def _run_folders(folder: Path, depth: int, known: Mapping[Path, object]) -> Iterator[Path]:
    """Run folders at or below a folder; inside a run folder, only its validation runs."""
    if folder in known and depth < DEPTH:  # at the top, runs may have come meanwhile
        is_run, below = True, []
    else:
        try:
            entries = list(os.scandir(folder))
        except OSError:
            return
        below = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        has_spec = any(entry.name.endswith(SPEC_ENDINGS) for entry in entries)
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
    """Whether the folders in a folder are runs, as their names say: a spec file beside them makes
    it no run."""
    is_like_a_run = not names or not names.isdisjoint(RUN_FOLDERS)
    return not is_like_a_run or any(STAMP.search(name) for name in names)


@dataclass(frozen=True, slots=True)
class _FolderState:
    """State of a run folder's files, found without opening one; it tells whether one changed."""

    is_live: bool
    stamps: tuple[tuple[int, int], ...]


def _folder_state(layout: RunLayout, *, is_live: bool = False) -> _FolderState:
    """`is_live` says that a process was at work at the last look."""
    predir = layout.predir
    folders = [predir, *(predir / name for name in ("info", "checkpoint", "video"))]
    paths = [
        *folders,
        layout.run_lock(),
        layout.trial_metrics_scalar(0),
        layout.trial_provenance(0),
        layout.journal_path(),
        layout.log_path(0),
    ]
    is_live_now = _is_live(layout)
    if is_live_now or is_live:
        paths += summary.moving_files(layout)
    return _FolderState(is_live_now, tuple(map(summary.stamp, paths)))


def _is_live(layout: RunLayout) -> bool:
    """Whether a process works on the run, here or, by its files, on another machine."""
    held = is_held(layout.run_lock(), folder=layout.predir)
    return time.time() - summary.last_updated(layout) < QUIET_SECONDS if held is None else held
