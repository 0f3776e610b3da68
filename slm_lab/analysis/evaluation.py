"""Scores of a trial's saved agents over fresh episodes, with confidence intervals."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from slm_lab.analysis.robust import Interval, mean_interval
from slm_lab.runs.files import write_atomic


@dataclass(frozen=True, slots=True)
class SessionScore:
    """Returns of one session's agent; the 95 % interval of their mean is over episodes."""

    mean: float
    std: float
    interval: Interval
    returns: tuple[float, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The score of a trial: the mean over sessions of their mean return.

    `interval` (95 %) is over episodes: how well these agents are known. `interval_over_sessions` is
    over seeds too: what the spec would score again. It needs two sessions, and is None for one.
    """

    mean: float
    interval: Interval
    interval_over_sessions: Interval | None
    sessions: Mapping[int, SessionScore]
    path: Path  # where it is written


def summarize(returns: Mapping[int, Sequence[float]], *, path: Path, seed: int = 0) -> Evaluation:
    """Evaluation of returns per session and episode; `seed` is that of the bootstrap."""
    scores = {
        index: SessionScore(
            mean=statistics.fmean(episodes),
            std=statistics.pstdev(episodes),
            interval=mean_interval([episodes], "episodes", seed=seed),
            returns=tuple(episodes),
        )
        for index, episodes in returns.items()
    }
    groups = list(returns.values())
    over_seeds = mean_interval(groups, "sessions", seed=seed) if len(groups) > 1 else None
    return Evaluation(
        mean=statistics.fmean(score.mean for score in scores.values()),
        interval=mean_interval(groups, "episodes", seed=seed),
        interval_over_sessions=over_seeds,
        sessions=scores,
        path=path,
    )


def write_evaluation(
    evaluation: Evaluation, circumstances: Mapping[str, object], *, folder: Path | None = None
) -> None:
    """Write an evaluation to its path; `folder` is the run folder, by default two levels above."""
    names = {"mean": "mean", "std": "std", "interval": "ci95", "returns": "returns"}
    content = {
        **circumstances,
        "mean": evaluation.mean,
        "ci95_over_episodes": evaluation.interval,
        "ci95_over_sessions": evaluation.interval_over_sessions,
        "sessions": {
            index: {names[name]: value for name, value in asdict(score).items()}
            for index, score in evaluation.sessions.items()
        },
    }
    path = evaluation.path
    write_atomic(folder or path.parents[1], path, json.dumps(content, indent=2) + "\n")
