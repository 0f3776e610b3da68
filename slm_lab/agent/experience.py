"""What an agent has lived through, and when there is enough of it to learn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.memory.frame_replay import FrameReplay
from slm_lab.agent.memory.replay import Replay
from slm_lab.agent.memory.returns import ReturnReplay
from slm_lab.agent.memory.rollout import EpisodeMemory, RolloutMemory
from slm_lab.agent.normalizer import ObsClip, ObsNormalizer, RewardTransform
from slm_lab.types import (
    ImitationBatch,
    Metrics,
    PastBatch,
    ReplayBatch,
    Rollout,
    Rows,
    Transition,
)

Batch = TypeVar("Batch", Rollout, ReplayBatch, PastBatch)


class Lens:
    """How the agent sees raw observations and rewards; the same for acting and for learning.

    Observations are seen where they are and then taken to the device of the nets; of a `resident`
    agent they are seen there, and their statistics are there too.
    """

    def __init__(
        self,
        obs_transform: ObsNormalizer | ObsClip | None,
        reward_transform: RewardTransform | None,
        device: torch.device,
        *,
        resident: bool = False,
    ) -> None:
        self._obs_transform = obs_transform
        self._reward_transform = reward_transform
        self._device = device
        self._on_cpu = device.type == "cpu"
        self._resident = resident

    @property
    def has_statistics(self) -> bool:
        """Whether anything follows what is observed."""
        return isinstance(self._obs_transform, ObsNormalizer) or self._reward_transform is not None

    @property
    def rescales_rewards(self) -> bool:
        """Whether the same reward is seen differently as training goes on."""
        return self._reward_transform is not None and self._reward_transform.follows_rewards

    @property
    def is_clear(self) -> bool:
        """Whether observations are seen as they are and where they are."""
        return self._on_cpu and self._obs_transform is None

    def obs(self, obs: Tensor) -> Tensor:
        if self._resident:
            obs = obs.to(self._device)
        if self._obs_transform is not None:
            obs = self._obs_transform(obs)
        return obs if self._on_cpu else obs.to(self._device)

    def reward(self, reward: Tensor) -> Tensor:
        return reward if self._reward_transform is None else self._reward_transform(reward)

    def to_device(self, batch: Batch) -> Batch:
        if self._on_cpu:
            return batch
        columns = {f.name: getattr(batch, f.name) for f in fields(batch)}
        moved = {k: v.to(self._device) for k, v in columns.items() if v is not None}
        return replace(batch, **moved)

    def observe_rewards(self, reward: Tensor, ended: Tensor) -> None:
        if self._reward_transform is not None:
            self._reward_transform.observe(reward, ended)

    def observe_obs(self, obs: Tensor) -> None:
        """obs: [N, *obs_shape], raw."""
        if isinstance(self._obs_transform, ObsNormalizer):
            self._obs_transform.update(obs)

    def statistics(self) -> dict[str, dict[str, Tensor]]:
        """Running statistics by the name of their owner."""
        statistics = {}
        if isinstance(self._obs_transform, ObsNormalizer):
            statistics["obs_normalizer"] = self._obs_transform.state_dict()
        if self._reward_transform is not None:
            statistics["reward_transform"] = self._reward_transform.state_dict()
        return statistics

    def load_statistics(self, state: dict[str, dict[str, Tensor]]) -> None:
        if isinstance(self._obs_transform, ObsNormalizer):
            self._obs_transform.load_state_dict(state["obs_normalizer"])
        if self._reward_transform is not None:
            self._reward_transform.load_state_dict(state["reward_transform"])


class Experience(Protocol):
    """Between an `add` and the next there is nothing unfinished: that is where it can be saved."""

    @property
    def ready(self) -> bool: ...
    def add(self, obs: np.ndarray, action: np.ndarray, transition: Transition) -> None: ...
    def batch(self, frame: int) -> Rollout | ReplayBatch | ImitationBatch: ...
    def learned(self, metrics: Metrics) -> None: ...
    def cut(self, successors: np.ndarray) -> None:
        """The running episodes will not go on: they stopped at these observations [B, ...]."""
        ...

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class NoExperience:
    """Of an agent that only acts: nothing is kept, so nothing about the agent ever changes."""

    ready = False

    def add(self, obs: np.ndarray, action: np.ndarray, transition: Transition) -> None:
        pass

    def batch(self, frame: int) -> Rollout:
        raise RuntimeError("this agent was made to act only (learns=False) and cannot be updated")

    def learned(self, metrics: Metrics) -> None:
        pass

    def cut(self, successors: np.ndarray) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


def can_follow(metrics: Metrics) -> bool:
    """Whether the policy can still adapt to a lens that moves; at a rate of zero it cannot.

    Observations spread less the better a policy balances, so a moving lens magnifies them ever
    more: under frozen weights that alone took InvertedPendulum from 1,000 steps to 4.
    """
    return metrics.values.get("lr") != 0.0


class OnPolicyExperience:
    """Steps are learned from once, in order, as soon as the memory is full."""

    def __init__(self, memory: RolloutMemory | EpisodeMemory, lens: Lens) -> None:
        self._memory = memory
        self._lens = lens
        self._raw_obs: Tensor | None = None

    @property
    def ready(self) -> bool:
        return self._memory.ready

    def add(self, obs: np.ndarray, action: np.ndarray, transition: Transition) -> None:
        self._memory.add(obs, action, transition)

    def batch(self, frame: int) -> Rollout:
        raw = self._memory.take()
        self._raw_obs = raw.obs
        # Rewards are scaled by statistics that include them; no policy depends on that scale.
        self._lens.observe_rewards(raw.reward, raw.terminated | raw.truncated)
        seen = replace(
            raw,
            obs=self._lens.obs(raw.obs),
            final_obs=self._lens.obs(raw.final_obs),
            reward=self._lens.reward(raw.reward),
        )
        return self._lens.to_device(seen)

    def learned(self, metrics: Metrics) -> None:
        """Statistics move after learning: the policy must learn through the lens it acted with."""
        assert self._raw_obs is not None
        if can_follow(metrics):
            self._lens.observe_obs(self._raw_obs[:-1].flatten(0, 1))

    def cut(self, successors: np.ndarray) -> None:
        self._memory.cut(successors)

    def state_dict(self) -> dict[str, Any]:
        return {"memory": self._memory.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._memory.load_state_dict(state["memory"])


class ResidentExperience(OnPolicyExperience):
    """A rollout on the device of the nets: tensors that an env hands out there never leave it."""

    def __init__(self, memory: RolloutMemory, lens: Lens) -> None:
        super().__init__(memory, lens)
        self._rollout = memory

    def add(self, obs: Rows, action: Rows, transition: Transition) -> None:
        self._rollout.add(obs, action, transition)


class ReplayExperience:
    """Steps are kept and drawn again; learning starts after `start` and comes `every` so many.

    Both count transitions. A vector step adds several at once, and all training calls that became
    due by it, of `batches` minibatches each, are drawn as one batch.
    """

    def __init__(
        self, replay: Replay | FrameReplay, lens: Lens, *, start: int, every: int, batches: int
    ) -> None:
        self._replay = replay
        self._lens = lens
        self._start, self._every, self._batches = start, every, batches
        self._seen = 0
        self._due = 0  # training calls
        self._moves_lens = lens.has_statistics
        self._index: Tensor | None = None

    @property
    def ready(self) -> bool:
        return self._due > 0

    def add(self, obs: np.ndarray, action: np.ndarray, transition: Transition) -> None:
        self._replay.add(obs, action, transition)
        before = self._seen
        self._seen += len(transition.reward)
        if self._seen > self._start:
            self._due = self._seen // self._every - before // self._every
        if self._moves_lens:
            ended = torch.from_numpy(transition.terminated | transition.truncated)
            self._lens.observe_rewards(torch.from_numpy(transition.reward)[None], ended[None])
            self._lens.observe_obs(torch.from_numpy(obs))

    def batch(self, frame: int) -> ReplayBatch:
        raw = self._replay.sample(self._batches * self._due, frame, self._lens.reward)
        self._due = 0
        self._index = raw.index
        if self._lens.is_clear:
            return raw
        seen = replace(raw, obs=self._lens.obs(raw.obs), next_obs=self._lens.obs(raw.next_obs))
        return self._lens.to_device(seen)

    def learned(self, metrics: Metrics) -> None:
        self._moves_lens = self._lens.has_statistics and can_follow(metrics)
        if self._index is not None and metrics.td_error is not None:
            self._replay.update_priorities(self._index, metrics.td_error.cpu())

    def cut(self, successors: np.ndarray) -> None:
        """Every row of a replay has its own successor already."""
        self._replay.cut()

    def state_dict(self) -> dict[str, Any]:
        return {
            "replay": self._replay.state_dict(),
            "seen": self._seen,
            "moves_lens": self._moves_lens,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._replay.load_state_dict(state["replay"])
        self._seen = int(state["seen"])
        self._moves_lens = bool(state.get("moves_lens", self._lens.has_statistics))


class ImitationExperience:
    """A rollout to learn from once, beside past episodes to imitate."""

    def __init__(
        self, present: OnPolicyExperience, past: ReturnReplay, lens: Lens, *, batches: int
    ) -> None:
        self._present = present
        self._past = past
        self._lens = lens
        self._batches = batches
        self._index: Tensor | None = None

    @property
    def ready(self) -> bool:
        return self._present.ready

    def add(self, obs: np.ndarray, action: np.ndarray, transition: Transition) -> None:
        self._present.add(obs, action, transition)
        ended = transition.terminated | transition.truncated
        self._past.add(obs, action, transition.reward, ended)

    def batch(self, frame: int) -> ImitationBatch:
        return ImitationBatch(self._present.batch(frame), self._past_batch(frame))

    def learned(self, metrics: Metrics) -> None:
        self._present.learned(metrics)
        if self._index is not None and metrics.td_error is not None:
            self._past.update_priorities(self._index, metrics.td_error.cpu())

    def cut(self, successors: np.ndarray) -> None:
        self._present.cut(successors)
        self._past.cut()

    def state_dict(self) -> dict[str, Any]:
        return {"present": self._present.state_dict(), "past": self._past.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._present.load_state_dict(state["present"])
        self._past.load_state_dict(state["past"])

    def _past_batch(self, frame: int) -> PastBatch | None:
        if self._past.size < self._past.batch_size:
            self._index = None
            return None
        raw = self._past.sample(self._batches, frame)
        self._index = raw.index
        return self._lens.to_device(replace(raw, obs=self._lens.obs(raw.obs)))
