"""A replay of past steps with the discounted return that followed each, for self-imitation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.learning.returns import discounted_scan
from slm_lab.agent.memory.replay import RewardTransform, SampledRing
from slm_lab.agent.memory.ring import make_columns, pack, unpack
from slm_lab.agent.memory.rollout import Evaluated, ExperienceBuffer, RolloutBuffer, StoredRows
from slm_lab.agent.memory.sampler import Sampler
from slm_lab.agent.preprocessor import Preprocessor
from slm_lab.types import ImitationBatch, Metrics, PastBatch, Spaces, Transition


class ImitationBuffer(ExperienceBuffer):
    """A rollout to learn from once, beside past episodes to imitate."""

    def __init__(
        self,
        present: RolloutBuffer,
        past: ReturnReplay,
        preprocessor: Preprocessor,
        *,
        batches: int,
    ) -> None:
        self._present = present
        self._past = past
        self._preprocessor = preprocessor
        self._batches = batches
        self._index: Tensor | None = None

    @property
    def ready(self) -> bool:
        return self._present.ready

    def add(
        self, obs: np.ndarray, action: np.ndarray, transition: Transition, evaluated: Evaluated = ()
    ) -> None:
        self._present.add(obs, action, transition, evaluated)
        ended = transition.terminated | transition.truncated
        self._past.add(obs, action, transition.reward, ended)

    def batch(self, frame: int) -> ImitationBatch:
        return ImitationBatch(self._present.batch(frame), self._past_batch(frame))

    def learned(self, metrics: Metrics) -> None:
        self._present.learned(metrics)
        if self._index is not None and metrics.td_error is not None:
            self._past.update_priorities(self._index, metrics.td_error.cpu())

    def stored(self) -> list[StoredRows]:
        return self._present.stored()

    def truncate_episodes(self, successors: np.ndarray) -> None:
        self._present.truncate_episodes(successors)
        self._past.truncate_episodes()

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
        return self._preprocessor.to_device(replace(raw, obs=self._preprocessor.obs(raw.obs)))


class ReturnReplay(SampledRing):
    """(s, a, R) of finished episodes in a ring. R is the real return of the episode it came from.

    A truncated episode counts the rewards it had: a lower bound, which self-imitation can only
    underuse. Where `transform_reward` changes over time (`rescales`), rewards are kept raw and all
    returns are computed anew for every sample: returns of different scales must not be compared
    with one critic.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        spaces: Spaces,
        sampler: Sampler,
        *,
        transform_reward: RewardTransform,
        rescales: bool = False,
        **options: Any,
    ) -> None:
        """`options` are those of `SampledRing`."""
        # Rewards are raw; `ended` tells the last row of an episode.
        columns = make_columns(spaces, (capacity,), ("obs", "action", "reward", "ended", "return"))
        super().__init__(columns, 1, sampler, **options)
        self._obs, self._action, self._reward, self._ended, self._return = columns.values()
        self._transform_reward = transform_reward
        self._rescales = rescales
        self._running: list[list[tuple[np.ndarray, np.ndarray, float]]]
        self._running = [[] for _ in range(num_envs)]

    def add(
        self, obs: np.ndarray, action: np.ndarray, reward: np.ndarray, ended: np.ndarray
    ) -> None:
        """Store one step of every env; `reward` is raw."""
        for env, steps in enumerate(self._running):
            steps.append((obs[env].copy(), action[env].copy(), float(reward[env])))
            if ended[env]:
                self._store(steps)
                self._running[env] = []

    def sample(self, batches: int, frame: int) -> PastBatch:
        index = self._draw(batches)
        if self._rescales:
            self._recompute_returns()
        return PastBatch(
            obs=self._obs[index],
            action=self._action[index],
            return_=self._return[index],
            weight=self._sampler.weight(index, self.size, batches, frame),
            index=index,
        )

    def truncate_episodes(self) -> None:
        """Store each running episode as truncated where it is."""
        for env, steps in enumerate(self._running):
            if steps:
                self._store(steps)
                self._running[env] = []

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"running": pack(self._running)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._running = [
            [(obs, action, float(reward)) for obs, action, reward in steps]
            for steps in unpack(state["running"])
        ]

    def _store(self, steps: list[tuple[np.ndarray, np.ndarray, float]]) -> None:
        steps = steps[-self._slots :]
        rows = (self._written + np.arange(len(steps))) % self._slots
        raw = torch.tensor([reward for _, _, reward in steps])
        return_, returns = 0.0, []
        for reward in reversed(self._transform_reward(raw).tolist()):
            return_ = reward + self._gamma * return_
            returns.append(return_)
        self._obs[rows] = torch.from_numpy(np.stack([obs for obs, _, _ in steps]))
        self._action[rows] = torch.from_numpy(np.stack([action for _, action, _ in steps]))
        self._reward[rows] = raw
        self._ended[rows] = torch.arange(len(steps)) == len(steps) - 1
        self._return[rows] = torch.tensor(returns[::-1])
        self._sampler.added(rows)
        self._written += len(steps)
        self._unseen = min(self._unseen + len(steps), self._slots)

    def _recompute_returns(self) -> None:
        """Recompute the returns of all rows from rewards as transformed now, in one scan.

        An episode lies in consecutive rows, and the ring overwrites its first rows first, so the
        rewards that follow a row are still there.
        """
        order = (self._written - self.size + torch.arange(self.size)) % self._slots
        goes_on = (~self._ended[order]).float()
        reward = self._transform_reward(self._reward[order])
        self._return[order] = discounted_scan(reward, self._gamma * goes_on)
