"""Replays: transitions in a ring, sampled again and again."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from slm_lab.spec.block import Fraction, NonNegative, invalid, spec_key
from slm_lab.spec.memory.base import MemoryInfo, MemorySpec


class ReplaySpec(MemorySpec):
    """Ring buffer, sampled uniformly."""

    @model_validator(mode="after")
    def _batch_fits(self) -> ReplaySpec:
        if self.batch_size > self.max_size:
            raise invalid(
                f"found {self.batch_size}; expected at most max_size = {self.max_size}",
                key="batch_size",
            )
        return self


class PrioritizedReplaySpec(ReplaySpec):
    """Ring buffer, sampled in proportion to (error + epsilon) ** alpha."""

    alpha: Fraction = spec_key(0.6, "Exponent of priorities; 0 is uniform.")
    epsilon: NonNegative = spec_key(1e-4, "Added to each error, so that none is never sampled.")
    beta: Fraction = spec_key(0.4, "Exponent of importance weights at the start, annealed to 1.")

    @property
    def prioritizes(self) -> bool:
        return True


_MAKE = "slm_lab.agent.memory.make:make_replay"
RECORDS = (
    MemoryInfo("Replay", ReplaySpec, _MAKE, order=40, kind="replay"),
    MemoryInfo(
        "PrioritizedReplay",
        PrioritizedReplaySpec,
        _MAKE,
        order=50,
        kind="replay",
        label_suffix="+PER",
    ),
)


def replay(batch_size: int, max_size: int) -> dict[str, Any]:
    """Write a block `memory` of a uniformly sampled replay."""
    return {"name": "Replay", "batch_size": batch_size, "max_size": max_size}
