"""A ring of rows as a checkpoint sees it: what was written once need not be written again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class SavedRing(Protocol):
    """A ring to be restored from, in memory or on disk."""

    @property
    def written(self) -> int: ...
    @property
    def generation(self) -> int: ...
    def copy_into(self, columns: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True, slots=True)
class Ring:
    """Columns [slots, ...] of a ring in which the n-th row ever written lies in slot n % slots.

    The columns are the memory's own tensors, not copies: they may be most of the machine's memory.
    A memory that changes a row after it was written starts another `generation`.
    """

    columns: Mapping[str, Tensor]
    written: int
    generation: int = 0

    @property
    def slots(self) -> int:
        return next(iter(self.columns.values())).shape[0]

    @property
    def oldest(self) -> int:
        """Number of the first row that is not overwritten yet."""
        return max(0, self.written - self.slots)

    @property
    def row_bytes(self) -> int:
        return sum(column[0].numel() * column.element_size() for column in self.columns.values())

    def rows(self, start: int, stop: int) -> dict[str, Tensor]:
        """The rows with these numbers, in the order they were written."""
        first, last = start % self.slots, (stop - 1) % self.slots + 1
        if first < last:
            return {name: column[first:last] for name, column in self.columns.items()}
        # Across the seam.
        return {
            name: torch.cat([column[first:], column[:last]])
            for name, column in self.columns.items()
        }

    def copy_into(self, columns: Mapping[str, Tensor]) -> None:
        for name, column in columns.items():
            column.copy_(self.columns[name])
