"""Setup of an algorithm: spaces, seeds, device, compilation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from loguru import logger

from slm_lab.agent.learning.compiler import CompileMode
from slm_lab.types import Spaces


@dataclass(frozen=True, slots=True)
class AgentSeeds:
    """One seed per kind of draw, so that e.g. another minibatch order leaves exploration alone."""

    net: int
    act: int
    learn: int
    memory: int

    @classmethod
    def spawn(cls, seed: int) -> AgentSeeds:
        return cls(*(int(c.generate_state(1)[0]) for c in np.random.SeedSequence(seed).spawn(4)))


@dataclass(frozen=True, slots=True)
class Setup:
    spaces: Spaces
    num_envs: int
    seeds: AgentSeeds
    device: torch.device
    compile: CompileMode | None  # of the learning step; None runs it eagerly
    compile_act: CompileMode | None
    threads: int = 1  # of this session
    distributed: bool = False  # whether other workers move the same nets


@contextmanager
def initialising(seed: int) -> Iterator[None]:
    """Seed torch's global stream, from which layers draw initial weights; restore it after."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def resolve_device(gpu: bool | None, index: int = 0) -> torch.device:
    """Resolve `gpu` of a net spec: null or auto takes CUDA when there is one, false the CPU.

    `index` spreads sessions over the cards of a machine.
    """
    if gpu is False:
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", index % torch.cuda.device_count())
    if gpu:
        logger.warning("agent.net.gpu: true, but torch finds no CUDA device. Training on the CPU.")
    return torch.device("cpu")
