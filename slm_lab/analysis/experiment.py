"""Results of a search: its table of trials, and the importance of each hyperparameter.

The score of a trial is the one that the search maximised: `total_reward_ma`, or the score of a
random policy for a trial that diverged or failed. The highest score of many is biased upwards; a
validated score is that of the same spec trained again with new seeds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from slm_lab.analysis.metrics import TRIAL_SCALARS
from slm_lab.runs.files import read_json, write_atomic
from slm_lab.runs.layout import RunLayout
from slm_lab.spec import Spec, split_search_key

_STATUSES = ("completed", "stopped", "diverged", "failed")


@dataclass(frozen=True, slots=True)
class Axis:
    """A searched key as an axis of a graph."""

    path: str
    is_log: bool
    is_choice: bool

    @property
    def label(self) -> str:
        """The last two words of the path: `algorithm.gamma`, `optim_spec.lr`."""
        return ".".join(self.path.split(".")[-2:])


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial of a search, with or without metrics on disk."""

    trial: int
    values: Mapping[str, Any]
    status: str
    score: float
    validated: float | None = None


@dataclass(frozen=True, slots=True)
class SearchMetrics:
    """The result of a search: its trials, the highest score first, and its files.

    `frames` were trained over all trials and sessions, `most_frames` would have been without early
    stopping; `seconds` is the sum of the trials' own times.
    """

    trials: tuple[TrialRow, ...]
    frames: int
    most_frames: int
    seconds: float
    predir: Path
    best_spec: Path | None
    graph_png: Path
    graph_html: Path

    @property
    def validated(self) -> tuple[TrialRow, ...]:
        """Trials that were trained again, the highest validated score first."""
        rows = (row for row in self.trials if row.validated is not None)
        return tuple(sorted(rows, key=lambda row: -(row.validated or 0.0)))

    @property
    def best(self) -> TrialRow | None:
        """The best by validated score, if there is any; else by the search's own."""
        fit = [row for row in self.trials if row.status in ("completed", "stopped")]
        return next(iter([*self.validated, *fit]), None)

    def count(self, status: str) -> int:
        """Trials that ended with this status."""
        return sum(row.status == status for row in self.trials)

    def summary_line(self) -> str:
        """The result in one line; the search's own score is never given alone."""
        counts = (f"{n} {name}" for name in _STATUSES if (n := self.count(name)))
        parts = [f"search: {len(self.trials)} trials ({', '.join(counts)})"]
        parts.append(f"{self.frames:,} of {self.most_frames:,} frames")
        if self.best is None:
            return " | ".join([*parts, "no trial is fit to be run again"])
        score, validated = f"search score {self.best.score:.2f}", self.best.validated
        told = (
            f"{score}, not validated"
            if validated is None
            else f"validated {validated:.2f} | {score}"
        )
        return " | ".join([*parts, f"best trial {self.best.trial}", told])


def axes_of(spec: Spec) -> tuple[Axis, ...]:
    keys = (split_search_key(key) for key in spec.search)
    return tuple(Axis(path, "log" in kind, kind == "choice") for path, kind in keys)


def experiment_table(paths: RunLayout, rows: Sequence[TrialRow]) -> pd.DataFrame:
    """One row per trial, the highest score first; a trial without metrics has NaN for them."""
    keys = sorted({key for row in rows for key in row.values})
    table = [
        {
            "trial": row.trial,
            **{key: row.values.get(key) for key in keys},
            **_trial_scalars(paths, row.trial),
            "score": row.score,
            "status": row.status,
            "validated_total_reward_ma": row.validated,
        }
        for row in rows
    ]
    columns = ["trial", *keys, *TRIAL_SCALARS, "score", "status"]
    columns += ["validated_total_reward_ma"] * any(row.validated is not None for row in rows)
    frame = pd.DataFrame(table, columns=columns)
    return frame.sort_values(["score", "trial"], ascending=[False, True], ignore_index=True)


def write_experiment(paths: RunLayout, rows: Sequence[TrialRow]) -> pd.DataFrame:
    """Write the table of trials, as CSV and JSON; cheap enough for after every trial."""
    table = experiment_table(paths, rows)
    text = table.to_csv(index=False)
    for path in (paths.experiment_csv(), paths.experiment_csv_copy()):
        write_atomic(paths.predir, path, text)
    content = {str(row.trial): {**row.values, **_trial_scalars(paths, row.trial)} for row in rows}
    write_atomic(paths.predir, paths.trial_data_dict(), json.dumps(content, indent=2) + "\n")
    return table


def importance(table: pd.DataFrame, axes: Sequence[Axis]) -> dict[str, float]:
    """Label -> share of the variance of the scores' ranks that one key alone explains.

    Ranks limit the weight of an outlier. A parabola is fitted over a numeric key, so that an
    optimum in the middle counts, and a mean per option of a choice. The share is adjusted for the
    number of coefficients, so that chance gives about 0. NaN with too few trials.
    """
    rank = table["score"].rank().to_numpy()
    return {axis.label: _explained(table[axis.path], rank, axis.is_choice) for axis in axes}


def _explained(values: pd.Series, rank: np.ndarray, is_choice: bool) -> float:
    if is_choice:
        columns = pd.get_dummies(values.map(str)).to_numpy(dtype=np.float64)
    else:
        x = values.rank().to_numpy() / len(values)
        columns = np.stack([np.ones_like(x), x, x**2], axis=1)
    free = len(rank) - np.linalg.matrix_rank(columns)
    total = np.square(rank - rank.mean()).sum()
    if free < 1 or len(rank) < 3 or total == 0:
        return float("nan")
    fit, *_ = np.linalg.lstsq(columns, rank, rcond=None)
    left = np.square(rank - columns @ fit).sum()
    return float(max(0.0, 1.0 - (left / free) / (total / (len(rank) - 1))))


def _trial_scalars(paths: RunLayout, trial: int) -> dict[str, float]:
    path = paths.trial_metrics_scalar(trial)
    found: dict[str, float] = read_json(paths.predir, path) if path.exists() else {}
    return {name: found.get(name, float("nan")) for name in TRIAL_SCALARS}
