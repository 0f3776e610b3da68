"""Memories that are learned from once and then emptied: rollouts and whole episodes."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from slm_lab.spec.block import Count, Flag, Fraction, NonNegative
from slm_lab.spec.memory.base import MemoryInfo, MemorySpec


class OnPolicyMemorySpec(MemorySpec):
    """Keys of the replay that SIL and PPOSIL keep beside the rollout."""

    sil_replay_name: Literal["Replay", "PrioritizedReplay"] = Field(
        default="Replay", description="SIL: class of the extra replay."
    )
    batch_size: Count = Field(default=32, description="SIL: transitions per replay batch.")
    max_size: Count = Field(default=100_000, description="SIL: capacity of the extra replay.")
    use_cer: Flag = Field(
        default=False, description="SIL: every batch holds the newest transitions."
    )
    alpha: Fraction = Field(
        default=0.6, description="SIL with PrioritizedReplay: exponent of priorities."
    )
    epsilon: NonNegative = Field(
        default=1e-6, description="SIL with PrioritizedReplay: added to each priority."
    )
    beta: ClassVar[float] = 0.4  # exponent of importance weights at the start

    @property
    def prioritizes(self) -> bool:
        return self.sil_replay_name == "PrioritizedReplay"


SIL_KEYS = frozenset(OnPolicyMemorySpec.model_fields) - {"name"}


class OnPolicyReplaySpec(OnPolicyMemorySpec):
    """Whole episodes, emptied at every update."""

    name: Literal["OnPolicyReplay"] = Field(description="Memory name.")


class OnPolicyBatchReplaySpec(OnPolicyMemorySpec):
    """A fixed number of steps of every env, emptied at every update."""

    name: Literal["OnPolicyBatchReplay"] = Field(description="Memory name.")


class OnPolicyCrossEntropySpec(OnPolicyMemorySpec):
    """Whole episodes, of which only the better ones are learned from."""

    name: Literal["OnPolicyCrossEntropy"] = Field(description="Memory name.")
    cross_entropy: Fraction = Field(
        default=1.0, description="Percentile of return that an episode must reach; 1 keeps all."
    )


RECORDS = (
    MemoryInfo(
        name="OnPolicyReplay",
        spec_class=OnPolicyReplaySpec,
        implementation="slm_lab.agent.memory.make:make_episodes",
        order=10,
        kind="episodes",
    ),
    MemoryInfo(
        name="OnPolicyBatchReplay",
        spec_class=OnPolicyBatchReplaySpec,
        implementation="slm_lab.agent.memory.make:make_rollout",
        order=20,
        kind="rollout",
    ),
    MemoryInfo(
        name="OnPolicyCrossEntropy",
        spec_class=OnPolicyCrossEntropySpec,
        implementation="slm_lab.agent.memory.make:make_episodes",
        order=30,
        kind="episodes",
    ),
)
