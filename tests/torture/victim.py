"""A process that is attacked: a copy of this one, in a folder and a session of its own.

A copy has everything imported already, so that a command takes as long as its work and no more.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from tests.torture.attack import Outcome, Result
from tests.torture.warm import exit_as

ORPHAN_SECONDS = 10.0  # a session notices within moments that its trial has died
SHARED_MEMORY = Path("/dev/shm")
MOST_FILE_BYTES = 1_000_000_000  # that a victim may write: a copy of a sparse file takes memory
MOST_MEMORY_BYTES = 4_000_000_000
# Python drops a Ctrl-C that arrives within a callback of its own, and says so.
LOST_INTERRUPT = re.compile(
    r"Exception ignored in: .*\nTraceback \(most recent call last\):\n"
    r"(?:  .*\n|\n)*KeyboardInterrupt.*\n"
)


@dataclass(frozen=True, slots=True)
class Ended:
    """`code` is the exit code, minus a signal, or None where the time was up."""

    code: int | None
    out: str
    err: str
    left: tuple[str, ...]  # processes and shared memory that outlived it

    @property
    def last_line(self) -> str:
        lines = [line for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else ""

    def result(self) -> Result:
        """What the user was shown: a result, a clear refusal, or something else."""
        if self.code is None:
            return Result(Outcome.HANG, self.last_line)
        shown = LOST_INTERRUPT.sub("", self.out + self.err)
        unexpected = [line for line in shown.splitlines() if line.startswith("Unexpected ")]
        if "Traceback (most recent call last)" in shown or unexpected:
            return Result(Outcome.TRACEBACK, (unexpected or [self.last_line])[0][:300])
        if self.code not in (0, 1, 2):
            return Result(Outcome.TRACEBACK, f"exit code {self.code}: {self.last_line}")
        if self.left:
            return Result(Outcome.LEFT_BEHIND, ", ".join(self.left))
        if self.code == 0:
            return Result(Outcome.OK)
        if not self.last_line:
            return Result(Outcome.TRACEBACK, f"exit code {self.code} without a message")
        return Result(Outcome.REFUSED, self.last_line)


class Victim:
    """Runs `body` in a process of its own; a context manager that leaves none of its processes."""

    def __init__(
        self, body: Callable[[], object], folder: Path, *, is_bounded: bool = True
    ) -> None:
        self.folder = folder
        temporary = folder / ".tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        self._out, self._err = temporary / "out", temporary / "err"
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _become(folder, self._out, self._err)
            if is_bounded:
                _bound()
            exit_as(body)
        self.started = time.monotonic()

    def __enter__(self) -> Victim:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes():
            _kill(process)
        self._reap(0.0)

    def signal(self, signum: int) -> bool:
        """Send a signal, if it still runs; returns whether it does."""
        if self._reap(0.0) is not None:
            return False
        os.kill(self.pid, signum)
        return True

    def children(self) -> list[psutil.Process]:
        return [process for process in self._processes() if process.pid != self.pid]

    def wait(self, seconds: float) -> Ended:
        """Wait for its end, and for that of the processes that it has started."""
        ended = self.wait_alone(seconds)
        return ended if ended.code is None else replace(ended, left=self._remains())

    def wait_alone(self, seconds: float) -> Ended:
        status = self._reap(seconds)
        out, err = (_text(path) for path in (self._out, self._err))
        return Ended(None if status is None else os.waitstatus_to_exitcode(status), out, err, ())

    _status: int | None = None

    def _reap(self, seconds: float) -> int | None:
        """Wait for the process; None if it still runs."""
        until = time.monotonic() + seconds
        while self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = status
            elif time.monotonic() >= until:
                return None
            else:
                time.sleep(0.005)
        return self._status

    def _processes(self) -> list[psutil.Process]:
        return processes_in(self.folder, self.pid)

    def _remains(self) -> tuple[str, ...]:
        until = time.monotonic() + ORPHAN_SECONDS
        while (alive := self._processes()) and time.monotonic() < until:
            time.sleep(0.05)
        memory = SHARED_MEMORY.glob(f"*_{self.pid}_*") if SHARED_MEMORY.is_dir() else ()
        return tuple(
            [f"process {process.pid} ({_name(process)})" for process in alive]
            + [str(path) for path in memory]
        )


def run_isolated(body: Callable[[], object], folder: Path, seconds: float) -> Ended:
    with Victim(body, folder) as victim:
        return victim.wait(seconds)


def slm_lab(*words: object) -> Callable[[], None]:
    """The body of a victim that runs this command line."""

    def command() -> None:
        from slm_lab.cli.main import main

        sys.argv = ["slm-lab", *map(str, words)]
        main()

    return command


def _become(folder: Path, out: Path, err: Path) -> None:
    os.setsid()
    os.chdir(folder)
    for path, descriptor in ((Path(os.devnull), 0), (out, 1), (err, 2)):
        flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        handle = os.open(path, flags, 0o600)
        os.dup2(handle, descriptor)
        os.close(handle)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="replace", closefd=False)
    os.environ["XDG_STATE_HOME"] = str(folder / ".tmp" / "state")
    os.environ["TMPDIR"] = str(folder / ".tmp")
    tempfile.tempdir = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _bound() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))


def processes_in(folder: Path, session: int | None = None) -> list[psutil.Process]:
    """Living processes in a folder or of a session.

    psutil tells a reused id apart, but takes too long to ask it about every process.
    """
    found = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session or _is_in(pid, folder):
                process = psutil.Process(pid)
                if process.status() != "zombie":
                    found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def _is_in(pid: int, folder: Path) -> bool:
    here = os.readlink(f"/proc/{pid}/cwd")
    return here == str(folder) or here.startswith(f"{folder}/")


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        return


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:80]
    except psutil.Error:
        return "gone"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
