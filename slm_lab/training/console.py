"""The log files of a run, and the progress it shows at the terminal.

Sessions train in their own processes and send a `Progress` now and then; only the trial's process
writes to the screen. On a terminal it shows one live row per session; into a file or a pipe it
writes plain log lines, few enough to read.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from slm_lab.runs.glossary import format_value

if TYPE_CHECKING:
    from loguru import Message

LOG_FORMAT = (
    "{time:YYYY-MM-DD HH:mm:ss} | {level} | PID:{process} | {module}:{function} | {message}"
)
Clock = Callable[[], float]
NARROW = 78  # columns of a screen that has no room for bars
PACE_SECONDS = 30.0  # over which the speed of a trial is averaged
PLAIN_INTERVAL = 5.0  # seconds between two lines of one session when there is no terminal


@dataclass(frozen=True, slots=True)
class Progress:
    """A small message from a session: its frame and its scores. NaN means not known yet.

    `stage` says what keeps a session from training at full speed, such as `importing`.
    """

    session: int
    frame: int = 0
    max_frame: int = 0
    fps: float = 0.0
    total_reward_ma: float = math.nan
    best: float = math.nan
    last_100_return: float = math.nan
    profile: str = ""
    stage: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """A log line of a session's process, which only the trial's process may write to the screen."""

    line: str
    message: str


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
    path: Path,
    level: str = "INFO",
    *,
    stderr_level: str | None = None,
    folder: Path | None = None,
    tell: Callable[[Told], None] | None = None,
) -> None:
    """Send this process's log to a file, and to stderr from `stderr_level` (default: `level`):
    "WARNING" for a session whose trial owns the screen, which gets the lines by `tell`."""
    global _process_log
    log_file = _process_log = LogFile(path, folder)
    logger.remove()
    logger.add(log_file, format=LOG_FORMAT, level=level.upper())
    screen = (stderr_level or level).upper()
    if tell is None:
        logger.add(_write_stderr, format=LOG_FORMAT, level=screen)
        return

    def send(line: Message) -> None:
        tell(Told(str(line), str(line.record["message"])))

    logger.add(send, format=LOG_FORMAT, level=screen)


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


def format_count(count: float) -> str:
    """Format 950 as it is, 12,345 as 12.3k, 1,250,000 as 1.25M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            short = f"{count / size:.3g}" if count < 999.5 * size else f"{count / size:.0f}"
            return f"{short}{unit}"
    return f"{count:.0f}"


def format_duration(seconds: float) -> str:
    """Format 75 as 1 min 15 s, 3,720 as 1 h 02 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


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
        sessions: Sequence[int],
        max_frame: int,
        *,
        console: Console | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(console, clock, refresh_per_second=4)
        self._trial = trial
        columns = [
            bar.TextColumn("{task.description}"),
            bar.BarColumn(bar_width=None),
            bar.TaskProgressColumn(),
            bar.TextColumn("{task.fields[frames]}", justify="right"),
            bar.TextColumn("{task.fields[speed]}", justify="right"),
            bar.TextColumn("last 100 {task.fields[last_100]}", justify="right"),
            bar.TextColumn("ma {task.fields[average]}", justify="right"),
            bar.TimeRemainingColumn(compact=True),
        ]
        if self._console.width < NARROW:
            del columns[6], columns[1:3]
        self._bars = bar.Progress(*columns, console=self._console, expand=True)
        unknown: dict[str, Any] = {"total": None, "frames": "", "last_100": "-", "average": "-"}
        self._tasks = {
            session: self._bars.add_task(
                f"t{trial} s{session}", speed="waiting for a core", **unknown
            )
            for session in sessions
        }
        self._pace = Pace(dict.fromkeys(sessions, max_frame), clock)
        self._tell = TellOnce()
        # Both are shorter than the screen is wide. A Ctrl-C is echoed behind the last line, and a
        # line that it made longer than the screen would be two, of which one could not be erased.
        self._profile, self._left = _short_line(), _short_line()
        if self._live:
            self._live.update(Group(self._bars, self._profile, self._left))

    def update(self, progress: Progress) -> None:
        if progress.frame and not progress.stage:
            self._pace.reached(progress.session, progress.frame)
        last_100, average, best = (
            format_value("total_reward_ma", score)
            for score in (progress.last_100_return, progress.total_reward_ma, progress.best)
        )
        if self._live:
            budget = f"{format_count(progress.frame)}/{format_count(progress.max_frame)}"
            self._bars.update(
                self._tasks[progress.session],
                completed=progress.frame,
                total=progress.max_frame or None,
                frames=budget if progress.frame else "",
                speed=progress.stage or f"{progress.fps:,.0f} frames/s",
                last_100="-" if math.isnan(progress.last_100_return) else last_100,
                average="-" if math.isnan(progress.total_reward_ma) else average,
            )
            self._profile.plain = progress.profile or self._profile.plain
            self._left.plain = self._pace.describe()
        elif progress.frame and self._is_due(
            progress.session, always=progress.frame >= progress.max_frame
        ):
            parts = (
                f"Trial {self._trial} session {progress.session}",
                f"frame {progress.frame:,} of {progress.max_frame:,} "
                f"({progress.frame / progress.max_frame:.0%})",
                f"{progress.fps:,.0f} frames/s",
                f"last 100 episodes {last_100}",
                f"total_reward_ma {average}",
                f"best {best}",
                progress.profile,
            )
            logger.info(" | ".join(part for part in parts if part))

    def tell(self, told: Told) -> None:
        """Write a log line of a session above the rows; what several sessions say, once."""
        self._tell(told)

    def stopping(self) -> None:
        """Say that a stop was asked for, and is under way."""
        self._pace.note = "stopping: sessions write their files"
        self._left.plain = self._pace.describe()

    def finish(self, session: int, text: str) -> None:
        """Log how a session ended; its row stays as it is."""
        self._pace.ended(session)
        self._pace.note = self._pace.note and "stopped"
        self._left.plain = self._pace.describe()
        logger.info(f"Trial {self._trial} session {session} | {text}")


class TellOnce:
    """Writes log lines of sessions to stderr, of the same message the first."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def __call__(self, told: Told) -> None:
        if told.message not in self._told:
            self._told.add(told.message)
            sys.stderr.write(told.line)
            sys.stderr.flush()


class Pace:
    """Estimates when a trial ends, from the frames that its sessions trained lately together."""

    def __init__(self, budgets: dict[int, int], clock: Clock) -> None:
        self._budgets, self._clock = budgets, clock
        self._began: dict[int, int] = {}  # frame at which a session was first seen
        self._frames: dict[int, int] = {}
        self._seen: deque[tuple[float, int]] = deque()  # time, frames trained since it was seen
        self._ended: set[int] = set()
        self.note = ""

    def reached(self, session: int, frame: int) -> None:
        self._began.setdefault(session, frame)
        self._frames[session] = frame
        now = self._clock()
        self._seen.append((now, sum(self._frames.values()) - sum(self._began.values())))
        while now - self._seen[0][0] > PACE_SECONDS:
            self._seen.popleft()

    def ended(self, session: int) -> None:
        self._ended.add(session)

    def seconds_left(self) -> float:
        """NaN before there is a pace."""
        if len(self._seen) < 2:
            return math.nan
        (began, first), (now, last) = self._seen[0], self._seen[-1]
        running = self._budgets.keys() - self._ended
        left = sum(max(0, self._budgets[s] - self._frames.get(s, 0)) for s in running)
        return left * (now - began) / (last - first) if last > first else math.nan

    def describe(self) -> str:
        if self.note:
            return self.note
        done = f"{len(self._ended)} of {len(self._budgets)} session(s) done"
        left = math.nan if self._ended >= self._budgets.keys() else self.seconds_left()
        return done if math.isnan(left) else f"{done}, about {format_duration(left)} left"


def _short_line() -> Text:
    return Text("", style="dim", no_wrap=True, overflow="crop")
