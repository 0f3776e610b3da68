"""Sequences of different lengths, such as running episodes, as arrays end to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Row = tuple[np.ndarray | float | bool, ...]


def pack(sequences: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """Lengths, and one array per column of the rows."""
    rows = [row for sequence in sequences for row in sequence]
    columns = [np.stack(column) for column in zip(*rows, strict=True)]
    return {"lengths": [len(sequence) for sequence in sequences], "columns": columns}


def unpack(packed: Mapping[str, Any]) -> list[list[tuple[np.ndarray, ...]]]:
    lengths, columns = packed["lengths"], packed["columns"]
    if any(len(column) != sum(lengths) for column in columns):
        raise ValueError("columns and lengths of a packed sequence do not agree")
    rows = zip(*columns, strict=True)
    return [[next(rows) for _ in range(length)] for length in lengths]
