"""Discounted, n-step and lambda returns; transforms of returns and advantages.

`terminated` cuts the bootstrap: nothing follows. Either ending cuts the trace: what follows belongs
to another episode. Shapes are [T, B]; `next_value` is V of each step's true successor.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """Advantages of Schulman et al. 2016, eq. 16: a lambda-weighted sum of TD errors."""
    delta = reward + gamma * next_value * ~terminated - value
    return discounted_scan(delta, gamma * lam * ~(terminated | truncated))


def n_step_returns(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, n: int
) -> Tensor:
    """Up to n rewards (fewer where the episode ends first), then the value of the state reached."""
    bootstrap = next_value * ~terminated
    goes_on = (~(terminated | truncated)).to(reward.dtype)
    goes_on = torch.cat([goes_on[:-1], torch.zeros_like(goes_on[-1:])])
    returns = reward + gamma * bootstrap
    for _ in range(n - 1):
        following = torch.cat([returns[1:], returns[-1:]])
        returns = reward + gamma * torch.where(goes_on.bool(), following, bootstrap)
    return returns


def discounted_returns(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, gamma: float
) -> Tensor:
    """Rewards to go; after a truncation or the end of the rollout, plus `next_value`."""
    ended = terminated | truncated
    last = torch.zeros_like(ended)
    last[-1] = True
    cut = (last | truncated) & ~terminated
    return discounted_scan(reward + gamma * next_value * cut, gamma * (~ended).to(reward.dtype))


def standardize(x: Tensor) -> Tensor:
    """Shift and scale to zero mean and unit variance; a single element is left as it is."""
    if x.numel() < 2:
        return x
    return (x - x.mean()) / (x.std() + 1e-8)


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


def explained_variance(value: Tensor, target: Tensor) -> Tensor:
    """1 - Var(target - value) / Var(target): 1 if the values foresee the targets, 0 if they do no
    better than a constant; NaN where the targets are all the same."""
    return 1 - (target - value).var(correction=0) / target.var(correction=0)


def symlog(x: Tensor) -> Tensor:
    """sign(x) ln(1 + |x|): compresses large magnitudes, near-linear around zero."""
    return x.sign() * x.abs().log1p()
