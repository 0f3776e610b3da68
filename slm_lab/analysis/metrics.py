"""Metrics of learning curves, per session and per trial.

One row i of a session table is one checkpoint: R_i the return, f_i the frame, o_i the gradient
steps so far. S_i = R_i - R_rand is the strength: the return above that of a random policy. A metric
comes as one number per session and, under a plural name, as a local series over the checkpoints.

NaN means "not known" and is left out of sums: a vector env reports no return until its first
episode ends. A division by zero is NaN. A session that diverged has NaN for every number, and its
trial too: a mean over the survivors would hide the failure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from slm_lab.runs.files import read_json, write_or_warn
from slm_lab.runs.glossary import MOVING_AVERAGE_WINDOW

if TYPE_CHECKING:
    import pandas as pd

Series = NDArray[np.float64]

SESSION_SCALARS = (
    "total_reward_ma",
    "strength",
    "max_strength",
    "final_strength",
    "sample_efficiency",
    "training_efficiency",
    "stability",
    "last_100_return",
)
PER_SESSION_SERIES = (
    "mean_returns",
    "strengths",
    "sample_efficiencies",
    "training_efficiencies",
    "stabilities",
)
# In the order of the original SLM Lab, then what it does not have.
TRIAL_SCALARS = ("frame", *SESSION_SCALARS[:-1], "consistency", "last_100_return")

_BASELINE_PATH = Path(__file__).parents[1] / "spec" / "_random_baseline.json"


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics of a session, or of a trial, where `PER_SESSION_SERIES` have one series per session.

    `diverged` is the reason why training of the session diverged, or None.
    """

    scalar: Mapping[str, float]
    local: Mapping[str, Any]
    diverged: str | None = None

    def to_json(self) -> dict[str, Any]:
        content = {"scalar": self.scalar, "local": self.local}
        return content | ({"diverged": self.diverged} if self.diverged else {})


# One session


def moving_average(values: ArrayLike, window: int = MOVING_AVERAGE_WINDOW) -> Series:
    """Mean of the last `window` entries at each position, of fewer where there are not so many."""
    values = np.asarray(values, dtype=np.float64)
    if values.size == 0:
        return values
    padded = np.concatenate([np.full(window - 1, np.nan), values])
    windows = sliding_window_view(padded, window)
    return _divide(np.nansum(windows, axis=1), np.sum(~np.isnan(windows), axis=1))


def strengths(returns: ArrayLike, random_mean: float) -> Series:
    """S_i = R_i - R_rand; an infinite return, which only divergence gives, has none (NaN)."""
    returns = np.asarray(returns, dtype=np.float64)
    return np.where(np.isinf(returns), np.nan, returns - random_mean)


def efficiency(strength: Series, cost: ArrayLike) -> float:
    """sum(S_i / c_i) / sum(S_i): high when the strength came at a low cost.

    The cost is the frame (sample efficiency) or the gradient steps (training efficiency). Both sums
    are over the rows since the first gradient step: a mean of 1 / c_i with weights S_i.
    """
    ratio, weight = _ratio_and_weight(strength, cost)
    return float(_divide(ratio.sum(), weight.sum()))


def efficiencies(strength: Series, cost: ArrayLike) -> Series:
    """Efficiency of all rows up to each checkpoint."""
    ratio, weight = _ratio_and_weight(strength, cost)
    return _divide(ratio.cumsum(), weight.cumsum())


def stability(strength: Series) -> float:
    """1 - |sum(min(S_{i+1} - S_i, 0)) / sum(S_i)|, both sums without the last row: 1 never drops.

    A single row has had no chance to drop, and counts as stable.
    """
    known = strength[~np.isnan(strength)]
    if known.size == 1:
        return 1.0
    drop = np.minimum(np.diff(known), 0.0).sum()
    return float(1.0 - np.abs(_divide(drop, known[:-1].sum())))


def stabilities(strength: Series) -> Series:
    """Stability of each step, so one entry fewer than there are rows."""
    drop = np.minimum(np.diff(strength), 0.0)
    return 1.0 - np.abs(_divide(drop, strength[:-1]))


def session_metrics(
    table: pd.DataFrame | Mapping[str, Sequence[float]], random_mean: float = 0.0
) -> Metrics:
    """All metrics of one session table; defined for any number of rows, even none."""
    returns, frame, opt_step = (
        np.asarray(table[name], dtype=np.float64) for name in ("total_reward", "frame", "opt_step")
    )
    strength = strengths(returns, random_mean)
    known = strength[~np.isnan(strength)]
    diverged = divergence(table)
    if diverged or known.size == 0:
        scalar = dict.fromkeys(SESSION_SCALARS, np.nan)
    else:
        scalar = {
            "total_reward_ma": float(moving_average(returns)[-1]),
            "strength": float(known.mean()),
            "max_strength": float(known.max()),
            "final_strength": float(strength[-1]),
            "sample_efficiency": efficiency(strength, frame),
            "training_efficiency": efficiency(strength, opt_step),
            "stability": stability(strength),
            "last_100_return": _last(table, "last_100_return"),
        }
    local = {
        "mean_returns": returns,
        "strengths": strength,
        "sample_efficiencies": efficiencies(strength, frame),
        "training_efficiencies": efficiencies(strength, opt_step),
        "stabilities": stabilities(strength),
        "frames": frame,
        "opt_steps": opt_step,
    }
    return Metrics(scalar, local, diverged)


def divergence(table: pd.DataFrame | Mapping[str, Sequence[float]]) -> str | None:
    """Reason why the session of a table diverged, or None; the table may lack the loss.

    Returns may be unknown at first but not again after the first known one. The loss may be unknown
    before learning starts, also after a resume, so a NaN loss only counts in the last row.
    """
    returns = np.asarray(table["total_reward"], dtype=np.float64)
    loss = np.asarray(table.get("loss", []), dtype=np.float64)
    known = ~np.isnan(returns)
    broken_return = np.isinf(returns) | (~known & np.logical_or.accumulate(known))
    broken_loss = np.isinf(loss)
    if loss.size and np.isnan(loss[-1]) and not np.isnan(loss).all():
        broken_loss[-1] = True
    columns = {"total_reward": (returns, broken_return), "loss": (loss, broken_loss)}
    for name, (values, broken) in columns.items():
        if broken.any():
            i = int(np.argmax(broken))
            frame = np.asarray(table["frame"], dtype=np.float64)[i]
            return f"{name} is {values[i]:g} at frame {frame:.0f}"
    return None


# A trial: several sessions of one spec


def consistency(session_strengths: Sequence[Series]) -> float:
    """1 - 2 sum_i std_j(S_ij) / sum_i mean_j(S_ij): 1 when all sessions learn alike.

    Sessions j are cut to the shortest; the std is the sample std.
    """
    if len(session_strengths) == 1:
        return 1.0
    std, mean = _spread(session_strengths)
    known = ~np.isnan(mean)
    return float(1.0 - 2.0 * _divide(std[known].sum(), mean[known].sum()))


def consistencies(session_strengths: Sequence[Series]) -> Series:
    """Consistency at each checkpoint."""
    if len(session_strengths) == 1:
        return np.ones_like(session_strengths[0])
    std, mean = _spread(session_strengths)
    return 1.0 - 2.0 * _divide(std, mean)


def trial_metrics(sessions: Sequence[Metrics]) -> Metrics:
    """Means of the session scalars, and the consistency; `frame` is the last of session 0."""
    session_strengths = [session.local["strengths"] for session in sessions]
    diverged = any(session.diverged for session in sessions)
    frame = sessions[0].local["frames"]
    scalar = {"frame": float(frame[-1]) if frame.size else np.nan}
    for name in SESSION_SCALARS:
        scalar[name] = float(np.mean([session.scalar[name] for session in sessions]))
    scalar["consistency"] = np.nan if diverged else consistency(session_strengths)
    scalar = {name: scalar[name] for name in TRIAL_SCALARS}
    local = {
        **{name: [session.local[name] for session in sessions] for name in PER_SESSION_SERIES},
        "consistencies": consistencies(session_strengths),
        "frames": frame,
        "opt_steps": sessions[0].local["opt_steps"],
    }
    return Metrics(scalar, local)


# The zero of strength


def random_baseline(env_name: str, measured: Path | None = None) -> float | None:
    """Mean return of a uniformly random policy in the env, or None where nobody measured it.

    `measured` is a file of baselines measured on this machine (`slm-lab env baseline`); where it
    has the env, it counts before the table that ships with the package.
    """
    own = _read_baselines(measured) if measured else {}
    entry = own.get(env_name) or _shipped_baselines().get(env_name)
    return entry["mean"] if entry else None


def measured_baselines(predir: Path) -> Path:
    """The file of random-policy scores measured on this machine, beside the run folders."""
    return predir.parent / "random_baseline.json"


def save_random_baseline(path: Path, env_name: str, mean: float, std: float) -> bool:
    """Add an env to a file of measured baselines; False, and a warning, if it cannot be written."""
    table = {**_read_baselines(path), env_name: {"mean": mean, "std": std}}
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(table, indent=2, sort_keys=True) + "\n"
    return write_or_warn(path.parent, path, text)


Baselines = dict[str, dict[str, float] | None]


@cache
def _shipped_baselines() -> Baselines:
    return _read_baselines(_BASELINE_PATH)


def _read_baselines(path: Path) -> Baselines:
    return read_json(path.parent, path) if path.exists() else {}


def _last(table: pd.DataFrame | Mapping[str, Sequence[float]], name: str) -> float:
    """The last entry of a column; NaN where a table of an earlier version lacks it."""
    values = np.asarray(table.get(name, []), dtype=np.float64)
    return float(values[-1]) if values.size else np.nan


def _ratio_and_weight(strength: Series, cost: ArrayLike) -> tuple[Series, Series]:
    """S_i / c_i and S_i of every row that has both; the others count as nothing in either sum."""
    ratio = _divide(strength, np.asarray(cost, dtype=np.float64))
    known = ~np.isnan(ratio)
    return np.where(known, ratio, 0.0), np.where(known, strength, 0.0)


def _spread(session_strengths: Sequence[Series]) -> tuple[Series, Series]:
    """Sample std and mean over sessions at each checkpoint that all of them reached."""
    shortest = min(len(series) for series in session_strengths)
    table = np.stack([series[:shortest] for series in session_strengths])  # [sessions, rows]
    return table.std(axis=0, ddof=1), table.mean(axis=0)


def _divide(numerator: ArrayLike, denominator: ArrayLike) -> Series:
    """Divide; a division by zero is NaN without a warning."""
    numerator, denominator = np.asarray(numerator), np.asarray(denominator)
    quotient = np.full(np.broadcast_shapes(numerator.shape, denominator.shape), np.nan)
    np.divide(numerator, denominator, out=quotient, where=denominator != 0)
    return quotient
