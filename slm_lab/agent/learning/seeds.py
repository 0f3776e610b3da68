"""The random streams of an agent, and weights drawn from one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class AgentSeeds:
    """One seed per kind of draw: e.g. another minibatch order leaves exploration alone."""

    net: int
    act: int
    learn: int
    memory: int

    @classmethod
    def spawn(cls, seed: int) -> AgentSeeds:
        return cls(*(int(c.generate_state(1)[0]) for c in np.random.SeedSequence(seed).spawn(4)))


@contextmanager
def initialising(seed: int) -> Iterator[None]:
    """Layers draw their first weights from torch's global stream: lend it ours, then restore it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
