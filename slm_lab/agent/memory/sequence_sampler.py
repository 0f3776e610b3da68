"""Sampler of sequences of consecutive steps, for recurrent nets."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.memory.sampler import Sampler, State

MAX_SHARE = 0.9
"""Of a sequence's priority, the share of its largest error; the rest is the mean (R2D2)."""


class SequenceSampler:
    """Draws the first steps of sequences by another sampler, and adds the `length` - 1 after each.

    Rows are slot * num_envs + env in a ring of slots. A minibatch of N rows is [length, N / length]
    flattened. The newest few rows start no whole sequence yet: a draw of one of them means the
    newest whole sequence of its env. A start stands for its sequence in weights and priorities.

    With `use_cer` the last sequences of a draw are the newest of each env, as far as they fit.
    """

    def __init__(
        self,
        starts: Sampler,
        length: int,
        *,
        batch_size: int,
        slots: int,
        num_envs: int,
        use_cer: bool = False,
    ) -> None:
        self._starts = starts
        self._length = length
        self._per_batch = batch_size // length
        self._slots, self._num_envs = slots, num_envs
        self._use_cer = use_cer
        self._newest = -1  # the slot written last

    def added(self, rows: np.ndarray) -> None:
        self._newest = int(rows[0]) // self._num_envs
        self._starts.added(rows)

    def draw(self, size: int, batches: int, batch_size: int) -> Tensor:
        row = self._starts.draw(size, batches, self._per_batch)
        if self._use_cer:
            envs = min(self._num_envs, self._per_batch)
            row[-envs:] = self._newest * self._num_envs + torch.arange(envs)
        slot, env = row // self._num_envs, row % self._num_envs
        age = (self._newest - slot) % self._slots
        first = (self._newest - age.clamp_min(self._length - 1)) % self._slots
        time = torch.arange(self._length).view(1, -1, 1)
        slots = (first.view(batches, 1, -1) + time) % self._slots
        return (slots * self._num_envs + env.view(batches, 1, -1)).flatten()

    def weight(self, index: Tensor, size: int, batches: int, frame: int) -> Tensor:
        starts = index.view(batches, self._length, -1)[:, 0]
        weight = self._starts.weight(starts.flatten(), size, batches, frame)
        return weight.view(batches, 1, -1).expand(-1, self._length, -1).flatten()

    def update(self, index: Tensor, td_error: Tensor) -> None:
        error = td_error.abs().view(-1, self._length, self._per_batch)
        priority = MAX_SHARE * error.amax(1) + (1 - MAX_SHARE) * error.mean(1)
        starts = index.view(-1, self._length, self._per_batch)[:, 0]
        self._starts.update(starts.flatten(), priority.flatten())

    def state_dict(self) -> State:
        return self._starts.state_dict() | {"newest": torch.tensor(self._newest)}

    def load_state_dict(self, state: State) -> None:
        self._starts.load_state_dict(state)
        self._newest = int(state["newest"])
