"""One row of a session's curve: counters, the score so far, and what the algorithm reports."""

from __future__ import annotations

import math
from collections.abc import Mapping

from slm_lab.env.vector import EpisodeStats
from slm_lab.spec.algorithm import ALGORITHMS
from slm_lab.training.loop import Clock


def curve_row(
    clock: Clock,
    episodes: EpisodeStats,
    num_envs: int,
    metrics: Mapping[str, float],
    algorithm: str,
    *,
    has_grad_norm: bool,
) -> dict[str, float]:
    """`metrics` are those of the latest update, none before the first."""
    is_single = num_envs == 1
    row = {
        "total_reward": episodes.total_reward(),
        "loss": metrics.get("loss", math.nan),
        "fps": frames_per_second(clock),
        "frame": clock.frame,
        "wall_t": int(clock.seconds),
        "t": episodes.running_length() if is_single else clock.frame // num_envs,
        "epi": episodes.count if is_single else math.nan,
        "opt_step": clock.opt_step,
        "lr": metrics.get("lr", math.nan),
    }
    columns = ALGORITHMS[algorithm].columns
    if has_grad_norm:
        columns = ("grad_norm", *columns)
    return row | {column: metrics.get(column, math.nan) for column in columns}


def frames_per_second(clock: Clock) -> float:
    return clock.frame / max(clock.seconds, 1e-9)
