"""Replays: transitions in a ring, sampled again and again."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from slm_lab.spec.block import Fraction, NonNegative, invalid
from slm_lab.spec.memory.base import MemoryInfo, MemorySpec


class _ReplayKeys(MemorySpec):
    @model_validator(mode="after")
    def _batch_fits(self) -> _ReplayKeys:
        if self.batch_size > self.max_size:
            raise invalid(
                f"found {self.batch_size}; expected at most max_size = {self.max_size}",
                key="batch_size",
            )
        return self


class ReplaySpec(_ReplayKeys):
    """Ring buffer, sampled uniformly."""

    name: Literal["Replay"] = Field(description="Memory name.")


class PrioritizedReplaySpec(_ReplayKeys):
    """Ring buffer, sampled in proportion to (error + epsilon) ** alpha."""

    name: Literal["PrioritizedReplay"] = Field(description="Memory name.")
    alpha: Fraction = Field(default=0.6, description="Exponent of priorities; 0 is uniform.")
    epsilon: NonNegative = Field(
        default=1e-4, description="Added to each error, so that none is never sampled."
    )
    beta: Fraction = Field(
        default=0.4, description="Exponent of importance weights at the start, annealed to 1."
    )

    @property
    def prioritizes(self) -> bool:
        return True


RECORDS = tuple(
    MemoryInfo(
        name=name,
        spec_class=spec_class,
        implementation="slm_lab.agent.memory.make:make_replay",
        order=order,
        kind="replay",
        label_suffix=suffix,
    )
    for name, spec_class, order, suffix in (
        ("Replay", ReplaySpec, 40, ""),
        ("PrioritizedReplay", PrioritizedReplaySpec, 50, "+PER"),
    )
)


def replay(batch_size: int, max_size: int) -> dict[str, Any]:
    """Write a block `memory` of a uniformly sampled replay."""
    return {"name": "Replay", "batch_size": batch_size, "max_size": max_size}
