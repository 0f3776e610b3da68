"""One row of a session's curve: counters, the score so far, and what the algorithm reports."""

from __future__ import annotations

import math
from collections.abc import Mapping

from slm_lab.env.vector import EpisodeStats
from slm_lab.training.loop import Clock

# Columns that belong to an algorithm, after those that every algorithm has.
CURVE_COLUMNS: dict[str, tuple[str, ...]] = {
    "Reinforce": ("entropy_coef", "entropy"),
    "ActorCritic": ("entropy_coef",),
    "PPO": ("clip_eps", "entropy"),
    "Random": (),
    "SIL": ("entropy_coef",),
    "PPOSIL": ("clip_eps", "entropy"),
    "SARSA": ("explore_var",),
    "VanillaDQN": ("explore_var",),
    "DQNBase": ("explore_var",),
    "DQN": ("explore_var",),
    "DoubleDQN": ("explore_var",),
    "SoftActorCritic": ("alpha",),
    "CrossQ": ("alpha",),
}


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
    columns = CURVE_COLUMNS[algorithm]
    if has_grad_norm:
        columns = ("grad_norm", *columns)
    return row | {column: metrics.get(column, math.nan) for column in columns}


def frames_per_second(clock: Clock) -> float:
    return clock.frame / max(clock.seconds, 1e-9)
