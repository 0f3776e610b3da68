"""Audit of results, run folders and the page: one line per offence.

It looks for the errors that tables kept by hand had: search scores taken for results, settings that
drifted, overrides without effect, missing plots.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from slm_lab.benchmark.collect import EPISODES, gather, row_of
from slm_lab.benchmark.manifest import BenchmarkManifest, Row, row_problems
from slm_lab.benchmark.result import (
    CURVE,
    PLOT,
    RESULT,
    SPEC,
    CollectedResult,
    Provenance,
    ResultError,
    read_result,
    result_folders,
)
from slm_lab.benchmark.table import BenchmarkPage
from slm_lab.error import LabError
from slm_lab.runs.find import open_run
from slm_lab.runs.provenance import is_same_code
from slm_lab.runs.resume import spec_differences

CURVE_DIGITS = 1e-4  # the curve is kept with six digits


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
