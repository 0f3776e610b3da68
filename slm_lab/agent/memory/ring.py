"""How memories are laid out and saved: columns, rings of rows, sequences of different lengths.

A checkpoint writes only the rows of a ring that earlier checkpoints do not have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slm_lab.types import Spaces

Row = tuple[np.ndarray | float | bool, ...]


def make_columns(
    spaces: Spaces,
    lead: tuple[int, ...],
    names: Sequence[str],
    device: torch.device | str | None = None,
) -> dict[str, Tensor]:
    """Columns [*lead, ...] of zeros, by what they hold; all but the ones named here are flags."""
    obs = spaces.obs_shape, getattr(torch, spaces.obs_dtype)
    action: tuple[tuple[int, ...], torch.dtype] = (), torch.int64
    if spaces.action_type == "multi_discrete":
        action = (len(spaces.action_sizes),), torch.int64
    elif spaces.action_type != "discrete":
        action = (math.prod(spaces.action_sizes),), torch.float32
    number = (), torch.float32
    layouts = {"obs": obs, "next_obs": obs, "action": action, "reward": number, "return": number}
    kinds = {name: layouts.get(name, ((), torch.bool)) for name in names}
    return {
        name: torch.zeros((*lead, *shape), dtype=dtype, device=device)
        for name, (shape, dtype) in kinds.items()
    }


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
        """Copy the rows into columns that may have more slots."""
        for name, column in columns.items():
            column[: self.slots].copy_(self.columns[name])


def pack(sequences: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """Sequences of rows -> their lengths, and one array per column of the rows."""
    rows = [row for sequence in sequences for row in sequence]
    columns = [np.stack(column) for column in zip(*rows, strict=True)]
    return {"lengths": [len(sequence) for sequence in sequences], "columns": columns}


def unpack(packed: Mapping[str, Any]) -> list[list[tuple[np.ndarray, ...]]]:
    lengths, columns = packed["lengths"], packed["columns"]
    if any(len(column) != sum(lengths) for column in columns):
        raise ValueError("columns and lengths of a packed sequence do not agree")
    rows = zip(*columns, strict=True)
    return [[next(rows) for _ in range(length)] for length in lengths]
