"""A loss that is no longer a number ends a session, naming the frame and the term."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from slm_lab.error import LabError


class DivergenceError(LabError, RuntimeError):
    """A metric or a parameter became infinite or NaN."""

    exit_code = 1

    def __init__(self, frame: int, bad: Mapping[str, float], finite: Mapping[str, float]) -> None:
        self.frame = frame
        self.terms = dict(bad)
        terms = ", ".join(f"{name} = {value}" for name, value in bad.items())
        others = ", ".join(f"{name} = {value:.4g}" for name, value in finite.items())
        super().__init__(
            f"training diverged at frame {frame}: {terms} (still finite: {others or 'nothing'}). "
            "Try a smaller learning rate or agent.net.clip_grad_val, or env.normalize_reward."
        )


def check_finite(metrics: Mapping[str, float], frame: int) -> Mapping[str, float]:
    bad = {name: value for name, value in metrics.items() if not math.isfinite(value)}
    if bad:
        raise DivergenceError(frame, bad, {k: v for k, v in metrics.items() if k not in bad})
    return metrics


def check_parameters(state: Mapping[str, Tensor], frame: int) -> None:
    """Parameters can break one step before the loss shows it: asked before they are kept."""
    vectors = {name: value for name, value in state.items() if value.is_floating_point()}
    # One number tells of all: a sum is finite only if every term is. A random agent has none.
    sums = [value.sum() for value in vectors.values()]
    if not sums or math.isfinite(torch.stack(sums).sum().item()):
        return
    bad = {name: math.nan for name, value in vectors.items() if not bool(value.isfinite().all())}
    if bad:
        raise DivergenceError(frame, bad, {})
