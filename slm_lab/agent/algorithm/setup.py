"""What an algorithm is built for: spaces, streams, device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slm_lab.agent.learning.compiler import CompileMode
from slm_lab.agent.learning.seeds import AgentSeeds
from slm_lab.types import Spaces


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
