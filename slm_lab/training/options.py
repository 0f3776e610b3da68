"""Options of a run that the command line adds to a spec; none of them changes the learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["dev", "train", "search", "enjoy"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a run is done: what is shown and logged, and where it runs."""

    mode: Mode = "dev"
    render: bool = False
    log_level: str = "INFO"
    log_extra: bool = False
    profile: bool = False
    optimize_perf: bool = True
    cuda_offset: int = 0
    wandb: bool = False
    data_dir: str = "data"
    resume: bool = False  # continue from the checkpoints of the run folder
    follow_budget: bool = False  # of more frames: schedules follow the new budget
    timestamp: str = ""  # in the name of a new run folder; empty: now
    upload_hf: bool = False  # share the run folder while it grows, and at the end
    # The Ray cluster to run on. None: processes of this machine; for a search, a Ray of its own.
    ray_address: str | None = None
    cores: int | None = None  # that a session may keep busy; None: its share of this machine
    keep: int = 3  # trials of a search whose models are kept; -1: all
    validate: int = 0  # best trials of a search to be trained again with new seeds
