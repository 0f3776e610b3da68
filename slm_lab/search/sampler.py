"""Samplers: choose the next point of the search space.

A sampler draws the point of a trial from a random stream of that trial's index. The point depends
on the seed, and with Optuna on the results known by then, but not on whether the search was
interrupted in between.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from slm_lab.runs.search_journal import Point
from slm_lab.search.plan import SearchPlan
from slm_lab.search.space import Dimension


class PointSampler(Protocol):
    def ask(self, trial: int) -> Point:
        """Draw the point of a new trial."""

    def replay(self, trial: int, point: Mapping[str, float]) -> None:
        """Take note of a trial whose point was drawn before an interruption."""
        return  # independent draws need no note

    def tell(self, trial: int, score: float) -> None:
        """Take note of the score that a trial ended with."""
        return


def make_sampler(plan: SearchPlan, seed: int) -> PointSampler:
    match plan.sampler:
        case "grid":
            return GridSampler(plan.space)
        case "random":
            return RandomSampler(plan.space, seed)
        case _:
            return OptunaSampler(plan.space, seed, plan.max_trial)


class RandomSampler(PointSampler):
    """Independent draws."""

    def __init__(self, space: tuple[Dimension, ...], seed: int) -> None:
        self._space, self._seed = space, seed

    def ask(self, trial: int) -> Point:
        rng = np.random.default_rng([self._seed, trial])
        uniform = {dim.path: float(rng.random()) for dim in self._space}
        return {
            dim.path: int(uniform[dim.path] * len(dim.arguments))
            if dim.is_choice
            else uniform[dim.path]
            for dim in self._space
        }


class GridSampler(PointSampler):
    """Every combination once; the last key of the spec varies fastest."""

    def __init__(self, space: tuple[Dimension, ...]) -> None:
        axes = [_axis(dim) for dim in space]
        paths = [dim.path for dim in space]
        self._points = [dict(zip(paths, at, strict=True)) for at in itertools.product(*axes)]

    def ask(self, trial: int) -> Point:
        return dict(self._points[trial])


def _axis(dim: Dimension) -> list[float]:
    """Coordinates of every value: indices of options, or the centres of equal intervals."""
    points = dim.points()
    assert points is not None, "plan_search refuses a grid over a continuous axis"
    if dim.is_choice:
        return list(range(len(points)))
    return [_coordinate_of(dim, value, i, len(points)) for i, value in enumerate(points)]


def _coordinate_of(dim: Dimension, value: float, index: int, count: int) -> float:
    if dim.distribution == "quniform":  # rounding gives the two ends half an interval each
        low, high, _ = dim.arguments
        return float((value - low) / (high - low))
    return (index + 0.5) / count


class OptunaSampler(PointSampler):
    """Tree-structured Parzen estimator: random trials first, then more where scores are high."""

    def __init__(self, space: tuple[Dimension, ...], seed: int, max_trial: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._seed = seed
        # A third of the search at random, ten trials at most: short searches learn too.
        self._random_trials = min(10, max(2, max_trial // 3))
        self._axes: dict[str, Any] = {
            dim.path: optuna.distributions.CategoricalDistribution(range(len(dim.arguments)))
            if dim.is_choice
            else optuna.distributions.FloatDistribution(0.0, 1.0)
            for dim in space
        }
        self._study = optuna.create_study(direction="maximize")
        self._trials: dict[int, Any] = {}

    def ask(self, trial: int) -> Point:
        import optuna

        stream = int(np.random.SeedSequence([self._seed, trial]).generate_state(1)[0])
        self._study.sampler = optuna.samplers.TPESampler(
            seed=stream, n_startup_trials=self._random_trials
        )
        self._trials[trial] = self._study.ask(fixed_distributions=self._axes)
        return dict(self._trials[trial].params)

    def replay(self, trial: int, point: Mapping[str, float]) -> None:
        self._study.enqueue_trial(dict(point))
        self._trials[trial] = self._study.ask(fixed_distributions=self._axes)

    def tell(self, trial: int, score: float) -> None:
        self._study.tell(self._trials[trial], score)
