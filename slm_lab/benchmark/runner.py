"""Run the missing rows one after the other, as `slm-lab run` would."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from slm_lab.api.run import RunStopped, run
from slm_lab.benchmark.collect import attempt_of, collect, enter
from slm_lab.benchmark.ledger import Attempt, Event, last_entries, read_ledger, write_entry
from slm_lab.benchmark.manifest import BenchmarkManifest, Row
from slm_lab.benchmark.result import CollectedResult, Result
from slm_lab.benchmark.state import OPEN, RowState, RowStatus, TrialState, row_state
from slm_lab.runs.find import open_run
from slm_lab.runs.layout import new_timestamp
from slm_lab.runs.provenance import git_sha
from slm_lab.training.options import RunOptions

GUESSED_FRAMES_PER_SECOND = 2000.0  # of a whole trial, until a first row has been measured


@dataclass(frozen=True, slots=True)
class Step:
    """A row to run, and its estimated hours."""

    state: RowState
    hours: float


@dataclass(slots=True)
class BenchmarkOutcome:
    """The outcome of a call of `run_benchmark`."""

    done: list[Result] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # row id -> reason
    left_out: list[Step] = field(default_factory=list)  # do not fit the budget
    stopped_by: signal.Signals | None = None


def run_benchmark(
    manifest: BenchmarkManifest,
    steps: Sequence[Step],
    *,
    results_dir: Path,
    data_dir: Path,
    budget_hours: float | None = None,
    log_level: str = "INFO",
    tell: Callable[[str], None],
) -> BenchmarkOutcome:
    """Run the steps in the order of `next_step`, collecting each result.

    A row that fails is reported and the rest goes on. At the end of the budget, on Ctrl-C and on
    SIGTERM, the running trial writes its checkpoints, and the next call goes on with it.
    """
    waiting, report = list(steps), BenchmarkOutcome()
    end = None if budget_hours is None else time.monotonic() + budget_hours * 3600
    while waiting:
        step = next_step(waiting, None if end is None else (end - time.monotonic()) / 3600)
        if step is None:
            report.left_out = waiting
            break
        waiting.remove(step)
        # Another process may have been faster meanwhile.
        state = row_state(step.state.row, results_dir, data_dir)
        if state.status not in (*OPEN, RowStatus.failed):
            tell(f"{state.row.id}: {state.status} by now")
            continue
        position = f"{len(steps) - len(waiting)}/{len(steps)}"
        tell(f"[{position}] {state.row.id}, {_duration(step.hours)}: {state.row.command}")
        try:
            folders = _train(state, results_dir, data_dir, log_level, end)
            (result,) = collect(folders, manifest, results_dir)
        except RunStopped as stopped:
            report.stopped_by = stopped.by
            break
        except KeyboardInterrupt:  # while it was evaluated: the training is kept
            report.stopped_by = signal.SIGINT
            break
        except Exception as error:  # one failed row must not stop the others
            report.failed[state.row.id] = f"{type(error).__name__}: {error}"
            tell(f"{state.row.id} failed: {error}")
            continue
        report.done.append(result)
        tell(f"{state.row.id}: total_reward_ma {result.total_reward_ma:.2f}")
    return report


def open_steps(
    rows: Sequence[Row],
    manifest: BenchmarkManifest,
    kept: Mapping[str, CollectedResult],
    *,
    results_dir: Path,
    data_dir: Path,
    retry: bool = False,
) -> list[Step]:
    """The rows that are not done; failed ones only with `retry`, since they would fail again."""
    wanted = (*OPEN, RowStatus.failed) if retry else OPEN
    states = (row_state(row, results_dir, data_dir) for row in rows)
    chosen = (state for state in states if state.status in wanted)
    return [Step(state, estimated_hours(state, manifest, kept)) for state in chosen]


def next_step(waiting: Sequence[Step], hours_left: float | None) -> Step | None:
    """The row to run next: the longest that fits into the rest of the budget, or None.

    Long rows come first and short ones fill the remaining time; a row that would not end in time is
    left out. A trained row that only has to be collected precedes all others. Without a budget the
    order is that of the manifest.
    """
    trained = [step for step in waiting if step.state.status is RowStatus.trained]
    if trained or hours_left is None:
        return (trained or list(waiting))[0]
    fitting = [step for step in waiting if step.hours <= hours_left]
    return max(fitting, key=lambda step: step.hours, default=None)


def estimated_hours(
    state: RowState, manifest: BenchmarkManifest, kept: Mapping[str, CollectedResult]
) -> float:
    """Estimate the hours of the remaining frames from measured speeds.

    The speed is that of the row's earlier result, if it has one of another spec; else the median
    over rows of the same algorithm and number of envs, else of the same algorithm, else of all
    results, else a guess.
    """
    row = state.row
    results = {id_: found.result for id_, found in kept.items()}
    speeds = {id_: speed for id_, result in results.items() if (speed := _speed(result))}
    measured = [(manifest.by_id[id_], speeds[id_]) for id_ in speeds if id_ in manifest.by_id]
    same = [(other, speed) for other, speed in measured if other.algorithm == row.algorithm]
    alike = [each for each in same if each[0].settings.num_envs == row.settings.num_envs]
    closest = [speed for _, speed in alike or same or measured]
    typical = statistics.median(closest) if closest else GUESSED_FRAMES_PER_SECOND
    frames = row.settings.max_frame * row.sessions
    return frames * (1.0 - state.progress) / (speeds.get(row.id) or typical) / 3600


def _speed(result: Result) -> float:
    """Frames per second of all sessions of a trial together; 0 where that is not known."""
    known = [trial for trial in result.trials if trial.provenance.seconds]
    frames = sum(trial.frame * len(trial.sessions) for trial in known)
    return frames / sum(trial.provenance.seconds or 0.0 for trial in known) if frames else 0.0


def _train(
    state: RowState, results_dir: Path, data_dir: Path, log_level: str, end: float | None
) -> list[Path]:
    """Train or resume the trials of a row, with every step in its ledger; the run folders."""
    row, folders = state.row, []
    for trial in range(row.trials):
        spec = row.spec(trial)
        known = state.trials[trial] if state.trials else TrialState(RowStatus.missing)
        if known.layout is None:
            options, mode = RunOptions(timestamp=_free_timestamp(spec.name, data_dir)), "train"
            folder = data_dir / f"{spec.name}_{options.timestamp}"
        else:
            options, folder = RunOptions(), known.layout.predir
            mode = f"train@{folder}"
        folders.append(folder)
        if known.status is RowStatus.trained:
            continue
        with _in_ledger(results_dir / row.id, attempt_of(spec, folder, trial)):
            options = replace(options, data_dir=str(data_dir), log_level=log_level)
            with _stopped_at(end):
                metrics = run(spec, mode, options)
            for session, error in {**metrics.failed, **metrics.diverged}.items():
                raise RuntimeError(f"session {session} failed: {error.splitlines()[-1]}")
        enter(row, open_run(folder, trial=0), trial, results_dir)
    return folders


@contextmanager
def _in_ledger(row_folder: Path, attempt: Attempt) -> Iterator[None]:
    """Write down that an attempt starts or goes on, and how it ended early if it did."""

    def write(event: Event, reason: str = "") -> None:
        write_entry(row_folder, attempt, event, commit=git_sha(), reason=reason)

    write("resumed" if attempt.folder in last_entries(read_ledger(row_folder)) else "started")
    try:
        yield
    except KeyboardInterrupt:  # RunStopped is one
        write("interrupted")
        raise
    except Exception as error:
        write("failed", f"{type(error).__name__}: {error}")
        raise


def _free_timestamp(name: str, data_dir: Path) -> str:
    """A timestamp that no run folder has, so that the ledger knows the folder before it is made."""
    while (data_dir / f"{name}_{(stamp := new_timestamp())}").exists():
        time.sleep(0.1)
    return stamp


@contextmanager
def _stopped_at(end: float | None) -> Iterator[None]:
    """Send this process a SIGTERM at the time `end`, on which a training ends cleanly.

    Between two trainings, or while graphs are drawn, the signal has no effect: the next step is
    chosen by the rest of the budget.
    """
    if end is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda *_: None)
    stop = (os.getpid(), signal.SIGTERM)
    timer = threading.Timer(max(0.0, end - time.monotonic()), os.kill, args=stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        signal.signal(signal.SIGTERM, previous)


def _duration(hours: float) -> str:
    return f"about {hours:.1f} h" if hours >= 1 else f"about {max(1, round(hours * 60))} min"
