"""The log files of a run, and the progress it shows at the terminal.

Sessions train in their own processes and send a `Progress` now and then; only the trial's process
writes to the screen. On a terminal it shows one live row per session; into a file or a pipe it
writes plain log lines, few enough to read.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from loguru import logger
from rich import progress as bar
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from slm_lab.runs.files import open_for_append

if TYPE_CHECKING:
    from loguru import Message

LOG_FORMAT = (
    "{time:YYYY-MM-DD HH:mm:ss} | {level} | PID:{process} | {module}:{function} | {message}"
)
Clock = Callable[[], float]
PLAIN_INTERVAL = 5.0  # seconds between two lines of one session when there is no terminal


@dataclass(frozen=True, slots=True)
class Progress:
    """A small message from a session: its frame and its scores. NaN means not known yet."""

    session: int
    frame: int
    max_frame: int
    fps: float
    total_reward_ma: float
    best: float
    profile: str = ""


class LogFile:
    """A log file of a run folder, as a sink of loguru; a full disk is reported once, on stderr."""

    def __init__(self, path: Path, folder: Path | None = None) -> None:
        self.path = path
        self._is_lost = False
        folder = folder or path.parent
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._file: IO[bytes] | None = open_for_append(folder, path)
        except OSError as error:
            self._file = None
            self._report_loss(error)

    def write(self, message: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(message.encode(errors="backslashreplace"))
            self._file.flush()
            self._is_lost = False
        except OSError as error:
            self._report_loss(error)

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def stop(self) -> None:  # called by loguru when the sink is removed
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _report_loss(self, error: OSError) -> None:
        if not self._is_lost:
            self._is_lost = True
            sys.stderr.write(f"{self.path}: log lines are lost ({error.strerror})\n")


_process_log: LogFile | None = None  # a part of the process's logging, as loguru's sinks are


def setup_logging(
    path: Path, level: str = "INFO", *, stderr_level: str | None = None, folder: Path | None = None
) -> None:
    """Send this process's log to a file, and to stderr from `stderr_level` (default: `level`):
    "WARNING" for a session whose trial owns the screen."""
    global _process_log
    log_file = _process_log = LogFile(path, folder)
    logger.remove()
    logger.add(log_file, format=LOG_FORMAT, level=level.upper())
    logger.add(_write_stderr, format=LOG_FORMAT, level=(stderr_level or level).upper())


def open_log_file() -> LogFile | None:
    """The log file that `setup_logging` opened for this process, if it is still open."""
    return _process_log if _process_log is not None and _process_log.is_open else None


def setup_run_log(log_path: Path, folder: Path, stderr_level: str) -> None:
    """Log a whole run: the file keeps what tools look for, however quiet the screen is."""
    level = "DEBUG" if stderr_level.upper() in ("TRACE", "DEBUG") else "INFO"
    setup_logging(log_path, level, stderr_level=stderr_level, folder=folder)


@contextmanager
def session_log(log_path: Path, folder: Path, session: int | None = None) -> Iterator[None]:
    """Keep a log file for a session that shares the process of its trial. If several do, `session`
    is the index that lines of this one are logged with."""
    handler = logger.add(
        LogFile(log_path, folder),
        format=LOG_FORMAT,
        level="DEBUG",
        filter=lambda record: session is None or record["extra"].get("session") == session,
    )
    try:
        yield
    finally:
        logger.remove(handler)


def _write_stderr(message: Message) -> None:
    # Looked up at each call: a live display swaps sys.stderr to keep log lines above its rows.
    sys.stderr.write(message)
    sys.stderr.flush()


def format_checkpoint(trial: int, session: int, session_name: str, row: Mapping[str, float]) -> str:
    """Format the log entry of a checkpoint: a heading, then cells of one width, four to a line."""
    cells = [f"{key}:{format_value(key, value)}" for key, value in row.items()]
    width = max(map(len, cells), default=0)
    lines = [
        "  ".join(cell.ljust(width) for cell in cells[start : start + 4]).rstrip()
        for start in range(0, len(cells), 4)
    ]
    return "\n".join([f"Trial {trial} session {session} {session_name} [train]", *lines])


def format_profile(env_s: float, act_s: float, learn_s: float, other_s: float) -> str:
    """Format where the seconds went: `time: env 31 % · act 22 % · learn 41 % · other 6 %`."""
    seconds = {"env": env_s, "act": act_s, "learn": learn_s, "other": other_s}
    total = sum(seconds.values())
    shares = (f"{name} {spent / total if total else 0:.0%}" for name, spent in seconds.items())
    return "time: " + " · ".join(shares).replace("%", " %")


def format_value(key: str, value: float) -> str:
    """Format `frame` as 2.00e+05, rewards as 500.00, other fractions to four digits."""
    if key == "frame":
        return f"{value:.2e}"
    if key in ("total_reward", "total_reward_ma"):
        return f"{value:.2f}"
    return f"{value:g}" if float(value).is_integer() else f"{value:.4g}"


class Display:
    """A screen that is redrawn in place, where that is possible, or a few plain lines."""

    def __init__(self, console: Console | None, clock: Clock, refresh_per_second: int) -> None:
        self._console = console = console or Console(stderr=True)
        is_live = console.is_terminal and not console.is_dumb_terminal
        live = Live(console=console, refresh_per_second=refresh_per_second)
        self._live, self._clock = live if is_live else None, clock
        self._shown: dict[int, float] = {}  # kind of line: when the last was let through

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def _is_due(self, kind: int, *, always: bool = False) -> bool:
        """Whether to show a line: one of each kind every `PLAIN_INTERVAL` seconds."""
        now = self._clock()
        if not always and now - self._shown.get(kind, -math.inf) < PLAIN_INTERVAL:
            return False
        self._shown[kind] = now
        return True


class TrialDisplay(Display):
    """Shows the progress of a trial's sessions on stderr: a live bar for each, or plain lines."""

    def __init__(
        self,
        trial: int,
        max_session: int,
        *,
        console: Console | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(console, clock, refresh_per_second=4)
        self._trial = trial
        self._bars = bar.Progress(
            bar.TextColumn("{task.description}"),
            bar.BarColumn(bar_width=None),
            bar.TaskProgressColumn(),
            bar.TextColumn("{task.fields[fps]}", justify="right"),
            bar.TextColumn("reward {task.fields[reward]}", justify="right"),
            bar.TextColumn("best {task.fields[best]}", justify="right"),
            bar.TimeRemainingColumn(),
            console=self._console,
            expand=True,
        )
        unknown: dict[str, Any] = {"total": None, "fps": "starting", "reward": "-", "best": "-"}
        self._tasks = [self._bars.add_task(f"t{trial} s{s}", **unknown) for s in range(max_session)]
        self._profile = Text("", style="dim")  # below the bars: where the time goes
        if self._live:
            self._live.update(Group(self._bars, self._profile))

    def update(self, progress: Progress) -> None:
        reward, best = (
            format_value("total_reward_ma", score)
            for score in (progress.total_reward_ma, progress.best)
        )
        if self._live:
            self._bars.update(
                self._tasks[progress.session],
                completed=progress.frame,
                total=progress.max_frame,
                fps=f"{progress.fps:,.0f} frames/s",
                reward=reward,
                best=best,
            )
            self._profile.plain = progress.profile or self._profile.plain
        elif self._is_due(progress.session, always=progress.frame >= progress.max_frame):
            parts = (
                f"Trial {self._trial} session {progress.session}",
                f"frame {progress.frame:,} of {progress.max_frame:,} "
                f"({progress.frame / progress.max_frame:.0%})",
                f"{progress.fps:,.0f} frames/s",
                f"total_reward_ma {reward}",
                f"best {best}",
                progress.profile,
            )
            logger.info(" | ".join(part for part in parts if part))

    def finish(self, session: int, text: str) -> None:
        """Log how a session ended; its row stays as it is."""
        logger.info(f"Trial {self._trial} session {session} | {text}")
