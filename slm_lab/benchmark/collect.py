"""Collect a run folder into a result: scores, an evaluation, a thinned curve, provenance."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from slm_lab.analysis.curves import curve
from slm_lab.analysis.tables import read_session
from slm_lab.analysis.trial import TrialMetrics, analyze_trial
from slm_lab.api.results import evaluate
from slm_lab.benchmark.manifest import BenchmarkManifest, Row
from slm_lab.benchmark.result import (
    CollectedResult,
    Evaluated,
    Provenance,
    Result,
    ResultError,
    write_result,
)
from slm_lab.runs.files import read_json
from slm_lab.runs.find import open_run
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.provenance import read_run_records
from slm_lab.runs.resume import spec_differences, unfinished_sessions
from slm_lab.runs.saved_run import SavedRun

EPISODES = 100
EVALUATION_SEED = 0
CURVE_POINTS = 200


def collect(folder: str | Path, manifest: BenchmarkManifest, results_dir: Path) -> Result:
    """Evaluate the final agents of a finished run and write its result.

    A run that fits no row, is not finished or is a search is refused. The audit checks the rest,
    such as the code version.
    """
    run = open_run(folder, trial=0)
    if run.layout.search_dir().exists():
        raise ResultError(
            f"{folder}: is a search, whose best score flatters. Train its best spec, and collect "
            "that run."
        )
    row = row_of(run, manifest.rows)
    if left := unfinished_sessions(run.spec, run.layout, 0):
        raise ResultError(
            f"{folder}: session(s) {', '.join(map(str, left))} of {row.id} are not finished. "
            "`slm-lab benchmark run` goes on with them."
        )
    kept = gather(run, row)
    bad = [session for session, score in kept.result.sessions.items() if math.isnan(score)]
    if bad:
        raise ResultError(f"{folder}: session(s) {', '.join(map(str, bad))} have no score.")
    evaluated = _evaluated(run)
    result = kept.result.model_copy(update={"evaluation": evaluated})
    write_result(CollectedResult(result, kept.spec, kept.curve), results_dir / row.id)
    return result


def row_of(run: SavedRun, rows: Iterable[Row]) -> Row:
    """Find the row whose spec, with flags and seed, is the one that ran."""
    closest: tuple[int, Row, str] | None = None
    for row in rows:
        if not run.layout.name.startswith(row.spec_name):
            continue
        spec = row.spec()
        if spec.name != run.layout.name:
            continue
        differences = spec_differences(spec, run.spec)
        if not differences:
            return row
        told = "\n".join(f"  {problem}" for problem in differences)
        if closest is None or len(differences) < closest[0]:
            closest = (len(differences), row, told)
    if closest is None:
        raise ResultError(f"{run.layout.predir}: no row of the manifest runs {run.layout.name}.")
    _, row, told = closest
    raise ResultError(f"{run.layout.predir}: ran something else than {row.id} says\n{told}")


def gather(run: SavedRun, row: Row) -> CollectedResult:
    """Read the result from the files of a run folder, without an evaluation."""
    metrics = analyze_trial(run.layout, 0, write=False)
    result = Result(
        row=row.id,
        folder=run.layout.predir.resolve().name,
        seed=_seed(run),
        frame=int(metrics.frame),
        total_reward_ma=metrics.total_reward_ma,
        sessions={i: scalars["total_reward_ma"] for i, scalars in metrics.sessions.items()},
        metrics={k: v if math.isfinite(v) else None for k, v in metrics.scalars.items()},
        evaluation=None,
        provenance=_provenance(run),
    )
    return CollectedResult(result, run.spec, _thinned_curve(run.layout, metrics))


def _thinned_curve(layout: RunLayout, metrics: TrialMetrics) -> pd.DataFrame:
    """The moving average of each session at CURVE_POINTS frames at most, the last one included."""
    paths = {i: layout.session_csv(0, i, "eval") for i in metrics.sessions}
    tables = {i: read_session(path, folder=layout.predir) for i, path in paths.items()}
    joined = pd.concat(
        {f"session_{i}": curve(table, smooth=True) for i, table in tables.items()}, axis=1
    ).sort_index()
    joined.index = joined.index.astype(int)
    rows = np.unique(np.linspace(0, len(joined) - 1, CURVE_POINTS).round().astype(int))
    return joined.iloc[rows].rename_axis("frame")


def _evaluated(run: SavedRun) -> Evaluated:
    """Evaluate each final agent over 100 episodes, unless the run folder has that evaluation."""
    path = run.layout.trial_evaluation(0, best=False, sampled=False)
    asked = {"agent": "last", "policy": "deterministic", "episodes": EPISODES}
    asked["seed"] = EVALUATION_SEED
    trained = run.layout.trial_metrics(0)
    is_newer = path.is_file() and path.stat().st_mtime >= trained.stat().st_mtime
    played = read_json(run.layout.predir, path) if is_newer else {}
    if any(played.get(key) != value for key, value in asked.items()):
        evaluate(run.layout.predir, trial=0, episodes=EPISODES, best=False, seed=EVALUATION_SEED)
        played = read_json(run.layout.predir, path)
    sessions = {int(i): score["mean"] for i, score in played["sessions"].items()}
    return Evaluated.model_validate({**asked, "mean": played["mean"], "sessions": sessions})


def _provenance(run: SavedRun) -> Provenance:
    records = read_run_records(run.layout.trial_provenance(0), folder=run.layout.predir)
    if not records:  # a run of before records were kept: its spec knows the commit
        meta = read_json(run.layout.predir, run.layout.trial_spec_path(0))["meta"]
        return Provenance(
            mode="train",
            git_shas=(meta.get("git_sha"),),
            git_dirty=None,
            versions={},
            cores=None,
            machine="",
            started=str(meta.get("experiment_ts", "")),
            sittings=1,
            seconds=None,
            cpu_seconds=None,
        )
    dirty = [each.git_dirty for each in records]
    modes = {each.mode for each in records}
    return Provenance(
        mode="+".join(sorted(modes)),
        git_shas=tuple(dict.fromkeys(each.git_sha for each in records)),
        git_dirty=True if True in dirty else None if None in dirty else False,
        versions=records[-1].versions,
        cores=records[-1].cores,
        machine=records[-1].machine,
        started=records[0].started,
        sittings=len(records),
        seconds=_total(each.seconds for each in records),
        cpu_seconds=_total(each.cpu_seconds for each in records),
    )


def _total(parts: Iterable[float | None]) -> float | None:
    """The sum, or None where a part is unknown because its process was killed."""
    known = list(parts)
    return None if None in known else round(sum(filter(None, known)), 1)


def _seed(run: SavedRun) -> int:
    seed = run.spec.meta.random_seed
    if seed is None:
        raise ResultError(f"{run.layout.predir}: meta.random_seed: not recorded, expected a seed.")
    return seed
