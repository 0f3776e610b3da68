"""Percentile bootstrap over episodes, over sessions, and over the sessions of several envs
(stratified)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

RESAMPLES = 5_000
LEVEL = 0.95
CHUNK = 1_000_000  # numbers drawn at once

Interval = tuple[float, float]  # low, high

# Scores of one method: an array per env, of its runs along the last axis. Axes before it are
# resamples, so that a statistic is evaluated on all of them at once.
Strata = Sequence[np.ndarray]
Statistic = Callable[..., np.ndarray]


def mean_interval(
    sessions: Sequence[Sequence[float]],
    over: Literal["episodes", "sessions"],
    *,
    seed: int = 0,
) -> Interval:
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
    return _percentiles(means)


def stratified_interval(
    groups: Sequence[Strata], statistic: Statistic, *, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """95 % interval of `statistic(*groups)`; see `stratified_samples`."""
    return _percentiles(stratified_samples(groups, statistic, seed=seed, resamples=resamples))


def stratified_samples(
    groups: Sequence[Strata], statistic: Statistic, *, seed: int = 0, resamples: int = RESAMPLES
) -> np.ndarray:
    """The statistic with the runs of every env of every group redrawn: [resamples, ...].

    Runs are only ever redrawn within their env, and groups independently of each other.
    """
    rng = np.random.default_rng(seed)
    rows = max(1, CHUNK // sum(len(scores) for strata in groups for scores in strata))
    samples = []
    for done in range(0, resamples, rows):
        count = min(rows, resamples - done)
        redrawn = [
            [scores[rng.integers(len(scores), size=(count, len(scores)))] for scores in strata]
            for strata in groups
        ]
        samples.append(statistic(*redrawn))
    return np.concatenate(samples)


def _percentiles(samples: np.ndarray) -> Interval:
    low, high = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
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
