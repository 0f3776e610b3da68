"""`agent.memory`: the spec class and the record of every memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from slm_lab.spec.block import Count, Flag, Fraction, Key, NonNegative, expect
from slm_lab.spec.record import Record, RecordedBlock, Registry

MemoryKind = Literal["rollout", "episodes", "replay"]
"""A fixed number of steps, whole episodes (both emptied at every update), or a ring of steps."""


class MemorySpec(RecordedBlock):
    """Base of all memories' spec classes."""

    name: str = Field(description="Memory name.")
    batch_size: Count = Key(64, "Transitions per sampled batch; 256 for SAC and CrossQ.")
    max_size: Count = Key(100_000, "Capacity in transitions; 1,000,000 for SAC and CrossQ.")
    use_cer: Flag = Key(False, "Every batch holds the newest transitions.")

    @property
    def prioritizes(self) -> bool:
        """Whether a replay is sampled in proportion to priorities."""
        return False


class OnPolicyMemorySpec(MemorySpec):
    """Keys of the replay that SIL and PPOSIL keep beside the rollout."""

    sil_replay_name: Literal["Replay", "PrioritizedReplay"] = Key(
        "Replay", "SIL: class of the extra replay."
    )
    batch_size: Count = Key(32, "SIL: transitions per replay batch.")
    max_size: Count = Key(100_000, "SIL: capacity of the extra replay.")
    use_cer: Flag = Key(False, "SIL: every batch holds the newest transitions.")
    alpha: Fraction = Key(0.6, "SIL with PrioritizedReplay: exponent of priorities.")
    epsilon: NonNegative = Key(1e-6, "SIL with PrioritizedReplay: added to each priority.")
    beta: ClassVar[float] = 0.4  # exponent of importance weights at the start
    anneal_frames: Count | None = Key(
        None, "SIL with PrioritizedReplay: frame at which beta reaches 1; null is env.max_frame."
    )

    @property
    def prioritizes(self) -> bool:
        return self.sil_replay_name == "PrioritizedReplay"


SIL_KEYS = frozenset(OnPolicyMemorySpec.model_fields) - {"name"}


class OnPolicyReplaySpec(OnPolicyMemorySpec):
    """Whole episodes, emptied at every update."""


class OnPolicyBatchReplaySpec(OnPolicyMemorySpec):
    """A fixed number of steps of every env, emptied at every update."""


class OnPolicyCrossEntropySpec(OnPolicyMemorySpec):
    """Whole episodes, of which only the better ones are learned from."""

    cross_entropy: Fraction = Key(
        1.0, "Percentile of return that an episode must reach; 1 keeps all."
    )


class ReplaySpec(MemorySpec):
    """Ring buffer, sampled uniformly."""

    @model_validator(mode="after")
    def _batch_fits(self) -> ReplaySpec:
        size, most = self.batch_size, self.max_size
        expect(size <= most, size, f"at most max_size = {most}", "batch_size")
        return self


class PrioritizedReplaySpec(ReplaySpec):
    """Ring buffer, sampled in proportion to (error + epsilon) ** alpha."""

    alpha: Fraction = Key(0.6, "Exponent of priorities; 0 is uniform.")
    epsilon: NonNegative = Key(1e-4, "Added to each error, so that none is never sampled.")
    beta: Fraction = Key(0.4, "Exponent of importance weights at the start, annealed to 1.")
    anneal_frames: Count | None = Key(None, "Frame at which beta reaches 1; null is env.max_frame.")

    @property
    def prioritizes(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class MemoryInfo(Record[MemorySpec]):
    """Record of a memory: all that other packages ask about it.

    `implementation` names what is called with (spec, spaces, pace, seed) and returns the memory.
    """

    kind: MemoryKind
    label_suffix: str = ""  # of an algorithm that learns from it
    sequences: bool = False  # a replay that also gives a recurrent net's sequences


def _record(spec_class: type[MemorySpec], kind: MemoryKind, **keys: Any) -> MemoryInfo:
    name = spec_class.__name__.removesuffix("Spec")
    maker = f"slm_lab.agent.memory.make:make_{kind}"
    return MemoryInfo(name, spec_class, maker, kind=kind, **keys)


MEMORIES = Registry(
    [
        _record(OnPolicyReplaySpec, "episodes"),
        _record(OnPolicyBatchReplaySpec, "rollout"),
        _record(OnPolicyCrossEntropySpec, "episodes"),
        _record(ReplaySpec, "replay", sequences=True),
        _record(PrioritizedReplaySpec, "replay", sequences=True, label_suffix="+PER"),
    ]
)


def replay(batch_size: int, max_size: int) -> dict[str, Any]:
    """Write a block `memory` of a uniformly sampled replay."""
    return {"name": "Replay", "batch_size": batch_size, "max_size": max_size}
