"""Collect a run folder into a result (scores, an evaluation, a thinned curve, provenance), and
audit results, run folders and the page: one line per offence.

The audit looks for the errors that tables kept by hand had: search scores taken for results,
settings that drifted, overrides without effect, missing plots.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pandas as pd

from slm_lab.analysis.curves import curve, thinned
from slm_lab.analysis.tables import read_session
from slm_lab.analysis.trial import TrialMetrics, analyze_trial
from slm_lab.api.results import evaluate
from slm_lab.benchmark.manifest import BenchmarkManifest, Row, row_problems
from slm_lab.benchmark.result import (
    CURVE,
    EPISODES,
    PLOT,
    RESULT,
    SPEC,
    CollectedResult,
    Evaluated,
    Provenance,
    Result,
    ResultError,
    read_result,
    result_folders,
    write_result,
)
from slm_lab.benchmark.table import BenchmarkPage
from slm_lab.error import LabError
from slm_lab.runs.files import read_json
from slm_lab.runs.find import SavedRun, open_run
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.provenance import RunRecord, is_same_code, read_run_records
from slm_lab.runs.resume import spec_differences, unfinished_sessions

EVALUATION_SEED = 0
CURVE_POINTS = 200
CURVE_DIGITS = 1e-4  # the curve is kept with six digits


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
    result = kept.result.model_copy(update={"evaluation": _evaluated(run)})
    write_result(CollectedResult(result, kept.spec, kept.curve), results_dir / row.id)
    return result


def row_of(run: SavedRun, rows: Iterable[Row]) -> Row:
    """Find the row whose spec, with flags and seed, is the one that ran."""
    closest: tuple[Row, Sequence[object]] | None = None
    for row in rows:
        if not run.layout.name.startswith(row.spec_name):
            continue
        spec = row.spec()
        if spec.name != run.layout.name:
            continue
        differences = spec_differences(spec, run.spec)
        if not differences:
            return row
        if closest is None or len(differences) < len(closest[1]):
            closest = (row, differences)
    if closest is None:
        raise ResultError(f"{run.layout.predir}: no row of the manifest runs {run.layout.name}.")
    told = "\n".join(f"  {problem}" for problem in closest[1])
    raise ResultError(f"{run.layout.predir}: ran something else than {closest[0].id} says\n{told}")


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
    return thinned(joined, CURVE_POINTS).rename_axis("frame")


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
        started=records[0].started,
        sittings=len(records),
        seconds=_total(each.seconds for each in records),
        cpu_seconds=_total(each.cpu_seconds for each in records),
    )


def _record_of_spec(run: SavedRun) -> RunRecord:
    """What is known of a run of before records were kept: its spec has the commit."""
    meta = read_json(run.layout.predir, run.layout.trial_spec_path(0))["meta"]
    started = str(meta.get("experiment_ts", ""))
    return RunRecord("train", git_sha=meta.get("git_sha"), started=started)


def _total(parts: Iterable[float | None]) -> float | None:
    """The sum, or None where a part is unknown because its process was killed."""
    known = list(parts)
    return None if None in known else round(sum(filter(None, known)), 1)


def _seed(run: SavedRun) -> int:
    seed = run.spec.meta.random_seed
    if seed is None:
        raise ResultError(f"{run.layout.predir}: meta.random_seed: not recorded, expected a seed.")
    return seed


# Audit


def audit_results(
    manifest: BenchmarkManifest, results_dir: Path, *, page: Path | None, plots_dir: Path
) -> Iterator[str]:
    """Audit every folder of results, and the page that shows them unless `page` is None."""
    kept: dict[str, CollectedResult] = {}
    for folder in result_folders(results_dir):
        yield from audit_result(folder, manifest)
        try:
            if (found := read_result(folder)) is not None:
                kept[folder.name] = found
        except ResultError:  # audit_result has reported it
            return
    if page is None:
        return
    expected = BenchmarkPage(manifest, kept, page, plots_dir, results_dir)
    for path in expected.missing_plots():
        yield f"{path}: missing, or drawn from other curves. Run `slm-lab benchmark table`"
    if not page.is_file() or page.read_text() != expected.text():
        yield f"{page}: is not what the results give. Run `slm-lab benchmark table`"


def audit_result(folder: Path, manifest: BenchmarkManifest) -> Iterator[str]:
    """Audit one folder of results."""
    name = folder.name
    row = manifest.by_id.get(name)
    if row is None:
        yield f"{name}: no row of the manifest has this name"
        return
    for file in (RESULT, SPEC, CURVE, PLOT):
        if not (folder / file).is_file():
            yield f"{name}: {file}: missing"
    try:
        kept = read_result(folder)
    except ResultError as error:
        yield f"{name}: {error}"
        return
    if kept is None:
        return
    if kept.result.row != name:
        yield f"{name}: {RESULT}: is the result of {kept.result.row}"
    yield from _audit_run(row, kept)
    found = kept.result.evaluation
    if found is None:
        yield f"{row.id}: evaluation: missing"
        return
    shown = (found.agent, found.policy, found.episodes, sorted(found.sessions))
    expected = ("last", "deterministic", EPISODES, list(range(row.settings.max_session)))
    if shown != expected:
        yield f"{row.id}: evaluation: of {shown}, expected {expected}"


def audit_folder(folder: str | Path, manifest: BenchmarkManifest) -> Iterator[str]:
    """Audit a run folder before it is collected."""
    try:
        run = open_run(folder, trial=0)
        if run.layout.search_dir().exists():
            yield f"{folder}: is a search, whose scores are no results"
            return
        row = row_of(run, manifest.rows)
        kept = gather(run, row)
    except LabError as error:
        yield str(error)
        return
    except (OSError, ValueError) as error:
        yield f"{folder}: cannot be read: {error}"
        return
    if not run.layout.trial_graph_copy(0, "mean_returns_ma").is_file():
        yield f"{folder}: its plot is missing"
    yield from _audit_run(row, kept)


def _audit_run(row: Row, kept: CollectedResult) -> Iterator[str]:
    """Check spec, settings, seed, mode, code version and scores."""
    yield from row_problems(row)
    yield from row_problems(row, kept.spec)
    for problem in spec_differences(row.spec(), kept.spec):
        yield f"{row.id}: spec: {problem}"
    if kept.result.seed != row.seed or kept.spec.meta.random_seed != row.seed:
        yield f"{row.id}: seed: the result has {kept.result.seed}, the row {row.seed}"
    yield from (f"{row.id}: {text}" for text in _audit_code(row, kept.result.provenance))
    yield from (f"{row.id}: {text}" for text in _audit_scores(row, kept))


def _audit_code(row: Row, provenance: Provenance) -> Iterator[str]:
    if provenance.mode != "train":
        yield f"mode: is of `{provenance.mode}`, expected train"
    shas = [sha for sha in provenance.git_shas if sha and re.fullmatch(r"[0-9a-f]{40}", sha)]
    if not shas or len(shas) < len(provenance.git_shas):
        yield f"code: git_shas {list(provenance.git_shas)}, expected the commit that ran"
    elif len(set(shas)) > 1 and not is_same_code(*shas):
        yield f"code: {len(set(shas))} commits worked on it, of different code: {', '.join(shas)}"
    if provenance.git_dirty:
        yield "code: the package differed from its commit (git_dirty)"
    version = provenance.versions.get("slm-lab")
    if provenance.versions and (version is None or _number(version) < _number(row.code_version)):
        yield f"code: slm-lab {version}, the row counts from {row.code_version} on"


def _audit_scores(row: Row, kept: CollectedResult) -> Iterator[str]:
    """Check the number of sessions, that each has its whole curve, and the mean of their scores."""
    result, curve = kept.result, kept.curve
    expected = list(range(row.settings.max_session))
    if sorted(result.sessions) != expected:
        yield f"sessions: found {sorted(result.sessions)}, expected {expected}"
    if list(curve.columns) != [f"session_{i}" for i in sorted(result.sessions)]:
        yield f"{CURVE}: has {list(curve.columns)}, the result other sessions"
        return
    for index, score in result.sessions.items():
        line = curve[f"session_{index}"].dropna()
        if line.empty or line.index[-1] < row.settings.max_frame:
            last = 0 if line.empty else line.index[-1]
            yield f"session {index} ends at frame {last} of {row.settings.max_frame}"
        elif not math.isclose(line.iloc[-1], score, rel_tol=CURVE_DIGITS, abs_tol=CURVE_DIGITS):
            yield f"session {index}: score {score}, but its curve ends at {line.iloc[-1]}"
    mean = sum(result.sessions.values()) / max(1, len(result.sessions))
    if not math.isclose(result.total_reward_ma, mean, rel_tol=1e-9, abs_tol=1e-9):
        found = f"total_reward_ma {result.total_reward_ma}"
        yield f"{found} is not the mean of its sessions, {mean}"


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
