"""Learning curves from session tables, and their mean over sessions.

A curve is a pandas Series of y indexed by x.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd

from slm_lab.analysis.metrics import moving_average
from slm_lab.runs.glossary import MOVING_AVERAGE_WINDOW

GRID_POINTS = 500  # where sessions have no x in common

SMOOTH_LABEL = f"mean return, moving average of {MOVING_AVERAGE_WINDOW} checkpoints"

Rows = TypeVar("Rows", pd.Series, pd.DataFrame)


@dataclass(frozen=True, slots=True)
class XAxis:
    """An x axis: its name in file names, its column and its label."""

    name: str
    column: str
    label: str


FRAMES = XAxis("frames", "frame", "frames")
OPT_STEPS = XAxis("opt_steps", "opt_step", "gradient steps")
WALL_TIME = XAxis("wall_t", "wall_t", "wall time (s)")
X_AXES = (FRAMES, OPT_STEPS, WALL_TIME)


def return_label(smooth: bool) -> str:
    return SMOOTH_LABEL if smooth else "mean return"


def curve(
    table: pd.DataFrame, y: str = "total_reward", x: XAxis = FRAMES, *, smooth: bool = False
) -> pd.Series:
    """One column of a session table against x; an infinite value leaves a gap."""
    values = table[y].where(np.isfinite(table[y])).to_numpy()
    if smooth:
        values = moving_average(values)
    return pd.Series(values, index=pd.Index(x_values(table, x), name=x.name), name=y)


def common_axes(tables: Iterable[pd.DataFrame]) -> list[XAxis]:
    """The axes that all tables have; tables of the original SLM Lab may lack a clock."""
    tables = list(tables)
    return [x for x in X_AXES if all(x.column in t and t[x.column].notna().all() for t in tables)]


def thinned(line: Rows, most: int) -> Rows:
    """Thin a line or a table to at most `most` rows, evenly spaced, with the first and the last."""
    if len(line) <= most:
        return line
    return line.iloc[np.linspace(0, len(line) - 1, most).round().astype(int)]


def x_values(table: pd.DataFrame, x: XAxis) -> np.ndarray:
    """The x values, never falling. Seconds are frame / fps: in tables of the original, and of
    earlier versions, `wall_t` counts whole ones."""
    values = table[x.column].to_numpy(dtype=np.float64)
    if x is WALL_TIME and "fps" in table:
        fps = table["fps"].to_numpy(dtype=np.float64)
        is_known = np.isfinite(fps) & (fps > 0)
        exact = np.divide(table["frame"].to_numpy(), fps, out=values.copy(), where=is_known)
        values = np.maximum.accumulate(exact)
    return values


def mean_and_std(curves: Sequence[pd.Series]) -> tuple[pd.Series, pd.Series]:
    """Over the sessions known at each x; where there is one, the std is 0.

    Sessions are joined on x and not by position, so one that stopped early thins out the mean from
    there on and does not shorten the others.
    """
    joined = on_common_grid(curves)
    return joined.mean(axis=1), joined.std(axis=1).where(joined.count(axis=1) != 1, 0.0)


def on_common_grid(curves: Sequence[pd.Series]) -> pd.DataFrame:
    """Join curves on x, one column each.

    Curves with common x values, as the frames of one spec, keep them. Others, such as seconds or
    frames of runs with another log frequency, are interpolated onto an even grid, each over its own
    range.
    """
    # Gradient steps stand still until learning starts: the latest row at an x counts.
    unique = [series[~series.index.duplicated(keep="last")].sort_index() for series in curves]
    longest = max(unique, key=len).index
    if all(series.index.isin(longest).all() for series in unique):
        return pd.concat(unique, axis=1).sort_index()
    known = [series.dropna() for series in unique]
    every_x = np.concatenate([series.index for series in known])
    if not len(every_x):
        return pd.concat(unique, axis=1).sort_index()
    grid = np.linspace(every_x.min(), every_x.max(), min(len(longest), GRID_POINTS))
    columns = {
        i: np.interp(grid, s.index, s, left=np.nan, right=np.nan) if len(s) else np.nan
        for i, s in enumerate(known)
    }
    return pd.DataFrame(columns, index=pd.Index(grid, name=longest.name))
