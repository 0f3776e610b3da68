"""How to run a spec: what the command line adds to it, and nothing that shapes the learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["dev", "train", "search", "enjoy"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    mode: Mode = "dev"
    render: bool = False
    log_level: str = "INFO"
    log_extra: bool = False
    profile: bool = False
    optimize_perf: bool = True
    cuda_offset: int = 0
    wandb: bool = False
    data_dir: str = "data"
    resume: bool = False  # go on from the checkpoints of the run folder
    # Of a search: trials whose models stay (-1: all), how many of the best are run again with fresh
    # seeds, and the Ray cluster to run on (None starts a local one).
    keep: int = 3
    validate: int = 0
    ray_address: str | None = None
