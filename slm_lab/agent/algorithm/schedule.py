"""Values and learning rates as functions of the frame."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch

from slm_lab.agent.algorithm.base import SavedInParts
from slm_lab.spec import NetSpec, Problem, SchedulerSpec, ScheduleSpec, SpecError
from slm_lab.spec.optim import OWN_SCHEDULERS
from slm_lab.spec.record import imported_object
from slm_lab.spec.trust import is_own


def scheduled_value(spec: ScheduleSpec | None, frame: int, default: float = 0.0) -> float:
    """Compute the value of a schedule at a frame; without a spec, `default`."""
    if spec is None:
        return default
    if ":" in spec.name:  # module:Class of the user's own
        return float(_own(spec.name, json.dumps(spec.arguments, sort_keys=True)).value(frame))
    start = spec.start_val
    end = start if spec.end_val is None else spec.end_val
    if spec.name == "no_decay" or frame <= spec.start_step:
        return start
    if frame >= spec.end_step:
        return end
    progress = (frame - spec.start_step) / (spec.end_step - spec.start_step)
    if spec.name == "linear_decay":
        return start + (end - start) * progress
    if spec.name == "rate_decay":
        # A tenth off at each of twenty steps, never below the end value.
        rate: float = 0.9 ** (20 * progress)
        return max(rate * start, end)
    # periodic_decay: a cosine whose amplitude fades, sixty radians long.
    phase = 60 * progress
    return end + 0.5 * (start - end) * (1 + math.cos(phase)) * (1 - progress)


@lru_cache(maxsize=256)
def _made(thing: Any, arguments: str) -> Any:
    return thing(**json.loads(arguments))


def _own(name: str, arguments: str) -> Any:
    """The user's schedule for these arguments: a pure function of the frame, made once."""
    return _made(imported_object(name), arguments)


class LearningRate:
    """The learning rate of one net: `value(frame)` for an update, `advance(frame)` after it.

    `LinearToZero` and `LinearToMin` depend on the frame alone: they start at the first update's and
    fall in a straight line, however many frames lie between updates. The schedulers of torch count
    updates. A rate of exactly 0 also stops the statistics of observations (`Preprocessor`).
    """

    def __init__(self, initial: float, spec: SchedulerSpec | None, frames_per_update: int) -> None:
        self._initial = initial
        self._frames_per_update = frames_per_update
        self._first_frame: int | None = None
        self._updates = 0
        self._factor = None if spec is None else _factor(spec, frames_per_update)
        self._torch = None if spec is None or self._factor else _TorchScheduler(initial, spec)

    def value(self, frame: int) -> float:
        """The rate of an update at this frame."""
        if self._torch is not None:
            return self._torch.value
        if self._factor is None:
            return self._initial
        return self._initial * self._factor(frame - self._first(frame))

    def advance(self, frame: int, calls: int = 1) -> None:
        """Count the update at this frame as done; it may be that of several training calls."""
        self._first_frame = self._first(frame)
        self._updates += calls
        if self._torch is not None:
            for _ in range(calls):
                self._torch.advance()

    def state_dict(self) -> dict[str, Any]:
        scheduler = {} if self._torch is None else self._torch.state_dict()
        first, updates = self._first_frame, self._updates
        return {"first_frame": first, "updates": updates, "scheduler": scheduler}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._first_frame = state.get("first_frame")
        self._updates = int(state["updates"])
        if self._torch is not None:
            self._torch.load_state_dict(state["scheduler"])

    def _first(self, frame: int) -> int:
        """The frame of the first update; an older checkpoint holds only the number of updates."""
        if self._first_frame is not None:
            return self._first_frame
        return frame - self._updates * self._frames_per_update


def _factor(spec: SchedulerSpec, frames_per_update: int) -> Callable[[int], float] | None:
    """Share of the initial rate after a number of frames, for schedulers that torch has not."""
    if is_own(spec.name):
        own = _own(spec.name, json.dumps(dict(spec.kwargs), sort_keys=True))
        return lambda frames: float(own.value(frames))
    if spec.name not in OWN_SCHEDULERS:
        return None
    # The unit of frames changes no value beyond rounding: with this one, rates are the same to the
    # last bit as when they were computed from the number of updates.
    span = spec.kwargs["frame"] / frames_per_update
    floor = spec.kwargs.get("min_factor", 0.0)
    return lambda frames: max(floor, 1 - frames / frames_per_update * (1 - floor) / span)


class _TorchScheduler:
    """A scheduler of torch, run on a placeholder optimiser from which the rate is read.

    So every one of them works with compiled steps. The placeholder is made only when needed: the
    first optimiser of a process costs torch a second and a half of imports.
    """

    def __init__(self, initial: float, spec: SchedulerSpec) -> None:
        try:
            self._make(initial, spec)
            self.advance()  # a step size of 0 is noticed by the first step only
            self._make(initial, spec)
        except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
            problem = f"{spec.name} cannot be made with {dict(spec.kwargs)}: {error}"
            raise SpecError([Problem("agent.net.lr_scheduler_spec", problem)]) from error

    def _make(self, initial: float, spec: SchedulerSpec) -> None:
        self._optimizer = torch.optim.SGD([torch.zeros(1)], lr=initial)
        make = getattr(torch.optim.lr_scheduler, spec.name)
        self._scheduler: torch.optim.lr_scheduler.LRScheduler = make(self._optimizer, **spec.kwargs)

    @property
    def value(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])

    def advance(self) -> None:
        self._optimizer.step()  # torch warns when a scheduler moves before its optimiser
        self._scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        # What JSON can hold; a scheduler rebuilds the other entries from the spec.
        plain = {
            key: value
            for key, value in self._scheduler.state_dict().items()
            if value is None or isinstance(value, (int, float, str, list))
        }
        return {"lr": self.value, "state": plain}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._optimizer.param_groups[0]["lr"] = state["lr"]
        self._scheduler.load_state_dict(dict(state["state"]))  # some of torch's take keys out


class LearningRates(SavedInParts):
    """The learning rates of an algorithm's nets, as coefficients of their training state."""

    def __init__(self, nets: Mapping[str, NetSpec], frames_per_update: int) -> None:
        self._parts = self._rates = {
            f"{name}.lr": LearningRate(net.optim_spec.lr, net.lr_scheduler_spec, frames_per_update)
            for name, net in nets.items()
        }

    def values(self, frame: int) -> dict[str, float]:
        """The rates of an update at this frame, by the names of the coefficients."""
        return {key: rate.value(frame) for key, rate in self._rates.items()}

    def advance(self, frame: int, calls: int = 1) -> float:
        """Count the update at this frame as done; returns the mean rate that it had."""
        mean = sum(self.values(frame).values()) / len(self._rates)
        for rate in self._rates.values():
            rate.advance(frame, calls)
        return mean
