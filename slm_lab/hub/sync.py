"""Uploads a run folder while the run goes on, so that a killed machine loses little.

A thread of the trial's process looks for new checkpoints and pushes. It never raises and never
blocks the run: a failure is logged once, with the fix, and tried again later. The end of the run
pushes everything once more.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from loguru import logger

from slm_lab.error import LabError
from slm_lab.hub.remote import NotAllowed, Remote, RemoteError, open_remote
from slm_lab.hub.transfer import push
from slm_lab.runs.checkpoint_manifest import MANIFEST
from slm_lab.runs.child_process import block_stop_signals

SYNC_SECONDS = 300.0  # between two pushes; doubled after every failure, up to:
LONGEST_PAUSE_SECONDS = 3600.0
LOOK_SECONDS = 2.0
RETRY_SECONDS = (10.0, 60.0)  # before the last push is tried again
FINISH_SECONDS = 3600.0  # for the last push; a connection may hang for ever

T = TypeVar("T")


class UploadFailed(LabError):
    """A run ended well but could not be uploaded; `metrics` is its result."""

    exit_code = 1

    def __init__(self, text: str, metrics: Any) -> None:
        self.metrics = metrics
        super().__init__(text)


class Sync:
    """Pushes a run folder when it has a new checkpoint. `error` is that of the last push."""

    def __init__(
        self,
        remote: Remote,
        run_dir: Path,
        *,
        every: float = SYNC_SECONDS,
        look_every: float = LOOK_SECONDS,
    ) -> None:
        self._remote, self._run_dir = remote, run_dir
        self.fix = f"Later by hand: slm-lab push {run_dir}"
        self._every, self._look_every = every, look_every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hub-sync", daemon=True)
        self._failures = 0
        self.error: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Push everything, after a push that is under way."""
        if self._run_dir.is_dir():  # else bad input: nothing ran
            # Logged before, so that the pushed log has its last line.
            logger.info(f"Uploading {self._run_dir.name} to {self._remote.label}")
        self._stop.set()
        self._thread.join(FINISH_SECONDS)
        if self._thread.is_alive():
            self.error = RemoteError(f"no end after {FINISH_SECONDS:g} seconds. Given up.")
            logger.error(f"Upload failed: {self.error} {self.fix}")

    def _watch(self) -> None:
        # Signals belong to the main thread, which waits for them.
        block_stop_signals()
        sent, next_at = frozenset[tuple[str, int]](), 0.0
        while not self._stop.wait(self._look_every):
            now = resumable(self._run_dir)
            if now != sent and time.monotonic() >= next_at:
                if self._push():
                    sent = now
                pause = min(self._every * 2**self._failures, LONGEST_PAUSE_SECONDS)
                next_at = time.monotonic() + pause
        if self._run_dir.is_dir():
            self._push_the_end()

    def _push_the_end(self) -> None:
        for seconds in RETRY_SECONDS:
            if self._push() or isinstance(self.error, NotAllowed):
                return
            time.sleep(seconds)
        self._push()

    def _push(self) -> bool:
        try:
            transfer = push(self._remote, self._run_dir)
        except Exception as error:  # whatever failed, the run must go on
            self.error = error
            if not self._failures:
                logger.error(f"Upload failed. {type(error).__name__}: {error} {self.fix}")
            self._failures += 1
            return False
        if self._failures:
            logger.info("Uploading works again")
        self.error, self._failures = None, 0
        logger.debug(f"Uploaded {self._run_dir.name}: {transfer}")
        return True


def upload_remote(is_wanted: bool) -> Remote | None:
    """The remote of HF_REPO, checked before hours of training; None if no upload is wanted.

    A remote that refuses access is an error. One that does not answer may answer later; if not, the
    first push logs it.
    """
    if not is_wanted:
        return None
    remote = open_remote()
    try:
        remote.check_upload()
    except RemoteError as error:
        if isinstance(error, NotAllowed):
            raise
    return remote


def run_synced(remote: Remote | None, run_dir: Path, work: Callable[[], T]) -> T:
    """Do the work while its folder is pushed regularly, and once more at its end."""
    if remote is None:
        return work()
    sync = Sync(remote, run_dir)
    sync.start()
    try:
        outcome = work()
    finally:
        if not isinstance(sys.exception(), SystemExit):  # a second signal wants the end at once
            sync.finish()
    if sync.error is not None:
        raise UploadFailed(f"{sync.error} {sync.fix}", outcome)
    return outcome


def resumable(run_dir: Path) -> frozenset[tuple[str, int]]:
    """Checkpoints and journal that a resume would start from, with their times of change."""
    paths = [run_dir / "ray_tune" / "journal.jsonl"]
    for parent, folders, names in os.walk(run_dir / "checkpoint"):
        folders[:] = [name for name in folders if not name.endswith((".writing", ".damaged", "-1"))]
        if MANIFEST in names:
            paths.append(Path(parent, MANIFEST))
    found = set()
    for path in paths:
        with suppress(OSError):  # not there, or replaced meanwhile
            found.add((path.as_posix(), path.stat().st_mtime_ns))
    return frozenset(found)
