"""Replay: experience kept in a ring, sampled at random."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.memory.ring import Ring, make_columns
from slm_lab.agent.memory.rollout import Evaluated, ExperienceBuffer, StoredRows
from slm_lab.agent.memory.sampler import Sampler
from slm_lab.agent.preprocessor import Preprocessor, can_adapt
from slm_lab.types import Metrics, ReplayBatch, Spaces, Transition, on_host

RewardTransform = Callable[[Tensor], Tensor]
"""Raw rewards -> rewards to learn from."""


class ReplayBuffer(ExperienceBuffer):
    """Raw steps in, preprocessed minibatches out.

    Learning starts after `start` transitions and is due once per `every`. A vector step adds
    several transitions; all training calls that fall due by it, of `batches` minibatches each, are
    drawn as one batch.
    """

    def __init__(
        self, replay: Replay, preprocessor: Preprocessor, *, start: int, every: int, batches: int
    ) -> None:
        self._replay = replay
        self._preprocessor = preprocessor
        self._start, self._every, self._batches = start, every, batches
        self._seen = 0
        self._due = 0  # training calls
        self._moves_statistics = preprocessor.has_statistics
        self._index: Tensor | None = None

    @property
    def ready(self) -> bool:
        return self._due > 0

    def add(
        self, obs: np.ndarray, action: np.ndarray, transition: Transition, evaluated: Evaluated = ()
    ) -> None:
        self._replay.add(obs, action, transition)
        before = self._seen
        self._seen += len(transition.reward)
        if self._seen > self._start:
            self._due = self._seen // self._every - before // self._every
        if self._moves_statistics:
            ended = torch.from_numpy(transition.terminated | transition.truncated)
            self._preprocessor.observe_rewards(
                torch.from_numpy(transition.reward)[None], ended[None]
            )
            self._preprocessor.observe_obs(torch.from_numpy(obs))

    def batch(self, frame: int) -> ReplayBatch:
        preprocessor = self._preprocessor
        raw = self._replay.sample(self._batches * self._due, frame, preprocessor.reward)
        self._due = 0
        self._index = raw.index
        if preprocessor.keeps_obs:
            return raw
        obs, next_obs = preprocessor.obs(raw.obs), preprocessor.obs(raw.next_obs)
        return preprocessor.to_device(replace(raw, obs=obs, next_obs=next_obs))

    def learned(self, metrics: Metrics) -> None:
        self._moves_statistics = self._preprocessor.has_statistics and can_adapt(metrics)
        if self._index is not None and metrics.td_error is not None:
            self._replay.update_priorities(self._index, metrics.td_error.cpu())

    def stored(self) -> list[StoredRows]:
        return self._replay.stored()

    def truncate_episodes(self, successors: np.ndarray) -> None:
        """End running episodes; every row of a replay has its own successor already."""
        self._replay.truncate_episodes()

    def state_dict(self) -> dict[str, Any]:
        return {
            "replay": self._replay.state_dict(),
            "seen": self._seen,
            "moves_statistics": self._moves_statistics,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._replay.load_state_dict(state["replay"])
        self._seen = int(state["seen"])
        self._moves_statistics = bool(state["moves_statistics"])


class SampledRing:
    """A ring of rows [slots, ...] that a sampler draws from, each slot with `lanes` rows."""

    def __init__(
        self,
        columns: Mapping[str, Tensor],
        lanes: int,
        sampler: Sampler,
        *,
        batch_size: int,
        gamma: float,
        use_cer: bool = False,
    ) -> None:
        self._columns = columns
        self._slots, self._lanes = len(columns["obs"]), lanes
        self._sampler = sampler
        self.batch_size = batch_size
        self._gamma = gamma
        self._use_cer = use_cer
        self._written = 0  # slots ever filled
        self._generation = 0
        self._unseen = 0  # rows added since the last sample, for combined experience replay

    @property
    def size(self) -> int:
        """Rows that are filled."""
        return min(self._written, self._slots) * self._lanes

    def update_priorities(self, index: Tensor, td_error: Tensor) -> None:
        """Tell the sampler the TD errors of rows that were learned from."""
        self._sampler.update(index, td_error)

    def state_dict(self) -> dict[str, Any]:
        return {
            "ring": Ring(self._columns, self._written, self._generation),
            "unseen": self._unseen,
            "sampler": self._sampler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        ring = state["ring"]
        ring.copy_into(self._columns)
        self._written, self._generation = ring.written, ring.generation
        self._unseen = int(state["unseen"])
        self._sampler.load_state_dict(state["sampler"])

    def _draw(self, batches: int) -> Tensor:
        index = self._sampler.draw(self.size, batches, self.batch_size)
        if self._use_cer:
            # Combined experience replay (Zhang & Sutton 2017): the newest rows are in every draw.
            count = min(self._unseen, self.batch_size)
            end = self._written % self._slots * self._lanes
            newest = (end - 1 - torch.arange(count)) % (self._slots * self._lanes)
            index[len(index) - count :] = newest
        self._unseen = 0
        return index


class Replay(SampledRing):
    """The last `capacity` transitions in preallocated [slots, B] arrays; a sampler chooses rows.

    A row keeps its own true successor, so that an ending or the ring's seam can never join two
    episodes. Rows of one env are consecutive in time along the first axis, which is what n-step
    returns walk along: up to `n_step` rewards, fewer where the episode or the newest row comes
    first, then the value of the state reached.
    """

    COLUMNS: ClassVar = ("obs", "next_obs", "action", "reward", "terminated", "ended")

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        spaces: Spaces,
        sampler: Sampler,
        *,
        n_step: int = 1,
        **options: Any,
    ) -> None:
        """`options` are those of `SampledRing`."""
        columns = make_columns(spaces, (max(1, capacity // num_envs), num_envs), self.COLUMNS)
        super().__init__(columns, num_envs, sampler, **options)
        self._n_step = n_step
        # NumPy views of the same storage: through them, writing and taking rows is several times
        # cheaper. Rows for writing are slots of all envs; for taking, single transitions.
        self._rows = tuple(column.numpy() for column in columns.values())
        self._flat = {k: v.flatten(0, 1).numpy() for k, v in columns.items()}
        self._env_range = np.arange(num_envs)

    def add(self, obs: np.ndarray, action: np.ndarray, transition: Transition) -> None:
        """Store a step of every env."""
        slot = self._written % self._slots
        obs_rows, next_obs_rows, action_rows, reward_rows, terminated_rows, ended_rows = self._rows
        obs_rows[slot] = obs
        next_obs_rows[slot] = transition.next_obs
        action_rows[slot] = action
        reward_rows[slot] = transition.reward
        terminated_rows[slot] = transition.terminated
        np.logical_or(transition.terminated, transition.truncated, out=ended_rows[slot])
        self._sampler.added(slot * self._lanes + self._env_range)
        self._written += 1
        self._unseen += self._lanes

    def sample(
        self, batches: int, frame: int, transform_reward: RewardTransform | None = None
    ) -> ReplayBatch:
        """Sample `batches` minibatches at once, side by side: rows [batches * batch_size].

        `transform_reward` turns raw rewards into those to learn from. It acts on each reward before
        they are summed: to clip a sum of n rewards is not to clip each.
        """
        index = self._draw(batches)
        rows = index.numpy()
        reward, discount, last = self._n_step_return(rows, transform_reward or (lambda raw: raw))
        return ReplayBatch(
            obs=self._take("obs", rows),
            action=self._take("action", rows),
            reward=torch.from_numpy(reward),
            next_obs=self._take("next_obs", last),
            discount=torch.from_numpy(discount),
            weight=self._sampler.weight(index, self.size, batches, frame),
            index=index,
        )

    def stored(self) -> list[StoredRows]:
        """Every row, the oldest first."""
        size = min(self._written, self._slots)
        order = (self._written - size + np.arange(size)) % self._slots
        ages = np.arange(size)[::-1]
        reward = StoredRows("reward", self._columns["reward"].numpy()[order], ages)
        return [reward, *self._stored_obs(order, ages)]

    def _stored_obs(self, order: np.ndarray, ages: np.ndarray) -> list[StoredRows]:
        return [
            StoredRows("obs", self._columns[name].numpy()[order], ages + since)
            for name, since in (("next_obs", 0), ("obs", 1))
        ]

    def truncate_episodes(self) -> None:
        """End running episodes: nothing follows their newest rows."""
        self._columns["ended"][(self._written - 1) % self._slots] = True
        self._generation += 1

    def _take(self, column: str, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(self._flat[column].take(rows, 0))

    def _n_step_return(
        self, index: np.ndarray, transform_reward: RewardTransform
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(sum of discounted rewards, discount of the bootstrap, row whose successor it is of)."""
        total = transform_reward(self._take("reward", index)).numpy()
        last = index
        gamma = np.float32(self._gamma)
        reach: Any = gamma
        newest_slot = (self._written - 1) % self._slots
        for _ in range(self._n_step - 1):
            goes_on = ~self._flat["ended"].take(last) & (last // self._lanes != newest_slot)
            following = (last + self._lanes) % (self._slots * self._lanes)
            last = np.where(goes_on, following, last)
            reward = transform_reward(self._take("reward", last)).numpy()
            total = total + np.where(goes_on, reach * reward, np.float32(0))
            reach = np.where(goes_on, reach * gamma, reach)
        return total, reach * ~self._flat["terminated"].take(last), last


class FrameReplay(Replay):
    """A `Replay` of stacks of frames, along the first axis, that keeps each frame once.

    Stacks of consecutive steps share all frames but one, and a row has two stacks: stored whole, an
    Atari transition takes 56 kB, most of it eight copies of the same frames. Here frames lie in a
    ring of their own, and rows hold places of frames instead of observations. So n-step returns and
    priorities need no case for stacks, and no stack can mix two episodes.

    Every step of every env adds one frame, the newest of its true successor. The first stack of an
    episode is stored whole, beside the ring. A lost life, after which the game goes on, starts no
    stack.
    """

    def __init__(
        self, capacity: int, num_envs: int, spaces: Spaces, sampler: Sampler, **options: Any
    ) -> None:
        super().__init__(capacity, num_envs, place_spaces(spaces), sampler, **options)
        self._stack = spaces.frame_stack
        self._obs_shape = spaces.obs_shape
        self._width = spaces.obs_shape[0] // self._stack
        # The oldest row reaches back over a stack, the newest one frame ahead.
        self._length = self._slots + self._stack
        frame = replace(spaces, obs_shape=(self._width, *spaces.obs_shape[1:]))
        self._frames = make_columns(frame, (self._length * num_envs,), ["obs"])["obs"]
        self._starts = StartFrames(frame.obs_shape, self._frames.dtype, self._length + 1)
        self._places = np.zeros((num_envs, self._stack), np.int32)  # of the stacks to act on
        self._continues = np.zeros(num_envs, bool)  # whether these stacks are stored

    def add(self, obs: np.ndarray, action: np.ndarray, transition: Transition) -> None:
        for env in np.flatnonzero(~self._continues).tolist():
            self._store_whole(env, obs[env])
        self._continues[:] = True

        first = (self._written + 1) % self._length * self._lanes
        frames = self._frames.numpy()[first : first + self._lanes]
        frames[:] = transition.next_obs[:, -self._width :]
        successors = np.empty_like(self._places)
        successors[:, :-1] = self._places[:, 1:]
        successors[:, -1] = np.arange(first, first + self._lanes)
        super().add(self._places, action, replace(transition, next_obs=successors))

        self._places = successors
        if transition.obs is not transition.next_obs:  # the two differ only at an ending
            upcoming = on_host(transition.obs)
            for env in np.flatnonzero(transition.episode_end).tolist():
                self._store_whole(env, upcoming[env])

    def sample(
        self, batches: int, frame: int, transform_reward: RewardTransform | None = None
    ) -> ReplayBatch:
        places = super().sample(batches, frame, transform_reward)
        return replace(places, obs=self._stacks(places.obs), next_obs=self._stacks(places.next_obs))

    def _stored_obs(self, order: np.ndarray, ages: np.ndarray) -> list[StoredRows]:
        if self._frames.dtype == torch.uint8:
            return []
        frames = self._frame_columns()["frames"].numpy()
        return [StoredRows("obs", frames[(self._written - ages) % self._length], ages)]

    def state_dict(self) -> dict[str, Any]:
        return {
            "frames": Ring(self._frame_columns(), written=self._written + 1),  # slot 0 comes last
            "starts": self._starts.state_dict(),
            "rows": super().state_dict(),
            "length": self._length,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        state["frames"].copy_into(self._frame_columns())
        self._starts.load_state_dict(state["starts"])
        super().load_state_dict(state["rows"])
        self._grow_by(self._length - int(state.get("length", self._length)))
        # What the env shows next may be the stack it showed last, or a new game.
        self._continues[:] = False

    def _grow_by(self, steps: int) -> None:
        """Fit rows that were stored by a replay with fewer slots, none of them overwritten yet."""
        if steps <= 0:
            return
        before = (self._length - steps) * self._lanes  # places from here on are in `_starts`
        for name in ("obs", "next_obs"):
            places = self._columns[name]
            places[places >= before] += steps * self._lanes
        self._starts.keep_longer(steps)
        self._generation += 1

    def _frame_columns(self) -> dict[str, Tensor]:
        return {"frames": self._frames.view(self._length, self._lanes, *self._frames.shape[1:])}

    def _stacks(self, places: Tensor) -> Tensor:
        """[N, stack] places -> [N, *obs_shape]."""
        flat = places.flatten().long()
        aside = (flat >= len(self._frames)).nonzero().squeeze(1)
        if len(aside):
            from_starts = self._starts.frames[flat[aside] - len(self._frames)]
            flat[aside] = 0
            stacks = self._frames.index_select(0, flat)
            stacks[aside] = from_starts
        else:
            stacks = self._frames.index_select(0, flat)
        return stacks.view(len(places), *self._obs_shape)

    def _store_whole(self, env: int, obs: np.ndarray) -> None:
        frames = obs.reshape(self._stack, self._width, *self._obs_shape[1:])
        self._places[env] = len(self._frames) + self._starts.add(frames, self._written)


def place_spaces(spaces: Spaces) -> Spaces:
    """Spaces of rows that hold the places of the frames of a stack."""
    return replace(spaces, obs_shape=(spaces.frame_stack,), obs_dtype="int32")


class StartFrames:
    """Frames of the first stacks of episodes, kept as long as any row refers to them.

    Their number depends on how short episodes are, so this store grows when it must. Equal
    neighbours, as in a stack of copies of one frame, take one place.
    """

    def __init__(self, frame_shape: tuple[int, ...], dtype: torch.dtype, lifetime: int) -> None:
        self._lifetime = lifetime  # in steps
        self.frames = torch.zeros((0, *frame_shape), dtype=dtype)
        self._free: deque[int] = deque()
        self._used: deque[tuple[int, int]] = deque()  # (step at which it is free, place), in order

    def add(self, frames: np.ndarray, step: int) -> np.ndarray:
        """Store the frames of one stack; returns the place of each."""
        while self._used and self._used[0][0] <= step:
            self._free.append(self._used.popleft()[1])
        places: list[int] = []
        for i, frame in enumerate(frames):
            if i == 0 or not np.array_equal(frame, frames[i - 1]):
                places.append(self._take(step))
                self.frames.numpy()[places[-1]] = frame
            else:
                places.append(places[-1])
        return np.array(places, np.int32)

    def keep_longer(self, steps: int) -> None:
        self._used = deque((expiry + steps, place) for expiry, place in self._used)

    def state_dict(self) -> dict[str, Tensor]:
        used = torch.tensor(list(self._used), dtype=torch.int64).reshape(-1, 2)
        return {"frames": self.frames, "free": torch.tensor(list(self._free)).long(), "used": used}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.frames = state["frames"].clone()
        self._free = deque(state["free"].tolist())
        self._used = deque((expiry, place) for expiry, place in state["used"].tolist())

    def _take(self, step: int) -> int:
        if not self._free:
            old = len(self.frames)
            more = torch.zeros((max(1, old // 2), *self.frames.shape[1:]), dtype=self.frames.dtype)
            self.frames = torch.cat([self.frames, more])
            self._free.extend(range(old, len(self.frames)))
        place = self._free.popleft()
        self._used.append((step + self._lifetime, place))
        return place
