"""A sum tree over priorities: draw in proportion, update in batches, no loop over elements."""

from __future__ import annotations

import numpy as np


class SumTree:
    """Leaves hold values, each inner node the sum of its two children; the root is the total.

    Stored as one array: node i has children 2i and 2i+1, leaf k is node `capacity + k` with the
    capacity rounded up to a power of two. Every operation is a loop over levels of vector
    operations over the batch. float64, because a million float32 sums drift.
    """

    def __init__(self, capacity: int) -> None:
        self._leaves = 1 << max(0, (capacity - 1).bit_length())
        self._levels = self._leaves.bit_length() - 1
        self._nodes = np.zeros(2 * self._leaves)

    @property
    def total(self) -> float:
        return float(self._nodes[1])

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        values: np.ndarray = self._nodes[self._leaves + index]
        return values

    def update(self, index: np.ndarray, value: np.ndarray | float) -> None:
        """Set leaves; where an index repeats, its last value counts."""
        node = self._leaves + index
        self._nodes[node] = value
        for _ in range(self._levels):
            node = np.unique(node >> 1)
            self._nodes[node] = self._nodes[2 * node] + self._nodes[2 * node + 1]

    def find(self, mass: np.ndarray) -> np.ndarray:
        """The leaf at which the running sum of leaves first exceeds each mass in [0, total)."""
        node = np.ones(len(mass), dtype=np.int64)
        mass = mass.copy()
        for _ in range(self._levels):
            left = 2 * node
            left_sum = self._nodes[left]
            # Rounding may leave a mass just past the last full leaf: no empty half is entered.
            goes_right = (mass >= left_sum) & (self._nodes[left + 1] > 0)
            mass -= np.where(goes_right, left_sum, 0.0)
            node = left + goes_right
        return node - self._leaves

    def leaves(self) -> np.ndarray:
        return self._nodes[self._leaves :].copy()

    def load(self, leaves: np.ndarray) -> None:
        self._nodes[self._leaves :] = leaves
        for level in range(self._levels - 1, -1, -1):
            node = np.arange(1 << level, 2 << level)
            self._nodes[node] = self._nodes[2 * node] + self._nodes[2 * node + 1]
