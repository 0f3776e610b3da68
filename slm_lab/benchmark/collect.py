"""Collect the run folders of a row's trials into its result: scores, an evaluation, the returns at
every checkpoint, final policies, provenance."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pandas as pd

from slm_lab.analysis.curves import curve
from slm_lab.analysis.tables import read_sessions
from slm_lab.analysis.trial import analyze_trial
from slm_lab.api.results import evaluate
from slm_lab.benchmark.ledger import Attempt, last_entries, read_ledger, write_entry
from slm_lab.benchmark.manifest import BenchmarkManifest, Row
from slm_lab.benchmark.result import (
    EPISODES,
    POLICY_BYTES,
    CollectedResult,
    Evaluated,
    Provenance,
    Result,
    ResultError,
    TrialResult,
    session_label,
    write_result,
)
from slm_lab.benchmark.seeds import derived_seed, fingerprint
from slm_lab.runs.files import read_json
from slm_lab.runs.find import SavedRun, open_run
from slm_lab.runs.provenance import RunRecord, read_run_records
from slm_lab.runs.resume import spec_differences, unfinished_sessions
from slm_lab.spec import Spec

EVALUATION_SEED = 0


def collect(
    folders: Sequence[str | Path], manifest: BenchmarkManifest, results_dir: Path
) -> list[Result]:
    """Evaluate the final agents of finished runs and write the results of their rows.

    All trials of a row are given at once. A run that fits no row, is not finished or is a search is
    refused. The audit checks the rest, such as the code version.
    """
    by_row: dict[str, list[tuple[SavedRun, Row, int]]] = defaultdict(list)
    for folder in folders:
        run = open_run(folder, trial=0)
        row, trial = row_of(run, manifest.rows)
        by_row[row.id].append((run, row, trial))
    return [_collect_row(runs, results_dir) for runs in by_row.values()]


def _collect_row(found: list[tuple[SavedRun, Row, int]], results_dir: Path) -> Result:
    runs = {trial: run for run, _, trial in found}
    row = found[0][1]
    if missing := [trial for trial in range(max(runs) + 1) if trial not in runs]:
        seeds = ", ".join(f"{t} (seed {row.spec(t).meta.random_seed})" for t in missing)
        raise ResultError(f"{row.id}: give the folders of its trials at once; lacks trial {seeds}.")
    for trial, run in sorted(runs.items()):
        _check_finished(run, row)
        enter(row, run, trial, results_dir)
    kept = gather([runs[trial] for trial in sorted(runs)], row, evaluates=True)
    for name, score in kept.result.scores.items():
        if math.isnan(score):
            raise ResultError(f"{row.id}: session {name} has no score.")
    write_result(kept, results_dir / row.id)
    return kept.result


def _check_finished(run: SavedRun, row: Row) -> None:
    if left := unfinished_sessions(run.spec, run.layout, 0):
        raise ResultError(
            f"{run.layout.predir}: session(s) {', '.join(map(str, left))} of {row.id} are not "
            "finished. `slm-lab benchmark run` goes on with them."
        )


def enter(row: Row, run: SavedRun, trial: int, results_dir: Path) -> None:
    """Enter a finished run into the ledger, unless that has it."""
    attempt = attempt_of(run.spec, run.layout.predir, trial)
    last = last_entries(read_ledger(results_dir / row.id)).get(attempt.folder)
    if last is not None and last.is_finished:
        return
    scores = analyze_trial(run.layout, 0, write=False).sessions
    write_entry(
        results_dir / row.id,
        attempt,
        "entered" if last is None else "finished",
        commit=_provenance(run).git_shas[-1],
        sessions={session: scalars["total_reward_ma"] for session, scalars in scores.items()},
    )


def attempt_of(spec: Spec, folder: Path, trial: int) -> Attempt:
    """The attempt that a run folder is."""
    return Attempt(
        fingerprint=fingerprint(spec),
        trial=trial,
        seed=seed_of(spec),
        max_session=spec.meta.max_session,
        folder=folder.resolve().name,
    )


def seed_of(spec: Spec) -> int:
    if spec.meta.random_seed is None:
        raise ResultError(f"{spec.name}: meta.random_seed: not recorded, expected a seed.")
    return spec.meta.random_seed


def row_of(run: SavedRun, rows: Iterable[Row]) -> tuple[Row, int]:
    """Find the row whose spec is the one that ran, and the trial whose seed it has.

    Fewer sessions than the row asks for are allowed.
    """
    if run.layout.search_dir().exists():
        raise ResultError(
            f"{run.layout.predir}: is a search, whose best score flatters. Train its best spec, "
            "and collect that run."
        )
    closest: tuple[Row, Sequence[object]] | None = None
    for row in rows:
        if not run.layout.name.startswith(row.spec_name):
            continue
        row = row.limited(run.spec.meta.max_session, None)
        spec = row.spec()
        if spec.name != run.layout.name:
            continue
        seed = {"meta.random_seed": run.spec.meta.random_seed}
        if not (differences := spec_differences(spec.with_values(seed), run.spec)):
            return row, _trial(row, run)
        if closest is None or len(differences) < len(closest[1]):
            closest = (row, differences)
    if closest is None:
        raise ResultError(f"{run.layout.predir}: no row of the manifest runs {run.layout.name}.")
    told = "\n".join(f"  {problem}" for problem in closest[1])
    raise ResultError(f"{run.layout.predir}: ran something else than {closest[0].id} says\n{told}")


def _trial(row: Row, run: SavedRun) -> int:
    mark, seed = fingerprint(run.spec), run.spec.meta.random_seed
    seeds = [derived_seed(mark, trial) for trial in range(row.trials)]
    if seed not in seeds:
        raise ResultError(
            f"{run.layout.predir}: meta.random_seed: found {seed}, but {row.id} is run with "
            f"{' and '.join(map(str, seeds))}, derived from its spec."
        )
    return seeds.index(seed)


def gather(runs: Sequence[SavedRun], row: Row, *, evaluates: bool = False) -> CollectedResult:
    """Read the result from the files of the trials' run folders."""
    metrics = [analyze_trial(run.layout, 0, write=False) for run in runs]
    trials = tuple(
        TrialResult(
            seed=seed_of(run.spec),
            folder=run.layout.predir.resolve().name,
            frame=int(found.frame),
            sessions={i: scalars["total_reward_ma"] for i, scalars in found.sessions.items()},
            metrics={k: v if math.isfinite(v) else None for k, v in found.scalars.items()},
            evaluation=_evaluated(run) if evaluates else None,
            provenance=_provenance(run),
        )
        for run, found in zip(runs, metrics, strict=True)
    )
    scores = [score for trial in trials for score in trial.sessions.values()]
    result = Result(
        row=row.id,
        fingerprint=fingerprint(runs[0].spec),
        total_reward_ma=sum(scores) / len(scores),
        trials=trials,
    )
    columns = {
        session_label(trial, session.index): curve(session.table)
        for trial, run in enumerate(runs)
        for session in read_sessions(run.layout, 0)
    }
    returns = pd.concat(columns, axis=1).sort_index()
    returns.index = returns.index.astype(int)
    policies = dict(_policies(runs, row)) if evaluates else {}
    return CollectedResult(result, runs[0].spec, returns.rename_axis("frame"), policies)


def _policies(runs: Sequence[SavedRun], row: Row) -> Iterator[tuple[str, bytes]]:
    """Final policies as safetensors, of the first sessions, as many as POLICY_BYTES allow."""
    # torch takes seconds to import; who only audits imports this file too.
    import safetensors.torch

    from slm_lab.playback.saved_agent import read_states

    size = 0
    for trial, run in enumerate(runs):
        for session in run.sessions(best=False):
            files = {
                f"{run.layout.name}_{session_label(trial, session)}_{name}_model.safetensors": (
                    safetensors.torch.save({k: v.contiguous() for k, v in state.items()})
                )
                for name, state in read_states(run, session, best=False).items()
            }
            size += sum(map(len, files.values()))
            if size > POLICY_BYTES:
                return
            yield from files.items()


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
    return Evaluated.model_validate({**asked, "sessions": sessions})


def _provenance(run: SavedRun) -> Provenance:
    kept = read_run_records(run.layout.trial_provenance(0), folder=run.layout.predir)
    records = kept or [_record_of_spec(run)]
    dirty = [each.git_dirty for each in records]
    last = records[-1]
    return Provenance(
        mode="+".join(sorted({each.mode for each in records})),
        git_shas=tuple(dict.fromkeys(each.git_sha for each in records)),
        git_dirty=True if True in dirty else None if None in dirty else False,
        versions=last.versions,
        cores=last.cores if kept else None,
        machine=last.machine,
        precision=last.precision,
        started=records[0].started,
        sittings=len(records),
        seconds=_total(each.seconds for each in records),
        cpu_seconds=_total(each.cpu_seconds for each in records),
    )


def _record_of_spec(run: SavedRun) -> RunRecord:
    """What is known of a run of before records were kept: its spec has the commit."""
    meta = read_json(run.layout.predir, run.layout.trial_spec_path(0))["meta"]
    sha = meta.get("git_sha")
    return RunRecord("train", git_sha=sha, started=str(meta.get("experiment_ts", "")))


def _total(parts: Iterable[float | None]) -> float | None:
    """The sum, or None where a part is unknown because its process was killed."""
    known = list(parts)
    return None if None in known else round(sum(filter(None, known)), 1)
