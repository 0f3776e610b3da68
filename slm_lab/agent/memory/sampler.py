"""How rows of a replay are chosen: uniformly, or in proportion to priorities."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.memory.sum_tree import SumTree

State = dict[str, Tensor]


class Sampler(Protocol):
    def added(self, rows: np.ndarray) -> None:
        """These rows of the replay were just written."""
        ...

    def draw(self, size: int, batches: int, batch_size: int) -> Tensor:
        """Row indices [batches * batch_size] out of `size` filled rows."""
        ...

    def weight(self, index: Tensor, size: int, batches: int, frame: int) -> Tensor:
        """Importance weights of drawn rows."""
        ...

    def update(self, index: Tensor, td_error: Tensor) -> None: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class UniformSampler:
    """Every row alike, with replacement."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._ones = torch.ones(0)

    def added(self, rows: np.ndarray) -> None:
        pass

    def draw(self, size: int, batches: int, batch_size: int) -> Tensor:
        return torch.randint(size, (batches * batch_size,), generator=self._generator)

    def weight(self, index: Tensor, size: int, batches: int, frame: int) -> Tensor:
        if len(self._ones) != len(index):
            self._ones = torch.ones(len(index))
        return self._ones

    def update(self, index: Tensor, td_error: Tensor) -> None:
        pass

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
        self._tree.update(rows, self._highest)

    def draw(self, size: int, batches: int, batch_size: int) -> Tensor:
        """Stratified: one draw from each of as many equal shares of the total as there are rows."""
        count = batches * batch_size
        jitter = torch.rand(count, generator=self._generator, dtype=torch.float64).numpy()
        mass = (np.arange(count) + jitter) * (self._tree.total / count)
        found = torch.from_numpy(self._tree.find(mass))
        if batches == 1:
            return found
        # Shares run through the ring in order; shuffled, a minibatch is not a stretch of it.
        return found[torch.randperm(count, generator=self._generator)]

    def weight(self, index: Tensor, size: int, batches: int, frame: int) -> Tensor:
        beta = self._beta + (1 - self._beta) * min(1.0, frame / self._anneal_frames)
        probability = self._tree[index.numpy()] / self._tree.total
        weight = ((size * probability) ** -beta).reshape(batches, -1)
        weight /= weight.max(1, keepdims=True)
        return torch.from_numpy(weight.astype(np.float32).reshape(-1))

    def update(self, index: Tensor, td_error: Tensor) -> None:
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
