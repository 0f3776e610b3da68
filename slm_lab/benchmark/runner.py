"""Run what is missing, one row after the other, each as `slm-lab run` would."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from slm_lab.api.run import RunStopped, run
from slm_lab.benchmark.collect import collect
from slm_lab.benchmark.manifest import Manifest, Row
from slm_lab.benchmark.result import Kept, Result
from slm_lab.benchmark.state import OPEN, RowState, Standing, row_state
from slm_lab.training.options import RunOptions

GUESSED_FRAMES_PER_SECOND = 2000.0  # of a whole trial, until a first row has been measured


@dataclass(frozen=True, slots=True)
class Step:
    """A row that has something left to do, and how long that may take."""

    state: RowState
    hours: float


@dataclass(slots=True)
class Report:
    """What a call of `run_benchmark` came to."""

    done: list[Result] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # row id -> reason
    left_out: list[Step] = field(default_factory=list)  # do not fit the budget
    stopped_by: signal.Signals | None = None


def run_benchmark(
    manifest: Manifest,
    steps: Sequence[Step],
    *,
    results_dir: Path,
    data_dir: Path,
    budget_hours: float | None = None,
    log_level: str = "INFO",
    tell: Callable[[str], None],
) -> Report:
    """Run the steps in the order of `next_step`, collecting each result.

    A row that fails is reported and the rest goes on. At the end of the budget, on Ctrl-C and on
    SIGTERM, the running trial writes its checkpoints, and the next call goes on with it.
    """
    waiting, report = list(steps), Report()
    end = None if budget_hours is None else time.monotonic() + budget_hours * 3600
    while waiting:
        step = next_step(waiting, None if end is None else (end - time.monotonic()) / 3600)
        if step is None:
            report.left_out = waiting
            break
        waiting.remove(step)
        # Another process may have been faster meanwhile.
        state = row_state(step.state.row, results_dir, data_dir)
        if state.standing not in (*OPEN, Standing.failed):
            tell(f"{state.row.id}: {state.standing} by now")
            continue
        position = f"{len(steps) - len(waiting)}/{len(steps)}"
        tell(f"[{position}] {state.row.id}, {_duration(step.hours)}: {state.row.command}")
        try:
            with _stopped_at(end):
                folder = _train(state, data_dir, log_level)
            result = collect(folder, manifest, results_dir)
        except RunStopped as stopped:
            report.stopped_by = stopped.by
            break
        except KeyboardInterrupt:  # while it was evaluated: the training is kept
            report.stopped_by = signal.SIGINT
            break
        except Exception as error:  # whatever one row comes to, the others shall run
            report.failed[state.row.id] = f"{type(error).__name__}: {error}"
            tell(f"{state.row.id} failed: {error}")
            continue
        report.done.append(result)
        tell(f"{state.row.id}: total_reward_ma {result.total_reward_ma:.2f}")
    return report


def open_steps(
    rows: Sequence[Row],
    manifest: Manifest,
    kept: Mapping[str, Kept],
    *,
    results_dir: Path,
    data_dir: Path,
    retry: bool = False,
) -> list[Step]:
    """The rows that are not done; failed ones only to `retry`, since they would fail again."""
    wanted = (*OPEN, Standing.failed) if retry else OPEN
    states = (row_state(row, results_dir, data_dir) for row in rows)
    return [
        Step(state, estimated_hours(state, manifest, kept))
        for state in states
        if state.standing in wanted
    ]


def next_step(waiting: Sequence[Step], hours_left: float | None) -> Step | None:
    """Which row to run next: the longest that fits into what is left of the budget.

    A long row is begun while there is room for it, and short ones fill what remains; one that is
    not expected to end in time is left out, not begun. What is trained already and only has to be
    collected comes first. Without a budget it is the order of the manifest. None: nothing fits.
    """
    trained = [step for step in waiting if step.state.standing is Standing.trained]
    if trained or hours_left is None:
        return (trained or list(waiting))[0]
    fitting = [step for step in waiting if step.hours <= hours_left]
    return max(fitting, key=lambda step: step.hours, default=None)


def estimated_hours(state: RowState, manifest: Manifest, kept: Mapping[str, Kept]) -> float:
    """Frames that are left, at the speed measured before.

    The speed is the row's own, if it has a result of another spec; else the median of the same
    algorithm on envs of the same number of copies (so of the same phase), else of that algorithm,
    else of everything measured, else a guess.
    """
    row = state.row
    speeds = {id_: speed for id_, found in kept.items() if (speed := _speed(found)) is not None}

    def median(fits: Callable[[Row], bool]) -> float | None:
        rows = ((manifest.by_id.get(id_), speed) for id_, speed in speeds.items())
        found = [speed for other, speed in rows if other is not None and fits(other)]
        return statistics.median(found) if found else None

    def is_alike(other: Row) -> bool:
        same_size = other.settings.num_envs == row.settings.num_envs
        return same_size and other.algorithm == row.algorithm

    speed = (
        speeds.get(row.id)
        or median(is_alike)
        or median(lambda other: other.algorithm == row.algorithm)
        or median(lambda _: True)
        or GUESSED_FRAMES_PER_SECOND
    )
    frames = row.settings.max_frame * row.settings.max_session
    return frames * (1.0 - state.progress) / speed / 3600


def _speed(kept: Kept) -> float | None:
    """Frames per second of all sessions together."""
    seconds = kept.result.provenance.seconds
    frames = kept.result.frame * len(kept.result.sessions)
    return frames / seconds if seconds else None


def _train(state: RowState, data_dir: Path, log_level: str) -> Path:
    """Train the row, or go on with its run; what is trained already is only named."""
    if state.standing is Standing.trained and state.folder is not None:
        return state.folder
    is_resumable = state.standing in (Standing.interrupted, Standing.failed)
    mode = f"train@{state.folder}" if is_resumable and state.folder else "train"
    options = RunOptions(data_dir=str(data_dir), log_level=log_level)
    metrics = run(state.row.spec(), mode, options)
    for session, error in {**metrics.failed, **metrics.diverged}.items():
        raise RuntimeError(f"session {session} failed: {error.splitlines()[-1]}")
    return metrics.predir


@contextmanager
def _stopped_at(end: float | None) -> Iterator[None]:
    """At the time `end` this process gets a SIGTERM, which a training ends cleanly on.

    Between two trainings, or while graphs are drawn, it only marks the end of the budget, which
    the next step is chosen by.
    """
    if end is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda *_: None)
    timer = threading.Timer(
        max(0.0, end - time.monotonic()), os.kill, args=(os.getpid(), signal.SIGTERM)
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        signal.signal(signal.SIGTERM, previous)


def _duration(hours: float) -> str:
    return f"about {hours:.1f} h" if hours >= 1 else f"about {max(1, round(hours * 60))} min"
