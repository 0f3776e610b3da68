"""`agent.memory`: one frozen class per memory, chosen by `name`. Field name = spec key."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from slm_lab.spec.block import Block, Count, Flag, Fraction, NonNegative, invalid

ReplayName = Literal["Replay", "PrioritizedReplay"]


class _OnPolicyMemory(Block):
    # The replay that SIL and PPOSIL keep beside the rollout.
    sil_replay_name: ReplayName = Field(
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


class OnPolicyReplaySpec(_OnPolicyMemory):
    """Whole episodes, emptied at every update."""

    name: Literal["OnPolicyReplay"] = Field(description="Memory name.")


class OnPolicyBatchReplaySpec(_OnPolicyMemory):
    """A fixed number of steps of every env, emptied at every update."""

    name: Literal["OnPolicyBatchReplay"] = Field(description="Memory name.")


class OnPolicyCrossEntropySpec(_OnPolicyMemory):
    """Whole episodes, of which only the better ones are learned from."""

    name: Literal["OnPolicyCrossEntropy"] = Field(description="Memory name.")
    cross_entropy: Fraction = Field(
        default=1.0, description="Percentile of return that an episode must reach; 1 keeps all."
    )


class _ReplayKeys(Block):
    batch_size: Count = Field(
        default=64, description="Transitions per sampled batch; 256 for SAC and CrossQ."
    )
    max_size: Count = Field(
        default=100_000, description="Capacity in transitions; 1,000,000 for SAC and CrossQ."
    )
    use_cer: Flag = Field(default=False, description="Every batch holds the newest transitions.")

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


MemorySpec = Annotated[
    OnPolicyReplaySpec
    | OnPolicyBatchReplaySpec
    | OnPolicyCrossEntropySpec
    | ReplaySpec
    | PrioritizedReplaySpec,
    Field(discriminator="name"),
]

MEMORIES: dict[str, type[Block]] = {
    "OnPolicyReplay": OnPolicyReplaySpec,
    "OnPolicyBatchReplay": OnPolicyBatchReplaySpec,
    "OnPolicyCrossEntropy": OnPolicyCrossEntropySpec,
    "Replay": ReplaySpec,
    "PrioritizedReplay": PrioritizedReplaySpec,
}
SIL_KEYS = frozenset(_OnPolicyMemory.model_fields)
MEMORY_KEYS = frozenset().union(*(model.model_fields for model in MEMORIES.values()))
