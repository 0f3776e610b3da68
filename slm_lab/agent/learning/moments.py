"""Running mean and variance."""

from __future__ import annotations

import torch
from torch import Tensor

State = dict[str, Tensor]


class RunningMoments:
    """Mean and variance of all rows so far, merged batch by batch (Chan et al. 1979).

    They stay on the device of the rows: copies would wait for it.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device | str = "cpu") -> None:
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.var = torch.ones(shape, dtype=torch.float64, device=device)
        self.count = torch.zeros((), dtype=torch.float64, device=device)

    def update(self, x: Tensor) -> None:
        """x: [N, *shape]."""
        x = x.double()
        n = x.shape[0]
        var, mean = torch.var_mean(x, 0, correction=0)
        total = self.count + n
        delta = mean - self.mean
        # A fresh normaliser's unit variance is a placeholder and carries no weight.
        spread = self.var * self.count + var * n + delta.square() * (self.count * n / total)
        self.mean += delta * (n / total)
        self.var.copy_(spread / total)
        self.count.copy_(total)

    def state_dict(self) -> State:
        return {"mean": self.mean.clone(), "var": self.var.clone(), "count": self.count.clone()}

    def load_state_dict(self, state: State) -> None:
        self.mean.copy_(state["mean"])
        self.var.copy_(state["var"])
        self.count.copy_(state["count"])
