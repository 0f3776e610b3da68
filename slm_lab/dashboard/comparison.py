"""Comparison of runs: differences of their specs, and scores against targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slm_lab.runs.summary import RunSummary

# Keys that differ between any two runs and shape neither.
RUN_KEYS = frozenset(
    {"name", "meta.experiment_ts", "meta.predir", "meta.git_sha", "meta.prepath", "meta.trial"}
)


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One key and its value in each spec; None where a spec does not have it."""

    key: str
    values: tuple[str | None, ...]

    @property
    def differs(self) -> bool:
        return any(value != self.values[0] for value in self.values)


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """The best run of an algorithm in an env, and its target."""

    env: str
    algorithm: str
    target: float
    score: float | None
    run: RunSummary
    runs: int

    @property
    def gap(self) -> float | None:
        """How far above the target, negative if below."""
        return None if self.score is None else self.score - self.target

    @property
    def reached(self) -> bool:
        return self.gap is not None and self.gap >= 0


def spec_diff(specs: Sequence[Mapping[str, str]]) -> list[DiffRow]:
    """Every key of the specs, in the order in which they have them."""
    keys = dict.fromkeys(key for spec in specs for key in spec)
    return [DiffRow(key, tuple(spec.get(key) for spec in specs)) for key in keys]


def benchmark(runs: Iterable[RunSummary]) -> list[BenchmarkRow]:
    """A row for each env with a target and algorithm that was run there, by env and score.

    A search is left out: the highest of many scores is no result.
    """
    groups: dict[tuple[str, str, float], list[RunSummary]] = {}
    for run in runs:
        if run.target is not None and run.kind == "trial":
            groups.setdefault((run.env, run.algorithm, run.target), []).append(run)
    rows = []
    for (env, algorithm, target), members in groups.items():
        best = max(members, key=_score_or_worst)
        rows.append(BenchmarkRow(env, algorithm, target, best.score, best, len(members)))
    return sorted(rows, key=lambda row: (row.env, -_score_or_worst(row.run), row.algorithm))


def _score_or_worst(run: RunSummary) -> float:
    return float("-inf") if run.score is None else run.score
