"""Sends a run folder to a remote while the run goes on, so that a killed machine loses little.

A thread of the trial's own process looks for new checkpoints and pushes. It never raises and never
holds the run up: what does not work is said once, with the way out, and tried again later. The end
of the run pushes once more, with everything in it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from loguru import logger

from slm_lab.experiment.manifest import MANIFEST
from slm_lab.hub.error import NotAllowed, RemoteError, UploadFailed
from slm_lab.hub.remote import Remote, open_remote
from slm_lab.hub.transfer import push

SYNC_SECONDS = 300.0  # at most so often
LOOK_SECONDS = 2.0

T = TypeVar("T")


class Sync:
    """Pushes when there is a new checkpoint. `error` is what the last push failed of, or None."""

    def __init__(
        self,
        remote: Remote,
        run_dir: Path,
        *,
        every: float = SYNC_SECONDS,
        look_every: float = LOOK_SECONDS,
    ) -> None:
        self._remote, self._run_dir = remote, run_dir
        self._every, self._look_every = every, look_every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hub-sync", daemon=True)
        self._is_quiet = False  # has said that it does not work
        self.error: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Wait for a push that is under way, then send all there is."""
        self._stop.set()
        self._thread.join()
        if not self._run_dir.is_dir():  # bad input: nothing ran
            return
        self._is_quiet = False
        # Said before, so that the log which is sent has its last line.
        logger.info(f"Uploading {self._run_dir.name} to {self._remote.label}")
        self._push()

    def _watch(self) -> None:
        # A signal is for the thread that waits for it.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        sent, next_at = frozenset[tuple[str, int]](), 0.0
        while not self._stop.wait(self._look_every):
            now = checkpoints(self._run_dir)
            if now != sent and time.monotonic() >= next_at:
                next_at = time.monotonic() + self._every
                if self._push():
                    sent = now

    def _push(self) -> bool:
        try:
            transfer = push(self._remote, self._run_dir)
        except Exception as error:
            # Whatever it is, the run matters more.
            self.error = error
            if not self._is_quiet:
                fix = f"Later by hand: slm-lab push {self._run_dir}"
                logger.error(f"Upload failed. {type(error).__name__}: {error} {fix}")
            self._is_quiet = True
            return False
        if self.error is not None:
            logger.info("Uploading works again")
        self.error, self._is_quiet = None, False
        logger.debug(f"Uploaded {transfer}")
        return True


def upload_remote(is_wanted: bool) -> Remote | None:
    """The remote of HF_REPO for a run to be uploaded to; checked before hours of training.

    One that does not let us in is an error. One that does not answer may do so later, and the
    first push says so if not.
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
    """Do the work while its folder is pushed now and then, and once more however it ends."""
    if remote is None:
        return work()
    sync = Sync(remote, run_dir)
    sync.start()
    try:
        outcome = work()
    except SystemExit:  # a second signal: the end is wanted at once
        raise
    except BaseException:
        sync.finish()
        raise
    sync.finish()
    if sync.error is not None:
        raise UploadFailed(f"{sync.error} Later by hand: slm-lab push {run_dir}", outcome)
    return outcome


def checkpoints(run_dir: Path) -> frozenset[tuple[str, int]]:
    """Which checkpoints are there at this moment: each is written once, to a file of its own."""
    found = set()
    for parent, folders, names in os.walk(run_dir / "checkpoint"):
        folders[:] = [name for name in folders if not name.endswith((".writing", ".damaged", "-1"))]
        if MANIFEST in names:
            path = Path(parent, MANIFEST)
            with suppress(OSError):  # replaced meanwhile
                found.add((path.parent.as_posix(), path.stat().st_mtime_ns))
    return frozenset(found)
