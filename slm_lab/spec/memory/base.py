"""Base spec class and record of memories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from slm_lab.spec.block import Block, Count, Flag, spec_key
from slm_lab.spec.record import Record

MemoryKind = Literal["rollout", "episodes", "replay"]
"""A fixed number of steps, whole episodes (both emptied at every update), or a ring of steps."""


class MemorySpec(Block):
    """Base of all memories' spec classes."""

    name: str = Field(description="Memory name.")
    batch_size: Count = spec_key(64, "Transitions per sampled batch; 256 for SAC and CrossQ.")
    max_size: Count = spec_key(100_000, "Capacity in transitions; 1,000,000 for SAC and CrossQ.")
    use_cer: Flag = spec_key(False, "Every batch holds the newest transitions.")

    @property
    def prioritizes(self) -> bool:
        """Whether a replay is sampled in proportion to priorities."""
        return False


@dataclass(frozen=True, kw_only=True)
class MemoryInfo(Record[MemorySpec]):
    """Record of a memory: all that other packages ask about it.

    `implementation` names what is called with (spec, spaces, pace, seed) and returns the memory.
    """

    kind: MemoryKind
    label_suffix: str = ""  # of an algorithm that learns from it
