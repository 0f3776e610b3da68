"""How steps are laid out for a net: one row each, or in order of time for a recurrent one.

Either way the net's outputs are flat, [N], in the order of the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slm_lab.spec import RecurrentNetSpec

if TYPE_CHECKING:
    from slm_lab.spec import NetSpec


def sequence_length(spec: NetSpec) -> int | None:
    """Steps of a sequence, or None where every step is a row of its own."""
    return spec.seq_len if isinstance(spec, RecurrentNetSpec) else None


def from_rollout(steps: Tensor, seq_len: int | None) -> Tensor:
    """Consecutive steps [T, B, ...] as a net reads them."""
    return steps.flatten(0, 1) if seq_len is None else steps


def from_rows(rows: Tensor, seq_len: int | None) -> Tensor:
    """Rows [N, ...] as a net reads them; those of a recurrent net are [L, N / L] flattened."""
    return rows if seq_len is None else rows.view(seq_len, -1, *rows.shape[1:])


def shuffled_minibatches(
    steps: int,
    envs: int,
    size: int,
    seq_len: int | None,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, ...]:
    """Row indices t * B + b of a rollout, in minibatches of `size`, without replacement.

    With sequences, whole ones are drawn: a minibatch is [L, size / L] flattened.
    """
    length = seq_len or 1
    sequences = steps // length * envs
    # Drawn on the CPU, so that one seed means one order everywhere; one copy for all minibatches.
    order = torch.randperm(sequences, generator=generator).to(device)
    # A remainder of a few rows would take a step as large as the others: it sits out.
    per_batch = size // length
    order = order[: sequences - sequences % per_batch]
    if seq_len is None:
        return torch.split(order, size)
    first = order // envs * (length * envs) + order % envs
    time = torch.arange(length, device=device).unsqueeze(1) * envs
    return tuple((time + start).flatten() for start in torch.split(first, per_batch))
