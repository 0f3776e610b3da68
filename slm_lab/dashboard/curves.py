"""Learning curves for the screen: mean and band over sessions, in few enough points."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from slm_lab.analysis.tables import read_session
from slm_lab.runs.summary import RunSummary, stamp

Axis = Literal["frame", "wall_t", "opt_step"]
AXES: tuple[Axis, ...] = ("frame", "wall_t", "opt_step")
# Columns that count, rather than measure.
COUNTERS = frozenset({*AXES, "t", "epi"})
RETURNS = ("total_reward_ma", "total_reward")

MOST_POINTS = 400  # of a line: more than that a screen does not show
MAX_TABLE_BYTES = 100_000_000

Values = NDArray[np.float64]
Columns = Mapping[str, Values]


@dataclass(frozen=True, slots=True)
class SessionLine:
    x: Values
    y: Values


@dataclass(frozen=True, slots=True)
class Curve:
    """Mean over a trial's sessions, one standard deviation around it, and each session's own."""

    x: Values
    mean: Values
    low: Values
    high: Values
    sessions: tuple[SessionLine, ...]

    @property
    def is_empty(self) -> bool:
        return len(self.x) == 0


def join(lines: Sequence[SessionLine], points: int = MOST_POINTS) -> Curve:
    """Mean and band of lines whose x may differ: a line is interpolated between its points, and
    left out beyond its ends."""
    known = [line for line in map(_clean, lines) if len(line.x)]
    if not known:
        nothing = np.empty(0)
        return Curve(nothing, nothing, nothing, nothing, ())
    x = thin(np.unique(np.concatenate([line.x for line in known])), points)
    table = np.stack([np.interp(x, line.x, line.y, np.nan, np.nan) for line in known])
    count = np.isfinite(table).sum(axis=0)
    x, table, count = x[count > 0], table[:, count > 0], count[count > 0]
    mean = np.nansum(table, axis=0) / count
    squares = np.nansum((table - mean) ** 2, axis=0)
    std = np.sqrt(squares / np.maximum(count - 1, 1))  # 0 where there is one session
    sessions = tuple(SessionLine(thin(line.x, points), thin(line.y, points)) for line in known)
    return Curve(x, mean, mean - std, mean + std, sessions)


def thin(values: Values, points: int) -> Values:
    """At most that many of the values, evenly spread, first and last among them."""
    if len(values) <= points:
        return values
    index = np.linspace(0, len(values) - 1, points).round().astype(np.intp)
    return np.take(values, index)


def _clean(line: SessionLine) -> SessionLine:
    """Finite points by rising x; of several at one x the last, which replaces those before."""
    is_known = np.isfinite(line.x) & np.isfinite(line.y)
    x, y = line.x[is_known], line.y[is_known]
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    is_last = np.append(x[1:] != x[:-1], True) if len(x) else np.empty(0, dtype=bool)
    return SessionLine(x[is_last], y[is_last])


class CurveStore:
    """Owns the tables read so far. A table is read again when its file has changed."""

    def __init__(self, most_tables: int = 500) -> None:
        self._tables: dict[Path, tuple[tuple[int, int], Columns]] = {}
        self._most_tables = most_tables
        self._lock = threading.Lock()

    def curve(
        self, run: RunSummary, y: str, x: Axis = "frame", *, trial: int | None = None
    ) -> Curve:
        """One column of a trial's tables (of a search: its best trial's) against another."""
        trial = run.trial if trial is None else trial
        tables = [self.table(run, trial, s, y) for s in run.layout.sessions(trial)]
        lines = [SessionLine(table[x], table[y]) for table in tables if x in table and y in table]
        return join(lines)

    def columns(self, run: RunSummary) -> tuple[str, ...]:
        """Columns that hold numbers, returns first."""
        names: dict[str, None] = dict.fromkeys(RETURNS)
        for session in run.layout.sessions(run.trial)[:1]:
            table = self.table(run, run.trial, session, "loss")
            names |= {
                name: None
                for name, values in table.items()
                if name not in COUNTERS and np.isfinite(values).any()
            }
        return tuple(names)

    def table(self, run: RunSummary, trial: int, session: int, y: str) -> Columns:
        """A session's table; for returns that of its separate evaluations, if any."""
        if y in RETURNS:
            table = self._read(run.folder, run.layout.session_csv(trial, session, "eval"))
            if table:
                return table
        return self._read(run.folder, run.layout.session_csv(trial, session, "train"))

    def _read(self, folder: Path, path: Path) -> Columns:
        version = stamp(path)
        if not 0 < version[1] <= MAX_TABLE_BYTES:
            return {}
        with self._lock:
            known = self._tables.get(path)
        if known and known[0] == version:
            return known[1]
        columns = _read_columns(folder, path)
        with self._lock:
            self._tables[path] = (version, columns)
            while len(self._tables) > self._most_tables:
                del self._tables[next(iter(self._tables))]
        return columns


def _read_columns(folder: Path, path: Path) -> Columns:
    try:
        table = read_session(path, folder=folder)
    except ValueError:  # gone meanwhile, half written, or no table at all
        return {}
    return {str(name): table[name].to_numpy() for name in table.columns}
