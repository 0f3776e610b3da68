"""A discounted sum along time, for returns, advantages and running returns."""

from __future__ import annotations

import torch
from torch import Tensor


def discounted_scan(x: Tensor, decay: Tensor) -> Tensor:
    """y_t = x_t + decay_t * y_{t+1}, with y_T = 0, in log2(T) vector steps instead of T.

    Doubling: after k rounds each row holds the sum of 2^k terms, so the next round adds the row
    2^k further on, weighted by the product of decays in between.
    """
    length, shift = x.shape[0], 1
    while shift < length:
        head = x[:-shift] + decay[:-shift] * x[shift:]
        x = torch.cat([head, x[-shift:]])
        decay = torch.cat([decay[:-shift] * decay[shift:], torch.zeros_like(decay[-shift:])])
        shift *= 2
    return x
