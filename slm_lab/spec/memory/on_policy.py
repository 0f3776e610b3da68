"""Memories that are learned from once and then emptied: rollouts and whole episodes."""

from __future__ import annotations

from typing import ClassVar, Literal

from slm_lab.spec.block import Count, Flag, Fraction, NonNegative, spec_key
from slm_lab.spec.memory.base import MemoryInfo, MemorySpec


class OnPolicyMemorySpec(MemorySpec):
    """Keys of the replay that SIL and PPOSIL keep beside the rollout."""

    sil_replay_name: Literal["Replay", "PrioritizedReplay"] = spec_key(
        "Replay", "SIL: class of the extra replay."
    )
    batch_size: Count = spec_key(32, "SIL: transitions per replay batch.")
    max_size: Count = spec_key(100_000, "SIL: capacity of the extra replay.")
    use_cer: Flag = spec_key(False, "SIL: every batch holds the newest transitions.")
    alpha: Fraction = spec_key(0.6, "SIL with PrioritizedReplay: exponent of priorities.")
    epsilon: NonNegative = spec_key(1e-6, "SIL with PrioritizedReplay: added to each priority.")
    beta: ClassVar[float] = 0.4  # exponent of importance weights at the start

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

    cross_entropy: Fraction = spec_key(
        1.0, "Percentile of return that an episode must reach; 1 keeps all."
    )


_EPISODES = "slm_lab.agent.memory.make:make_episodes"
_ROLLOUT = "slm_lab.agent.memory.make:make_rollout"
RECORDS = (
    MemoryInfo("OnPolicyReplay", OnPolicyReplaySpec, _EPISODES, order=10, kind="episodes"),
    MemoryInfo("OnPolicyBatchReplay", OnPolicyBatchReplaySpec, _ROLLOUT, order=20, kind="rollout"),
    MemoryInfo(
        "OnPolicyCrossEntropy", OnPolicyCrossEntropySpec, _EPISODES, order=30, kind="episodes"
    ),
)
