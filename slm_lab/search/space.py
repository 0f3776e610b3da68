"""The search space: from a point in the unit cube to the values of a trial.

Every distribution is applied through its inverse cumulative distribution function, so that a
sampler sees only numbers between 0 and 1, whether an axis is logarithmic, normal or a grid of
integers. A choice has no order; its coordinate is the index of an option.

A sampler draws the point of a trial from a random stream of that trial's index. The point depends
on the seed, and with Optuna on the results known by then, but not on whether the search was
interrupted in between.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Protocol

from slm_lab.runs.search_journal import Point
from slm_lab.spec import Spec, split_search_key

_EDGE = 1e-9  # a normal distribution has no value at 0 and 1
_DIGITS = 12  # enough for the multiples of a step such as 0.1 to come out as people write them


@dataclass(frozen=True, slots=True)
class Dimension:
    """One searched key of a spec."""

    path: str
    distribution: str
    arguments: tuple[Any, ...]

    @property
    def label(self) -> str:
        """Short name: the last key, or `entropy_coef` of `...entropy_coef_spec.start_val`."""
        *_, parent, last = f".{self.path}".split(".")
        return parent.removesuffix("_spec") if last in ("start_val", "end_val", "name") else last

    @property
    def is_choice(self) -> bool:
        return self.distribution == "choice"

    def __str__(self) -> str:
        arguments = ", ".join(map(str, self.arguments))
        return f"{self.path} ~ {self.distribution}({arguments})"

    def value(self, coordinate: float) -> Any:
        if self.is_choice:
            return self.arguments[int(coordinate)]
        first, second, *rest = self.arguments
        step = rest[0] if rest else None
        family = self.distribution.removeprefix("q")
        if family == "randint":
            points = self.points()
            assert points is not None
            return points[min(int(coordinate * len(points)), len(points) - 1)]
        if family == "uniform":
            raw = first + coordinate * (second - first)
        elif family == "randn":
            raw = NormalDist(first, second).inv_cdf(min(max(coordinate, _EDGE), 1 - _EDGE))
        else:
            raw = math.exp(math.log(first) + coordinate * (math.log(second) - math.log(first)))
        is_integer = family == "lograndint"
        if step is None:
            return int(min(max(math.floor(raw), first), second - 1)) if is_integer else float(raw)
        multiple = round(raw / step)
        if family != "randn":
            low, high = _multiples_within(first, second, step)
            multiple = min(max(multiple, low), high)
        return int(multiple * step) if is_integer else round(float(multiple * step), _DIGITS)

    def points(self) -> tuple[Any, ...] | None:
        """Every value of the axis, or None if it is continuous."""
        if self.is_choice:
            return self.arguments
        if self.distribution == "randint":
            return tuple(range(int(self.arguments[0]), int(self.arguments[1])))
        if self.distribution in ("qrandint", "quniform"):
            low, high, step = self.arguments
            first, last = _multiples_within(low, high, step)
            multiples = range(first, last + 1)
            if self.distribution == "qrandint":
                return tuple(int(k * step) for k in multiples)
            return tuple(round(float(k * step), _DIGITS) for k in multiples)
        return None


def dimensions(spec: Spec) -> tuple[Dimension, ...]:
    """The searched keys of a spec, in its order."""
    return tuple(
        Dimension(*split_search_key(key), tuple(arguments))
        for key, arguments in spec.search.items()
    )


def values_at(space: tuple[Dimension, ...], point: Mapping[str, float]) -> dict[str, Any]:
    """The values of a point, by path."""
    return {dim.path: dim.value(point[dim.path]) for dim in space}


def _multiples_within(low: float, high: float, step: float) -> tuple[int, int]:
    """First and last k with low <= k * step <= high, up to rounding errors of floats."""
    return math.ceil(low / step - _EDGE), math.floor(high / step + _EDGE)


class PointSampler(Protocol):
    def ask(self, trial: int) -> Point:
        """Draw the point of a new trial."""

    def replay(self, trial: int, point: Mapping[str, float]) -> None:
        """Take note of a trial whose point was drawn before an interruption, if that matters."""
        return

    def tell(self, trial: int, score: float) -> None:
        """Take note of the score that a trial ended with, if that matters."""
        return


class RandomSampler(PointSampler):
    """Independent draws."""

    def __init__(self, space: tuple[Dimension, ...], seed: int) -> None:
        self._space, self._seed = space, seed

    def ask(self, trial: int) -> Point:
        import numpy as np  # here, because run-remote plans a search where there is none

        rng = np.random.default_rng([self._seed, trial])
        draws = [(dim, float(rng.random())) for dim in self._space]
        return {
            dim.path: int(draw * len(dim.arguments)) if dim.is_choice else draw
            for dim, draw in draws
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
    if dim.distribution == "quniform":  # rounding gives the two ends half an interval each
        low, high, _ = dim.arguments
        return [float((value - low) / (high - low)) for value in points]
    return [(i + 0.5) / len(points) for i in range(len(points))]


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
        import numpy as np
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
