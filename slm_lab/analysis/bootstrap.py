"""How far a mean score can be trusted: percentile bootstrap over episodes and over sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

RESAMPLES = 5_000
LEVEL = 0.95
CHUNK = 1_000_000  # numbers drawn at once


def mean_interval(
    sessions: Sequence[Sequence[float]],
    over: Literal["episodes", "sessions"],
    *,
    seed: int = 0,
) -> tuple[float, float]:
    """95 % interval of the mean over sessions of their mean return.

    `over="episodes"` redraws episodes within each session: how well these agents are measured.
    `over="sessions"` redraws sessions too, and then episodes of those drawn: what further seeds of
    the same spec would score. With a handful of sessions that interval is somewhat too narrow.
    """
    if not sessions or not all(len(returns) for returns in sessions):
        raise ValueError("mean_interval: expected at least one session, each with an episode")
    rng = np.random.default_rng(seed)
    groups = [np.asarray(returns, dtype=np.float64) for returns in sessions]
    rows = max(1, CHUNK // max(len(group) for group in groups))
    means = np.concatenate(
        [
            _resampled(groups, over, min(rows, RESAMPLES - done), rng)
            for done in range(0, RESAMPLES, rows)
        ]
    )
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _resampled(
    groups: Sequence[np.ndarray], over: str, count: int, rng: np.random.Generator
) -> np.ndarray:
    """`count` means, each of a redrawn set of sessions."""
    total = np.zeros(count)
    for slot in range(len(groups)):
        drawn = (
            np.full(count, slot) if over == "episodes" else rng.integers(len(groups), size=count)
        )
        for index in np.unique(drawn):
            group, rows = groups[index], np.flatnonzero(drawn == index)
            picks = rng.integers(len(group), size=(len(rows), len(group)))
            total[rows] += group[picks].mean(1)
    return total / len(groups)
