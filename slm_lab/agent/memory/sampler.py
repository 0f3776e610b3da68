"""Samplers of replay rows: uniform, in proportion to priorities, or whole sequences of steps."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

State = dict[str, Tensor]


class UniformSampler:
    """Draws every row with the same probability, with replacement.

    What a sampler must do: take note of rows that were just written (`added`), `draw` row indices
    [batches * batch_size] out of `size` filled rows, give their importance weights.
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._ones = torch.ones(0)

    def added(self, rows: np.ndarray) -> None:
        """Take note of rows that were just written."""

    def draw(self, size: int, batches: int, batch_size: int) -> Tensor:
        """Draw row indices [batches * batch_size] out of `size` filled rows."""
        return torch.randint(size, (batches * batch_size,), generator=self._generator)

    def weight(self, index: Tensor, size: int, batches: int, frame: int) -> Tensor:
        """Importance weights of drawn rows: all are 1."""
        if len(self._ones) != len(index):
            self._ones = torch.ones(len(index))
        return self._ones

    def update(self, index: Tensor, td_error: Tensor) -> None:
        """Take note of TD errors, which change nothing here."""

    def state_dict(self) -> State:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: State) -> None:
        self._generator.set_state(state["generator"])


class PrioritizedSampler:
    """Proportional prioritisation (Schaul et al. 2016): P(i) ~ (|td error| + epsilon) ** alpha.

    New rows enter with the highest priority seen, so that each is likely to be learned from once.
    Weights are divided by the largest of their minibatch: they only ever shrink a step. Their
    exponent beta grows linearly to 1 at `anneal_frames`.
    """

    def __init__(
        self,
        capacity: int,
        *,
        alpha: float,
        epsilon: float,
        beta: float,
        anneal_frames: int,
        seed: int,
    ) -> None:
        self._alpha, self._epsilon = alpha, epsilon
        self._beta, self._anneal_frames = beta, anneal_frames
        self._tree = SumTree(capacity)
        self._highest = 1.0
        self._generator = torch.Generator().manual_seed(seed)

    def added(self, rows: np.ndarray) -> None:
        """Give new rows the highest priority seen."""
        self._tree.update(rows, self._highest)

    def draw(self, size: int, batches: int, batch_size: int) -> Tensor:
        """Draw stratified: one row from each of equal shares of the total priority."""
        count = batches * batch_size
        jitter = torch.rand(count, generator=self._generator, dtype=torch.float64).numpy()
        mass = (np.arange(count) + jitter) * (self._tree.total / count)
        found = torch.from_numpy(self._tree.find(mass))
        if batches == 1:
            return found
        # Shares run through the ring in order; shuffled, a minibatch is not a stretch of it.
        return found[torch.randperm(count, generator=self._generator)]

    def weight(self, index: Tensor, size: int, batches: int, frame: int) -> Tensor:
        """Importance weights of drawn rows, with beta of the frame."""
        beta = self._beta + (1 - self._beta) * min(1.0, frame / self._anneal_frames)
        probability = self._tree[index.numpy()] / self._tree.total
        weight = ((size * probability) ** -beta).reshape(batches, -1)
        weight /= weight.max(1, keepdims=True)
        return torch.from_numpy(weight.astype(np.float32).reshape(-1))

    def update(self, index: Tensor, td_error: Tensor) -> None:
        """Set priorities by the TD errors of rows that were learned from."""
        priority = (np.abs(td_error.numpy(), dtype=np.float64) + self._epsilon) ** self._alpha
        self._highest = max(self._highest, float(priority.max()))
        self._tree.update(index.numpy(), priority)

    def state_dict(self) -> State:
        return {
            "generator": self._generator.get_state(),
            "priority": torch.from_numpy(self._tree.leaves()),
            "highest": torch.tensor(self._highest, dtype=torch.float64),
        }

    def load_state_dict(self, state: State) -> None:
        self._generator.set_state(state["generator"])
        self._tree.load(state["priority"].numpy())
        self._highest = float(state["highest"])


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


Sampler = UniformSampler | PrioritizedSampler | SequenceSampler

# Leaves under one sum. A draw adds up all sums, and the leaves of one block per row drawn: for
# 128 rows out of 100,000 to 1,000,000 this is where the two cost least together.
BLOCK = 64


class SumTree:
    """Sum tree over priorities: leaves in blocks, each with its sum.

    Two wide levels instead of the usual log2(n) narrow ones: to NumPy a level costs calls, a few
    more numbers cost nothing. 128 of 100,000 leaves, drawn and updated: 290 us with a binary tree,
    83 us so (one core). float64, because a million float32 sums drift.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks = np.zeros((-(-capacity // BLOCK), BLOCK))
        self._leaves = self._blocks.reshape(-1)  # a view
        self._sums = np.zeros(len(self._blocks))

    @property
    def total(self) -> float:
        return float(self._sums.sum())

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        return self._leaves.take(index)

    def update(self, index: np.ndarray, value: np.ndarray | float) -> None:
        """Set leaves; where an index repeats, its last value counts."""
        self._leaves[index] = value
        block = index // BLOCK
        self._sums[block] = self._blocks.take(block, axis=0).sum(1)

    def find(self, mass: np.ndarray) -> np.ndarray:
        """Find the leaf at which the running sum of leaves exceeds each mass in [0, total)."""
        ends = self._sums.cumsum()
        block = ends.searchsorted(np.minimum(mass, _just_below(ends[-1])), side="right")
        rest = mass - (ends[block] - self._sums[block])
        within = self._blocks.take(block, axis=0).cumsum(1)
        # Rounding may leave a rest just outside its block: no empty leaf is taken for it.
        rest = np.clip(rest, 0.0, _just_below(within[:, -1]))
        leaf = (within <= rest[:, None]).sum(1)
        found: np.ndarray = block * BLOCK + leaf
        return found

    def leaves(self) -> np.ndarray:
        return self._leaves[: self._capacity].copy()

    def load(self, leaves: np.ndarray) -> None:
        """Set the first leaves: a replay that was stored may have had fewer rows."""
        self.update(np.arange(min(len(leaves), self._capacity)), leaves[: self._capacity])


def _just_below(x: np.ndarray | np.float64) -> np.ndarray:
    return np.nextafter(x, 0.0)
