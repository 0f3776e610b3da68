"""The search space: from a point in the unit cube to the values of a trial.

Every distribution is applied through its inverse cumulative distribution function, so that a
sampler sees only numbers between 0 and 1, whether an axis is logarithmic, normal or a grid of
integers. A choice has no order; its coordinate is the index of an option.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from slm_lab.spec import Spec, split_search_key

# A normal distribution has no value at 0 and 1.
_EDGE = 1e-9
# Enough for the multiples of a step such as 0.1 to come out as people write them.
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Dimension:
    """One searched key of a spec."""

    path: str
    distribution: str
    arguments: tuple[Any, ...]

    @property
    def label(self) -> str:
        """Short name for a column: `lr` of `agent.net.optim_spec.lr`, and `entropy_coef` of
        `agent.algorithm.entropy_coef_spec.start_val`."""
        *_, parent, last = f".{self.path}".split(".")
        return parent.removesuffix("_spec") if last in ("start_val", "end_val", "name") else last

    @property
    def is_choice(self) -> bool:
        return self.distribution == "choice"

    @property
    def is_log(self) -> bool:
        return "log" in self.distribution

    def __str__(self) -> str:
        arguments = ", ".join(map(str, self.arguments))
        return f"{self.path} ~ {self.distribution}({arguments})"

    def value(self, coordinate: float) -> Any:
        if self.is_choice:
            return self.arguments[int(coordinate)]
        first, second, *rest = self.arguments
        step = rest[0] if rest else None
        match self.distribution.removeprefix("q"):
            case "uniform":
                raw = first + coordinate * (second - first)
            case "loguniform":
                raw = _log_scale(first, second, coordinate)
            case "randn":
                raw = NormalDist(first, second).inv_cdf(min(max(coordinate, _EDGE), 1 - _EDGE))
            case "randint":
                if step is None:
                    return int(min(first + math.floor(coordinate * (second - first)), second - 1))
                points = self.points()
                assert points is not None
                return points[min(int(coordinate * len(points)), len(points) - 1)]
            case "lograndint":
                raw = _log_scale(first, second, coordinate)
                if step is None:
                    return int(min(max(math.floor(raw), first), second - 1))
                low, high = _multiples_within(first, second, step)
                return int(min(max(round(raw / step), low), high) * step)
            case unknown:
                raise AssertionError(f"spec/search.py lets no {unknown} through")
        if step is None:
            return float(raw)
        multiple = round(raw / step)
        if self.distribution != "qrandn":
            low, high = _multiples_within(first, second, step)
            multiple = min(max(multiple, low), high)
        return round(float(multiple * step), _DIGITS)

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


def _log_scale(low: float, high: float, coordinate: float) -> float:
    return math.exp(math.log(low) + coordinate * (math.log(high) - math.log(low)))


def _multiples_within(low: float, high: float, step: float) -> tuple[int, int]:
    """First and last k with low <= k * step <= high, up to rounding errors of floats."""
    return math.ceil(low / step - _EDGE), math.floor(high / step + _EDGE)
