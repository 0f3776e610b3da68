"""A replay of frame stacks that keeps each frame once.

Stacks of consecutive steps share all frames but one, and a row has two stacks: stored whole, an
Atari transition takes 56 kB, most of it eight copies of the same frames. Here frames lie in a ring
of their own, and the rows of a `Replay` hold places of frames instead of observations. So n-step
returns and priorities need no case for stacks, and no stack can mix two episodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.memory.replay import Replay, RewardTransform
from slm_lab.agent.memory.ring import Ring, make_columns
from slm_lab.agent.memory.sampler import Sampler
from slm_lab.types import ReplayBatch, Spaces, Transition, on_host


class FrameReplay(Replay):
    """A `Replay` for observations of `spaces.frame_stack` frames along the first axis.

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

    def state_dict(self) -> dict[str, Any]:
        return {
            "frames": Ring(self._frame_columns(), written=self._written + 1),  # slot 0 comes last
            "starts": self._starts.state_dict(),
            "rows": super().state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        state["frames"].copy_into(self._frame_columns())
        self._starts.load_state_dict(state["starts"])
        super().load_state_dict(state["rows"])
        # What the env shows next may be the stack it showed last, or a new game.
        self._continues[:] = False

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
