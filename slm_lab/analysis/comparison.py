"""Comparison of trials: scores per env with confidence intervals, and which method is better.

A run's score is its `total_reward_ma` at the last frame that every trial of that env reached:
returns are read on a common grid of frames, so that neither a longer budget nor denser logging is
an advantage. A session that diverged has the score of a random policy: leaving it out would hide
the failure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
import pandas as pd

from slm_lab.analysis import robust
from slm_lab.analysis.curves import curve
from slm_lab.analysis.metrics import divergence
from slm_lab.analysis.robust import FEW_SEEDS, FEWEST_FOR_INTERVAL, Interval, Statistic
from slm_lab.analysis.style import legend_rank
from slm_lab.analysis.tables import SavedTrial
from slm_lab.runs.glossary import MOVING_AVERAGE_WINDOW

Verdict = Literal["better", "not told apart", "too few seeds to tell"]
ALL_ENVS = "all envs, normalised"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic over seeds; its 95 % interval is None where there are too few for one."""

    value: float
    ci95: Interval | None


@dataclass(frozen=True, slots=True)
class MethodScore:
    """Scores of a method in one env, or over all; `optimality_gap` where 1 is the target."""

    method: str
    algorithm: str
    scores: tuple[np.ndarray, ...]  # per env, one number per seed
    interquartile_mean: Estimate
    median: Estimate
    mean: Estimate
    optimality_gap: Estimate | None = None

    @property
    def seeds(self) -> int:
        return min(len(scores) for scores in self.scores)


@dataclass(frozen=True, slots=True)
class Improvement:
    """The chance that a run of `better` beats one of `worse`; better by interquartile mean.

    `p_value`: how often equal methods would differ as clearly, see `robust.permutation_p_value`.
    """

    better: str
    worse: str
    probability: float
    ci95: Interval | None
    p_value: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class EnvComparison:
    """One env, or all of them on scores where 0 is a random policy and 1 the target."""

    env: str
    frame: int | None
    target: float | None
    methods: tuple[MethodScore, ...]  # the highest interquartile mean first
    improvements: tuple[Improvement, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """All numbers, the methods by name; `scores` stay arrays."""
        content = asdict(self)
        for method in content["methods"]:
            del method["algorithm"]
        return content | {"methods": {m.pop("method"): m for m in content["methods"]}}


def compare(
    trials: Sequence[SavedTrial], legends: Sequence[str] | None = None, *, seed: int = 0
) -> list[EnvComparison]:
    """Per env, then over all envs if there are several with a known random score and target.

    Trials of one method in one env are pooled. A method is what its legend says; without legends
    its algorithm, told apart by the spec's name where two specs of one algorithm meet in an env.
    """
    methods = list(legends) if legends else method_names(trials)
    by_env: dict[str, list[int]] = {}
    for i, trial in enumerate(trials):
        by_env.setdefault(trial.env, []).append(i)
    found, normalised = [], {}
    for env, indices in by_env.items():
        here = [trials[i] for i in indices]
        frame, scores, notes = env_scores(here, [methods[i] for i in indices])
        labels = {methods[i]: trials[i].algorithm for i in indices}
        target, random = here[0].target, here[0].random_mean
        strata = {method: (values,) for method, values in scores.items()}
        found.append(_comparison(env, frame, target, strata, labels, notes, seed))
        if target is not None and random is not None and target != random:
            normalised[env] = {m: (v - random) / (target - random) for m, v in scores.items()}
    if len(by_env) > 1 and normalised:
        labels = {method: t.algorithm for method, t in zip(methods, trials, strict=True)}
        overall = _over_envs(normalised, set(by_env), labels, seed)
        if overall.methods:
            found.append(overall)
        else:
            note = "no method was run in every env: there is no comparison over all"
            found[-1] = replace(found[-1], notes=(*found[-1].notes, note))
    return found


def method_names(trials: Sequence[SavedTrial]) -> list[str]:
    """Name of each trial: its algorithm, with the spec's name where two specs share it."""
    specs: dict[tuple[str, str], set[str]] = {}
    for trial in trials:
        specs.setdefault((trial.env, trial.algorithm), set()).add(trial.name)
    ambiguous = {algorithm for (_, algorithm), names in specs.items() if len(names) > 1}
    return [
        f"{trial.algorithm} ({trial.name})" if trial.algorithm in ambiguous else trial.algorithm
        for trial in trials
    ]


def env_scores(
    trials: Sequence[SavedTrial], methods: Sequence[str]
) -> tuple[int, dict[str, np.ndarray], list[str]]:
    """The frame of the comparison, the scores of each method's seeds, and notes for the reader."""
    frame = min(max(t["frame"].max() for t in trial.sessions.values()) for trial in trials)
    grid = _grid([table for trial in trials for table in trial.sessions.values()], frame)
    scores: dict[str, list[float]] = {method: [] for method in sorted(methods, key=legend_rank)}
    notes = []
    for trial, method in zip(trials, methods, strict=True):
        for index, table in trial.sessions.items():
            if (broken := divergence(table)) is not None:
                floor = "the lowest score here" if trial.random_mean is None else "a random policy"
                notes.append(f"{trial.name} session {index} diverged ({broken}): counts as {floor}")
                scores[method].append(math.nan if trial.random_mean is None else trial.random_mean)
                continue
            if (last := table["frame"].max()) < frame:
                stopped = f"{trial.name} session {index} stopped at frame {last:,.0f}"
                notes.append(f"{stopped}: its last score holds")
            scores[method].append(score_at(table, grid))
    notes += _pooling_notes(trials, methods)
    lowest = min((s for v in scores.values() for s in v if not math.isnan(s)), default=math.nan)
    known = {m: np.array([lowest if math.isnan(s) else s for s in v]) for m, v in scores.items()}
    return int(frame), known, notes


def score_at(table: pd.DataFrame, grid: np.ndarray) -> float:
    """The moving average at the end of the grid; past its end a session keeps its last return."""
    returns = curve(table).dropna()
    if returns.empty:
        return math.nan
    on_grid = np.interp(grid, returns.index.to_numpy(), returns.to_numpy(), left=np.nan)
    recent = on_grid[-MOVING_AVERAGE_WINDOW:]
    return float(np.nanmean(recent)) if not np.isnan(recent).all() else float(returns.iloc[0])


def _grid(tables: Sequence[pd.DataFrame], frame: float) -> np.ndarray:
    """The frames of the session with the fewest rows among those that reached `frame`."""
    reached = [table["frame"].to_numpy() for table in tables if table["frame"].max() >= frame]
    frames = min((f[f <= frame] for f in reached), key=len)
    return frames if frames.size and frames[-1] == frame else np.append(frames, frame)


def _pooling_notes(trials: Sequence[SavedTrial], methods: Sequence[str]) -> Iterator[str]:
    seen: dict[tuple[str, int | None], SavedTrial] = {}
    for trial, method in zip(trials, methods, strict=True):
        other = seen.setdefault((method, trial.seed), trial)
        if other is not trial and trial.seed is not None:
            same = f"{other.folder.name} and {trial.folder.name} have the same meta.random_seed"
            yield f"{same}: their runs are no independent draws"


def _over_envs(
    normalised: Mapping[str, Mapping[str, np.ndarray]],
    envs: set[str],
    labels: Mapping[str, str],
    seed: int,
) -> EnvComparison:
    """Methods that were run in every env whose scores can be normalised."""
    everywhere = [m for m in labels if all(m in scores for scores in normalised.values())]
    strata = {m: tuple(scores[m] for scores in normalised.values()) for m in everywhere}
    notes = [f"0 is a random policy, 1 the target; over {', '.join(sorted(normalised))}"]
    if left_out := sorted(envs - set(normalised)):
        notes.append(f"no random score or target is known for {', '.join(left_out)}: left out")
    if partial := sorted(set(labels) - set(everywhere)):
        notes.append(f"not run in every env, and left out: {', '.join(partial)}")
    return _comparison(ALL_ENVS, None, 1.0, strata, labels, notes, seed)


def _comparison(
    env: str,
    frame: int | None,
    target: float | None,
    strata: Mapping[str, tuple[np.ndarray, ...]],
    labels: Mapping[str, str],
    notes: Sequence[str],
    seed: int,
) -> EnvComparison:
    scores = [_score(m, labels[m], s, seed, is_normalised=frame is None) for m, s in strata.items()]
    scores.sort(key=lambda score: -score.interquartile_mean.value)
    pairs = [_improvement(x, y, seed) for x, y in combinations(scores, 2)]
    notes = (*notes, *_warnings(scores, len(pairs)))
    return EnvComparison(env, frame, target, tuple(scores), tuple(pairs), notes)


def _score(
    method: str, algorithm: str, strata: tuple[np.ndarray, ...], seed: int, *, is_normalised: bool
) -> MethodScore:
    def estimate(statistic: Statistic) -> Estimate:
        value = float(statistic(strata))
        return Estimate(value, robust.interval(strata, statistic=statistic, seed=seed))

    return MethodScore(
        method,
        algorithm,
        strata,
        interquartile_mean=estimate(robust.interquartile_mean),
        median=estimate(robust.median),
        mean=estimate(robust.mean),
        optimality_gap=estimate(robust.optimality_gap) if is_normalised else None,
    )


def _improvement(x: MethodScore, y: MethodScore, seed: int) -> Improvement:
    groups, statistic = (x.scores, y.scores), robust.probability_of_improvement
    probability = float(statistic(*groups))
    p_value = robust.permutation_p_value(*groups, seed=seed)
    interval = robust.interval(*groups, statistic=statistic, seed=seed)
    verdict: Verdict = "not told apart"
    if robust.smallest_p_value(*groups) > robust.SIGNIFICANCE:
        verdict = "too few seeds to tell"
    elif probability > 0.5 and p_value <= robust.SIGNIFICANCE:
        verdict = "better"
    return Improvement(x.method, y.method, probability, interval, p_value, verdict)


def _warnings(scores: Sequence[MethodScore], pairs: int) -> Iterator[str]:
    if few := [f"{score.method} {score.seeds}" for score in scores if score.seeds < FEW_SEEDS]:
        yield (
            f"few seeds ({', '.join(few)}): intervals are too narrow below {FEW_SEEDS}, and there "
            f"is none below {FEWEST_FOR_INTERVAL}. Run more with meta.max_session"
        )
    if (chance := pairs * robust.SIGNIFICANCE) >= 0.5:
        yield f"{pairs} pairs: among equal methods about {chance:.1f} would look better by chance"
