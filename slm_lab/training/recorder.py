"""The metrics history of a session: the rows of its CSV files, and who else receives them.

These are TensorBoard and, with `--wandb` (extra `wandb`), Weights & Biases.
"""

from __future__ import annotations

import importlib.util
import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from loguru import logger
from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.summary.writer import record_writer  # type: ignore[import-untyped]

from slm_lab.runs.files import open_for_append, replacing
from slm_lab.runs.glossary import MOVING_AVERAGE_WINDOW
from slm_lab.runs.layout import RunLayout
from slm_lab.spec import Problem, Spec, SpecError

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
COUNTERS = ("frame", "t", "epi", "opt_step")  # exact: float32 counts only to 16.7 million

Row = dict[str, float]

_number = count()
PROJECT = "slm-lab"
OFFLINE = ("offline", "disabled", "dryrun")


class Recorder:
    """Owns the metrics of a session so far, and the files that hold them.

    A row has the columns of `BASE_COLUMNS` except `total_reward_ma`, which is computed here. NaN,
    or a missing column, means not known. Further columns follow in the order given. TensorBoard
    and the `sinks` receive every row; a failure in one never ends a run.
    """

    def __init__(self, layout: RunLayout, trial: int, session: int, *sinks: WandbSink) -> None:
        self._train = _Table(layout.session_csv(trial, session, "train"), layout.predir)
        self._eval = _Table(layout.session_csv(trial, session, "eval"), layout.predir)
        own = TensorboardSink(layout, trial, session)
        self._sinks: tuple[TensorboardSink | WandbSink, ...] = (own, *sinks)

    def record(self, row: Mapping[str, float], details: Mapping[str, float] | None = None) -> bool:
        """Add a training row; True if its moving average equals or beats the best so far. `details`
        go to the sinks alone. A second row at a frame replaces the first."""
        recorded = self._train.add(row)
        self._send({**recorded, **(details or {})}, prefix="")
        return recorded["total_reward_ma"] == self.best  # False while both are NaN

    def preview(self, row: Mapping[str, float]) -> Row:
        """The row as it would be recorded, with its moving average."""
        return self._train.complete(row)

    def record_eval(self, row: Mapping[str, float]) -> None:
        """Add a row of a separate evaluation (`meta.rigorous_eval`)."""
        self._send(self._eval.add(row), prefix="eval_")

    @property
    def last_row(self) -> Mapping[str, float]:
        """The latest training row, as written; empty before the first."""
        return self._train.rows[-1] if self._train.rows else {}

    @property
    def total_reward_ma(self) -> float:
        """Mean of the last 100 checkpoints' `total_reward`; NaN while there is none."""
        return self.last_row.get("total_reward_ma", math.nan)

    @property
    def score(self) -> float:
        """The `total_reward_ma` that counts: that of separate evaluations, if there are any."""
        rows = self._eval.rows or self._train.rows
        return rows[-1]["total_reward_ma"] if rows else math.nan

    @property
    def best(self) -> float:
        """Highest `total_reward_ma` since learning began; NaN while there is none."""
        return self._train.bests[-1] if self._train.bests else math.nan

    def write_tables(self) -> bool:
        """Complete the tables; False if that fails. Without evaluations there is only one."""
        is_written = self._train.finish()
        return (self._eval.finish() if self._eval.rows else True) and is_written

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    def state_dict(self) -> dict[str, Any]:
        """The rows so far, as one array per column."""
        return {"train": self._train.columns_of_rows(), "eval": self._eval.columns_of_rows()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from these rows. The CSV loses rows written after the checkpoint."""
        self._train.load(state["train"])
        self._eval.load(state["eval"])

    def _send(self, row: Row, prefix: str) -> None:
        for sink in self._sinks:
            sink.scalars(int(row["frame"]), {prefix + name: value for name, value in row.items()})


class _Table:
    """Rows in memory, and the same rows in a CSV that is complete after every `add`.

    `rows` hold the numbers as rounded in the CSV, so that the best score found here and the one
    found later in the file agree to the last bit.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self._folder = folder
        self.rows: list[Row] = []
        self.bests: list[float] = []  # highest moving average since learning began
        self._columns: tuple[str, ...] = BASE_COLUMNS
        self._is_behind = False  # the file lacks rows that could not be written

    def complete(self, row: Mapping[str, float]) -> Row:
        """A row with its moving average, which counts it in place of one at the same frame."""
        rows = self.rows
        if rows and rows[-1]["frame"] == row["frame"]:
            rows = rows[:-1]
        recent = [past["total_reward"] for past in rows[1 - MOVING_AVERAGE_WINDOW :]]
        last = float(_as_written("total_reward", row["total_reward"]))
        known = [reward for reward in (*recent, last) if not math.isnan(reward)]
        average = sum(known) / len(known) if known else math.nan
        return {**row, "total_reward_ma": _as_written("total_reward_ma", average)}

    def add(self, row: Mapping[str, float]) -> Row:
        missing = [name for name in ("frame", "total_reward") if name not in row]
        if missing:
            raise ValueError(f"row lacks {', '.join(missing)}; found {', '.join(row)}")
        last_frame = self.rows[-1]["frame"] if self.rows else -math.inf
        if row["frame"] < last_frame:
            raise ValueError(f"frame: {row['frame']} recorded after {last_frame:.0f}")
        average = self.complete(row)["total_reward_ma"]
        if replaces := row["frame"] == last_frame:
            self.rows.pop()
            self.bests.pop()
        columns = (*self._columns, *(name for name in row if name not in self._columns))
        is_new_header = not self.rows or columns != self._columns
        self._columns = columns
        values = {name: _as_written(name, row.get(name, math.nan)) for name in columns}
        self.rows.append(values)
        values["total_reward_ma"] = average
        self._note_best(values)
        self._write(values, whole=is_new_header or replaces or self._is_behind)
        return values

    def finish(self) -> bool:
        """Write the rows still missing in the file, the header at least; False if that fails."""
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
        else:  # the file was written after the checkpoint
            self.path.unlink(missing_ok=True)

    def _note_best(self, row: Row) -> None:
        before = self.bests[-1] if self.bests else math.nan
        # The first episodes to end are the short ones, whose mean may be far off: before the first
        # gradient step it would make an agent that has learned nothing the best for good.
        now = row["total_reward_ma"] if row.get("opt_step") != 0 else math.nan
        self.bests.append(now if math.isnan(before) or now > before else before)

    def _write(self, row: Row, *, whole: bool) -> None:
        """Write a row, or the whole file after a failed write: a full disk loses no row."""
        try:
            if whole:
                with replacing(self._folder, self.path) as file:
                    file.write((",".join(self._columns) + "\n").encode())
                    file.writelines(self._line(row).encode() for row in self.rows)
            else:
                with open_for_append(self._folder, self.path) as file:
                    file.write(self._line(row).encode())
            self._is_behind = False
        except OSError as error:
            self._is_behind = True
            logger.warning(f"{self.path}: rows not written yet ({error.strerror})")

    def _line(self, row: Row) -> str:
        return ",".join(_spell(name, row.get(name, math.nan)) for name in self._columns) + "\n"


def _spell(column: str, value: float) -> str:
    """Shortest text of a number: exact for a counter, else of its float32; NaN is empty."""
    if math.isnan(value):
        return ""
    if column in COUNTERS:
        return str(int(value))
    with np.errstate(over="ignore"):  # a loss beyond float32 is written as inf
        return str(np.float32(value))


def _as_written(column: str, value: float) -> float:
    return float(_spell(column, value) or math.nan)


class TensorboardSink:
    """Owns an event file, which is complete when `scalars` returns.

    TensorBoard's own writer uses a thread; to wait until it has flushed takes longer than this.
    The sessions of a trial share one of TensorBoard's runs. A purge marker of a resumed session
    would cut the curves of the others too, so a repeated frame shows as two points.
    """

    def __init__(self, layout: RunLayout, trial: int, session: int) -> None:
        self._layout = layout
        self._unit = f"trial{trial}_session{session}"
        writer = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_number)}"
        name = f"events.out.tfevents.{writer}.{layout.session_name(trial, session)}"
        self._path = layout.log_dir() / name
        self._is_lost = False
        self._write(file_version="brain.Event:2")

    def scalars(self, frame: int, values: Mapping[str, float]) -> None:
        points = [
            Summary.Value(tag=f"{name}/{self._unit}", simple_value=value)
            for name, value in values.items()
            if math.isfinite(value)
        ]
        self._write(step=frame, summary=Summary(value=points))

    def close(self) -> None: ...

    def _write(self, **content: Any) -> None:
        if self._is_lost:
            return
        event = Event(wall_time=time.time(), **content).SerializeToString()
        try:
            with open_for_append(self._layout.predir, self._path) as file:
                record_writer.RecordWriter(file).write(event)
        except OSError as error:  # the CSV has the same numbers
            self._is_lost = True
            reason = f"TensorBoard gets no more events ({error.strerror})"
            logger.warning(f"{self._path.parent}: {reason}")


def check_wandb() -> None:
    """Refuse `--wandb` before training if W&B is not installed or knows no account."""
    if importlib.util.find_spec("wandb") is None:
        found = "wandb is not installed. Install the extra `wandb`: pip install 'slm-lab[wandb]'"
        raise SpecError([Problem("--wandb", found)], "the command")
    if os.environ.get("WANDB_MODE") in OFFLINE:
        return
    import wandb

    if not wandb.api.api_key:
        found = "no account is known here. Run `wandb login`, or set WANDB_MODE=offline"
        raise SpecError([Problem("--wandb", found)], "the command")


class WandbSink:
    """Owns one W&B run. A failure ends the sending with a warning, and training continues.

    The runs of a trial form a group, and have their files in the run folder. W&B's own settings
    apply: `WANDB_MODE=offline` needs no network and no account, and `wandb sync` sends the files
    later; `WANDB_PROJECT` and `WANDB_ENTITY` say where to.
    """

    def __init__(self, spec: Spec, layout: RunLayout, trial: int, session: int) -> None:
        self._run: Any = None
        self._is_lost = False
        self._call(lambda: self._start(spec, layout, trial, session))

    def scalars(self, frame: int, values: Mapping[str, float]) -> None:
        """Send a row; W&B draws against `frame`. Frames repeated by a resume appear twice."""
        known = {name: value for name, value in values.items() if math.isfinite(value)}
        self._call(lambda: self._run.log({"frame": frame, **known}))

    def close(self) -> None:
        self._call(lambda: self._run.finish())

    def _start(self, spec: Spec, layout: RunLayout, trial: int, session: int) -> None:
        import wandb

        group = f"{layout.predir.name}_t{trial}"
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            group=group,
            name=layout.session_name(trial, session),
            id=f"{group}_s{session}",
            resume="allow",
            dir=str(layout.predir.resolve()),
            config={"spec_name": spec.name, "trial": trial, "session": session, **spec.to_dict()},
            reinit="create_new",  # a search trains several sessions in one process
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("*", step_metric="frame")

    def _call(self, function: Callable[[], None]) -> None:
        if self._is_lost:
            return
        try:
            function()
        except Exception as error:
            self._is_lost = True
            logger.warning(f"W&B gets no more of this session ({error!s:.300})")
