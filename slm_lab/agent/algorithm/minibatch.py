"""Rows drawn at once, learned from one minibatch after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def minibatches(columns: Sequence[Tensor], size: int) -> list[Sequence[Tensor]]:
    """Columns [k * size, ...] -> k sequences of columns [size, ...]."""
    if columns[0].shape[0] == size:
        return [columns]
    return list(zip(*(torch.split(column, size) for column in columns), strict=True))
