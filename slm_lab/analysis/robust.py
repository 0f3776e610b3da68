"""Statistics over few runs: bootstrap intervals, and the robust statistics of Agarwal et al. 2021
("Deep RL at the edge of the statistical precipice").

Scores come as strata: one array per env, its runs along the last axis. Axes before that are
resamples of a bootstrap; every statistic takes them along.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

RESAMPLES = 5_000
LEVEL = 0.95
CHUNK = 1_000_000  # numbers drawn at once
FEWEST_FOR_INTERVAL = 3  # below, a bootstrap of seeds says nothing
FEW_SEEDS = 5  # below, its interval is too narrow
SIGNIFICANCE = 0.05
PERMUTATIONS = 9_999

Interval = tuple[float, float]  # low, high
Strata = Sequence[np.ndarray]
Statistic = Callable[..., np.ndarray]


# Statistics of scores


def mean(strata: Strata) -> np.ndarray:
    """Mean over envs of the mean over runs."""
    return np.asarray(np.mean([scores.mean(-1) for scores in strata], axis=0))


def median(strata: Strata) -> np.ndarray:
    """Over one env the median run; over several the median of their means."""
    if len(strata) == 1:
        return np.asarray(np.median(strata[0], axis=-1))
    return np.asarray(np.median([scores.mean(-1) for scores in strata], axis=0))


def interquartile_mean(strata: Strata) -> np.ndarray:
    """Mean of the middle half of all runs of all envs: a quarter, rounded down, goes each side."""
    runs = np.sort(np.concatenate(strata, axis=-1), axis=-1)
    cut = runs.shape[-1] // 4
    return np.asarray(runs[..., cut : runs.shape[-1] - cut].mean(-1))


def optimality_gap(strata: Strata, gamma: float = 1.0) -> np.ndarray:
    """Mean distance of runs below a score of gamma; runs above it count as gamma."""
    runs = np.concatenate(strata, axis=-1)
    return np.asarray(gamma - np.minimum(runs, gamma).mean(-1))


def probability_of_improvement(x: Strata, y: Strata) -> np.ndarray:
    """Chance that a run of X beats a run of Y in the same env, ties counted half; mean over envs.

    The statistic of Mann and Whitney, divided by the number of pairs.
    """
    return np.asarray(np.mean([_beats(a, b) for a, b in zip(x, y, strict=True)], axis=0))


def performance_profile(strata: Strata, taus: np.ndarray) -> np.ndarray:
    """Share of runs that score more than tau, for each tau: [..., taus]; mean over envs."""
    above = [(scores[..., None] > taus).mean(-2) for scores in strata]
    return np.asarray(np.mean(above, axis=0))


def _beats(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    pairs = a[..., :, None] - b[..., None, :]
    return np.asarray(((pairs > 0) + 0.5 * (pairs == 0)).mean((-2, -1)))


# Intervals


def interval(*groups: Strata, statistic: Statistic, seed: int = 0) -> Interval | None:
    """95 % bootstrap interval of `statistic(*groups)`; None with too few runs in any env."""
    if min(len(scores) for strata in groups for scores in strata) < FEWEST_FOR_INTERVAL:
        return None
    return _percentiles(_resampled_statistic(groups, statistic, seed))


def profile_band(
    strata: Strata, taus: np.ndarray, *, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of the profile at each tau: (lower, upper)."""
    samples = _resampled_statistic([strata], lambda s: performance_profile(s, taus), seed)
    low, high = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high


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
    counts = _chunks(max(map(len, groups)))
    return _percentiles(np.concatenate([_resampled(groups, over, n, rng) for n in counts]))


def _chunks(size: int) -> list[int]:
    """Numbers of resamples to draw at once, if one takes `size` numbers."""
    rows = max(1, CHUNK // size)
    return [min(rows, RESAMPLES - done) for done in range(0, RESAMPLES, rows)]


def _resampled_statistic(groups: Sequence[Strata], statistic: Statistic, seed: int) -> np.ndarray:
    """The statistic with the runs of every env of every group redrawn: [resamples, ...].

    Runs are only ever redrawn within their env, and groups independently of each other.
    """
    rng = np.random.default_rng(seed)
    samples = []
    for count in _chunks(sum(len(scores) for strata in groups for scores in strata)):
        redrawn = [
            [scores[rng.integers(len(scores), size=(count, len(scores)))] for scores in strata]
            for strata in groups
        ]
        samples.append(statistic(*redrawn))
    return np.concatenate(samples)


def _resampled(
    groups: Sequence[np.ndarray], over: str, count: int, rng: np.random.Generator
) -> np.ndarray:
    """`count` means, each of a redrawn set of sessions."""
    total = np.zeros(count)
    for slot in range(len(groups)):
        every_group = over == "sessions"
        drawn = rng.integers(len(groups), size=count) if every_group else np.full(count, slot)
        for index in np.unique(drawn):
            group, rows = groups[index], np.flatnonzero(drawn == index)
            picks = rng.integers(len(group), size=(len(rows), len(group)))
            total[rows] += group[picks].mean(1)
    return total / len(groups)


def _percentiles(samples: np.ndarray) -> Interval:
    low, high = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


# Tests


def permutation_p_value(x: Strata, y: Strata, *, seed: int = 0) -> float:
    """Share of random re-assignments of runs to X and Y, per env, that differ as clearly as these.

    Two-sided, on the probability of improvement. The verdict rests on it, because
    bootstrap intervals are too narrow with a handful of seeds.
    """
    rng = np.random.default_rng(seed)
    dealt_x, dealt_y = [], []
    for a, b in zip(x, y, strict=True):
        runs = rng.permuted(np.tile(np.concatenate([a, b]), (PERMUTATIONS, 1)), axis=1)
        dealt_x.append(runs[:, : len(a)])
        dealt_y.append(runs[:, len(a) :])
    found = abs(float(probability_of_improvement(x, y)) - 0.5)
    chance = np.abs(probability_of_improvement(dealt_x, dealt_y) - 0.5)
    return float((1 + np.sum(chance >= found - 1e-12)) / (1 + PERMUTATIONS))


def smallest_p_value(x: Strata, y: Strata) -> float:
    """Two-sided p of a clean sweep: in every env every run of one beats every run of the other.

    Of all ways to deal out the runs only two are sweeps. If even that could be chance, nothing
    that was measured can tell the two apart.
    """
    ways = [math.comb(len(a) + len(b), len(a)) for a, b in zip(x, y, strict=True)]
    return min(1.0, 2 / math.prod(ways))
