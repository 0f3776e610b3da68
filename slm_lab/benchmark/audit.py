"""Audit results, their ledgers, run folders and the page: one line per offence.

A line that begins with `note:` is no offence: what readers should know of a result that stands.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from slm_lab.benchmark.collect import gather, row_of
from slm_lab.benchmark.ledger import gaps, last_entries, read_ledger, taken_out
from slm_lab.benchmark.manifest import BenchmarkManifest, Row, row_problems
from slm_lab.benchmark.result import (
    EPISODES,
    PLOT,
    RESULT,
    RETURNS,
    CollectedResult,
    Provenance,
    Result,
    ResultError,
    TrialResult,
    read_result,
    result_folders,
    spec_path,
)
from slm_lab.benchmark.seeds import changed_keys, derived_seed, fingerprint
from slm_lab.benchmark.table import BenchmarkPage
from slm_lab.error import LabError
from slm_lab.runs.find import open_run
from slm_lab.runs.provenance import is_same_code

NOTE = "note: "
PRECISION = 1e-6  # returns are kept with eight digits
CURVE_PRECISION = 1e-4  # curves of before were kept with six
HAND_PICKED = "hand_picked.json"


def audit_results(
    manifest: BenchmarkManifest, results_dir: Path, *, page: Path | None, plots_dir: Path
) -> Iterator[str]:
    """Audit every folder of results, and the page that shows them unless `page` is None."""
    kept: dict[str, CollectedResult] = {}
    is_whole = True
    yield from taken_out(results_dir)
    for folder in result_folders(results_dir):
        yield from audit_result(folder, manifest)
        try:
            if (found := read_result(folder)) is not None:
                kept[folder.name] = found
        except ResultError:  # audit_result has reported it
            is_whole = False
    if page is None or not is_whole:
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
    yield from (f"{name}: {problem}" for problem in gaps(folder))
    if not (folder / RESULT).is_file():
        if not read_ledger(folder):
            yield f"{name}: {RESULT}: missing"
        return
    is_old = is_hand_picked(folder)
    for file in (spec_path(folder).name, PLOT, *(() if is_old else (RETURNS,))):
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
    for text in _audit_kept(row, kept):
        yield f"{NOTE}{name}: {text[len(NOTE) :]}" if text.startswith(NOTE) else f"{name}: {text}"
    if is_old:
        seed = kept.result.trials[0].seed
        yield f"{NOTE}{name}: seed {seed} was picked by hand, run it again"
        return
    problems = (*_audit_seeds(kept.result), *_audit_ledger(folder, kept.result))
    yield from (f"{name}: {problem}" for problem in problems)


def audit_folder(folder: str | Path, manifest: BenchmarkManifest) -> Iterator[str]:
    """Audit a run folder before it is collected."""
    try:
        run = open_run(folder, trial=0)
        row, _ = row_of(run, manifest.rows)
        kept = gather([run], row)
    except LabError as error:
        yield str(error)
        return
    except (OSError, ValueError) as error:
        yield f"{folder}: cannot be read: {error}"
        return
    if not run.layout.trial_graph_copy(0, "mean_returns_ma").is_file():
        yield f"{folder}: its plot is missing"
    yield from (f"{row.id}: {text}" for text in _audit_kept(row, kept, is_collected=False))


def is_hand_picked(folder: Path) -> bool:
    """Whether a result is one of those of before seeds were derived.

    `hand_picked.json` lists them with the digest of their result, so that none can be added.
    """
    path = folder.parent / HAND_PICKED
    listed: Mapping[str, str] = json.loads(path.read_text()) if path.is_file() else {}
    digest = hashlib.sha256((folder / RESULT).read_bytes()).hexdigest()
    return listed.get(folder.name) == digest


def _audit_kept(row: Row, kept: CollectedResult, *, is_collected: bool = True) -> Iterator[str]:
    """Check spec, Settings, code version, scores and, once collected, evaluations."""
    result = kept.result
    row = row.limited(kept.spec.meta.max_session, len(result.trials))
    if result.fingerprint != fingerprint(kept.spec):
        yield "spec: is not the one that ran, by its fingerprint"
    elif result.fingerprint != fingerprint(today := row.spec()):
        changed = ", ".join(changed_keys(today, kept.spec))
        yield f"{NOTE}is of another spec than today's ({changed}), run it again"
    else:
        for problem in (*row_problems(row), *row_problems(row, kept.spec)):
            yield problem.removeprefix(f"{row.id}: ")
    for trial in result.trials:
        yield from _audit_code(row, trial.provenance)
        yield from _audit_trial(row, trial, is_collected)
    yield from _audit_scores(row, kept)


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


def _audit_trial(row: Row, trial: TrialResult, is_collected: bool) -> Iterator[str]:
    expected = list(range(row.settings.max_session))
    if sorted(trial.sessions) != expected:
        yield f"sessions: found {sorted(trial.sessions)}, expected {expected}"
    if not is_collected:
        return
    if (found := trial.evaluation) is None:
        yield "evaluation: missing"
        return
    shown = (found.agent, found.policy, found.episodes, sorted(found.sessions))
    if shown != (asked := ("last", "deterministic", EPISODES, expected)):
        yield f"evaluation: of {shown}, expected {asked}"


def _audit_scores(row: Row, kept: CollectedResult) -> Iterator[str]:
    """Recompute every score from the returns, and the mean from the scores."""
    result, averages = kept.result, kept.averages
    precision = CURVE_PRECISION if kept.returns is None else PRECISION
    scores = result.scores
    if list(averages.columns) != list(scores):
        yield f"{RETURNS}: has {list(averages.columns)}, the result {list(scores)}"
        return
    for session, score in scores.items():
        line = averages[session].dropna()
        last = 0 if line.empty else line.index[-1]
        if last < kept.spec.env.max_frame:
            yield f"session {session} ends at frame {last} of {kept.spec.env.max_frame}"
        elif not math.isclose(line.iloc[-1], score, rel_tol=precision, abs_tol=precision):
            yield f"session {session}: score {score}, but its returns give {line.iloc[-1]}"
    mean = sum(scores.values()) / max(1, len(scores))
    if not math.isclose(result.total_reward_ma, mean, rel_tol=1e-9, abs_tol=1e-9):
        found = f"total_reward_ma {result.total_reward_ma}"
        yield f"{found} is not the mean of its sessions, {mean}"


def _audit_seeds(result: Result) -> Iterator[str]:
    for index, trial in enumerate(result.trials):
        expected = derived_seed(result.fingerprint, index)
        if trial.seed != expected:
            told = f"found {trial.seed}, but the one derived from its spec is {expected}"
            yield f"seed of trial {index}: {told}"


def _audit_ledger(folder: Path, result: Result) -> Iterator[str]:
    """Every trial stands in the ledger as it is in the result."""
    try:
        last = last_entries(read_ledger(folder))
    except LabError:  # `gaps` has reported it
        return
    for index, trial in enumerate(result.trials):
        entry = last.get(trial.folder)
        if entry is None or not entry.is_finished:
            yield f"ledger: trial {index}, {trial.folder}, did not finish there"
            continue
        told = (entry.fingerprint, entry.trial, entry.seed, dict(entry.sessions))
        if told != (result.fingerprint, index, trial.seed, dict(trial.sessions)):
            yield f"ledger: trial {index}, {trial.folder}, has other seeds or scores there"


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
