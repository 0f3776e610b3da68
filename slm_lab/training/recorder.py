"""The metrics history of one session: the rows of its CSV, and their copy in TensorBoard.

Nothing happens between two calls of `record`, so recording costs the training loop nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from loguru import logger
from numpy.typing import ArrayLike
from tensorboard.compat.proto.summary_pb2 import (  # type: ignore[import-untyped]
    HistogramProto,
    Summary,
)

from slm_lab.runs.files import (
    MAX_TABLE_BYTES,
    open_for_append,
    read_bytes,
    replacing,
    write_or_warn,
)
from slm_lab.runs.layout import RunLayout
from slm_lab.spec.run_folder import RunFolderError
from slm_lab.training.event_file import EventFile

BASE_COLUMNS = (
    "total_reward",
    "total_reward_ma",
    "loss",
    "fps",
    "frame",
    "wall_t",
    "t",
    "epi",
    "opt_step",
    "lr",
)
ALGORITHM_COLUMNS = ("grad_norm", "explore_var", "entropy_coef", "clip_eps", "entropy", "alpha")
MOVING_AVERAGE_WINDOW = 100  # checkpoints
COUNTERS = ("frame", "t", "epi", "opt_step")  # exact: float32 counts only to 16.7 million

Row = dict[str, float]


class Sink(Protocol):
    """A further place for the numbers; `wandb_sink.WandbSink` is one."""

    def scalars(self, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class Recorder:
    """Owns what a session has measured so far, and every file that says so.

    A row holds the columns of `BASE_COLUMNS` but `total_reward_ma`, which is computed here; NaN, or
    a column left out, means not known. Further columns follow those: first the ones that
    algorithms are known for, then any others in the order given. A `sink` gets what TensorBoard
    gets.
    """

    def __init__(
        self, layout: RunLayout, trial: int, session: int, sink: Sink | None = None
    ) -> None:
        self._sink = sink
        self._unit = f"trial{trial}_session{session}"
        self._folder = layout.predir
        self._train = _Table(layout.session_csv(trial, session, "train"), layout.predir)
        self._eval = _Table(layout.session_csv(trial, session, "eval"), layout.predir)
        self._log_dir = layout.log_dir()
        self._events_are_lost = False
        self._events = EventFile(self._log_dir, layout.session_name(trial, session), layout.predir)
        self._tell_tensorboard(self._events.begin)

    def record(self, row: Mapping[str, float], details: Mapping[str, float] | None = None) -> bool:
        """Add a training checkpoint; True if its moving average is the best so far, or equals it.

        `details` go to TensorBoard alone. A second row at the same frame replaces the first.
        """
        recorded = self._train.add(row)
        self._write_scalars({**recorded, **(details or {})}, prefix="")
        return recorded["total_reward_ma"] == self.best  # False while both are NaN

    def record_eval(self, row: Mapping[str, float]) -> None:
        """Add a checkpoint of a separate evaluation (`meta.rigorous_eval`)."""
        self._write_scalars(self._eval.add(row), prefix="eval_")

    def record_histogram(self, name: str, values: ArrayLike, frame: int) -> None:
        """Add the distribution of a parameter or an action to TensorBoard."""
        value = Summary.Value(tag=self._tag(name), histo=_histogram(values))
        self._tell_tensorboard(lambda: self._events.add(frame, [value]))

    @property
    def last_row(self) -> Mapping[str, float]:
        """The latest training checkpoint, as written; empty before the first."""
        return self._train.rows[-1] if self._train.rows else {}

    @property
    def total_reward_ma(self) -> float:
        """Mean of the last 100 checkpoints' `total_reward`; NaN while there is none."""
        return self.last_row.get("total_reward_ma", math.nan)

    @property
    def score(self) -> float:
        """`total_reward_ma` as it counts: of the separate evaluations, where there are any."""
        rows = self._eval.rows or self._train.rows
        return rows[-1]["total_reward_ma"] if rows else math.nan

    @property
    def best(self) -> float:
        """Highest `total_reward_ma` so far; NaN while there is none."""
        return self._train.bests[-1] if self._train.bests else math.nan

    def write_tables(self) -> bool:
        """Complete both tables, and say whether that could be done.

        Without separate evaluations, the eval table is the training table.
        """
        is_written = self._train.finish()
        if self._eval.rows:
            return self._eval.finish() and is_written
        try:
            content = read_bytes(self._folder, self._train.path, MAX_TABLE_BYTES)
        except RunFolderError as error:  # it could not be written either
            logger.warning(f"{self._eval.path}: not written ({error})")
            return False
        return write_or_warn(self._folder, self._eval.path, content) and is_written

    def close(self) -> None:
        """Let go of the sink; TensorBoard's file is complete after every row."""
        if self._sink is not None:
            self._sink.close()

    def state_dict(self) -> dict[str, Any]:
        """The rows so far, as one array per column."""
        return {"train": self._train.columns_of_rows(), "eval": self._eval.columns_of_rows()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from these rows: the CSV loses any that were written after the checkpoint.

        TensorBoard keeps them, since the sessions share one of its runs and a purge marker would
        cut the others too; a repeated frame shows as two points.
        """
        self._train.load(state["train"])
        self._eval.load(state["eval"])

    def _write_scalars(self, row: Row, prefix: str) -> None:
        values = [
            Summary.Value(tag=self._tag(prefix + column), simple_value=value)
            for column, value in row.items()
            if math.isfinite(value)
        ]
        self._tell_tensorboard(lambda: self._events.add(int(row["frame"]), values))
        if self._sink is not None:
            self._sink.scalars(
                {"frame": row["frame"]} | {prefix + name: value for name, value in row.items()}
            )

    def _tell_tensorboard(self, say: Callable[[], None]) -> None:
        """Its copy of the curve is worth a warning, not a run."""
        if self._events_are_lost:
            return
        try:
            say()
        except OSError as error:
            self._events_are_lost = True
            logger.warning(f"{self._log_dir}: TensorBoard gets no more events ({error.strerror})")

    def _tag(self, name: str) -> str:
        return f"{name}/{self._unit}"


class _Table:
    """Rows in memory and the same rows in a CSV, which is complete after every `add`.

    `rows` hold the numbers as the CSV spells them, so that a best score judged here and one found
    later in the file agree to the last bit.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self._folder = folder
        self.rows: list[Row] = []
        self.bests: list[float] = []  # the highest moving average up to each row
        self._columns: tuple[str, ...] = BASE_COLUMNS
        self._is_behind = False  # the file lacks rows that could not be written

    def add(self, row: Mapping[str, float]) -> Row:
        missing = [name for name in ("frame", "total_reward") if name not in row]
        if missing:
            raise ValueError(f"row lacks {', '.join(missing)}; found {', '.join(row)}")
        last_frame = self.rows[-1]["frame"] if self.rows else -math.inf
        if row["frame"] < last_frame:
            raise ValueError(f"frame: {row['frame']} recorded after {last_frame:.0f}")
        replaces = row["frame"] == last_frame
        if replaces:
            self.rows.pop()
            self.bests.pop()

        columns = _ordered([*self._columns, *(name for name in row if name not in self._columns)])
        is_new_header = not self.rows or columns != self._columns
        self._columns = columns
        values = {name: _as_written(name, row.get(name, math.nan)) for name in columns}
        self.rows.append(values)
        recent = [past["total_reward"] for past in self.rows[-MOVING_AVERAGE_WINDOW:]]
        values["total_reward_ma"] = _as_written("total_reward_ma", _mean_of_known(recent))
        self._note_best(values)

        self._write(values, whole=is_new_header or replaces or self._is_behind)
        return values

    def finish(self) -> bool:
        """Write rows that could not be written yet, and say whether the file has them all now.

        A session that never reached a checkpoint still leaves a table, with no rows.
        """
        if not self.rows or self._is_behind:
            self._write({}, whole=True)
        return not self._is_behind

    def columns_of_rows(self) -> dict[str, np.ndarray]:
        return {
            name: np.array([row.get(name, math.nan) for row in self.rows]) for name in self._columns
        }

    def load(self, columns: Mapping[str, np.ndarray]) -> None:
        self._columns = tuple(columns)
        self.rows = [
            dict(zip(columns, values, strict=True))
            for values in zip(*(column.tolist() for column in columns.values()), strict=True)
        ]
        self.bests = []
        for row in self.rows:
            self._note_best(row)
        if self.rows:
            self._write({}, whole=True)
        else:  # what is on disk came later than the checkpoint
            self.path.unlink(missing_ok=True)

    def _note_best(self, row: Row) -> None:
        before = self.bests[-1] if self.bests else math.nan
        now = row["total_reward_ma"]
        self.bests.append(now if math.isnan(before) or now > before else before)

    def _write(self, row: Row, *, whole: bool) -> None:
        """A disk that is full for a while costs nothing: the next row writes the file anew."""
        try:
            if whole:
                self._rewrite()
            else:
                with open_for_append(self._folder, self.path) as file:
                    file.write(self._line(row).encode())
            self._is_behind = False
        except OSError as error:
            self._is_behind = True
            logger.warning(f"{self.path}: rows not written yet ({error.strerror})")

    def _rewrite(self) -> None:
        """Replace the whole file at once; a crash leaves the old one or the new one."""
        with replacing(self._folder, self.path) as file:
            file.write((",".join(self._columns) + "\n").encode())
            file.writelines(self._line(row).encode() for row in self.rows)

    def _line(self, row: Row) -> str:
        return ",".join(_spell(name, row.get(name, math.nan)) for name in self._columns) + "\n"


def _ordered(names: Sequence[str]) -> tuple[str, ...]:
    known = [name for name in ALGORITHM_COLUMNS if name in names]
    others = [name for name in names if name not in BASE_COLUMNS + ALGORITHM_COLUMNS]
    return (*BASE_COLUMNS, *known, *others)


def _spell(column: str, value: float) -> str:
    """Shortest text for the number: exact for a counter, else that of its float32; NaN is empty."""
    if math.isnan(value):
        return ""
    if column in COUNTERS:
        return str(int(value))
    with np.errstate(over="ignore"):  # a loss beyond float32 is written as inf
        return str(np.float32(value))


def _as_written(column: str, value: float) -> float:
    return float(_spell(column, value) or math.nan)


def _mean_of_known(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _histogram(values: ArrayLike, bins: int = 30) -> HistogramProto:
    values = np.asarray(values, dtype=np.float64).ravel()
    counts, edges = np.histogram(values, bins=bins)
    return HistogramProto(
        min=values.min(),
        max=values.max(),
        num=values.size,
        sum=values.sum(),
        sum_squares=np.square(values).sum(),
        bucket_limit=edges[1:],  # upper edges; the first bucket is open below
        bucket=counts,
    )
