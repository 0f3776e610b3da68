"""docs/BENCHMARKS.md, generated from the manifest and the results."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from slm_lab.analysis.metrics import random_baseline
from slm_lab.benchmark import MANIFEST_DIR
from slm_lab.benchmark.collect import EPISODES
from slm_lab.benchmark.manifest import BenchmarkManifest, Phase, Reference, Row, Settings, Table
from slm_lab.benchmark.plot import curves_digest, drawn_from, plot_algorithms
from slm_lab.benchmark.result import PLOT, CollectedResult, Result
from slm_lab.runs.resume import spec_differences

SOLVED, CLOSE, MEASURED, FAILED, PENDING, SKIPPED = "✅", "⚠️", "📊", "❌", "🔄", "Skip"
CLOSE_SHARE = 0.8
HEAD = """\
# Benchmarks

Written by `slm-lab benchmark table` from the [manifest]({manifest}) and the [results]({results});
not to be edited by hand.

- **MA** is `total_reward_ma`: training-time returns, exploration included. Each checkpoint is the
  mean of the last 100 episodes, the score the mean of the last 100 checkpoints. Mean over sessions
  (seeds) ± their standard deviation; bold where it reaches the documents' best.
- **Evaluated** is the mean return of the final agents over {episodes} fresh episodes each, with
  deterministic actions, ± the standard deviation over sessions.
- **Run time** is the whole training, every session, on a machine with that many cores; then the CPU
  time of all sessions together. Much less of it than cores × run time means that the machine did
  other work meanwhile.
- **Best** is the best training run of the original's documents, **Elsewhere** what others report,
  often under other conditions: see [Sources](#sources).

To make one row, or whatever is missing:

    slm-lab run SPEC_FILE SPEC_NAME train --seed 0
    slm-lab benchmark run --phase 1 --env CartPole-v1 --algo PPO
    slm-lab benchmark status

## Progress
"""
LEGEND = (
    f"**Legend**: {SOLVED} reaches its goal | {CLOSE} close (over {CLOSE_SHARE:.0%} of the way "
    f"from a random policy) | {FAILED} below | {MEASURED} measured, without a goal | {PENDING} not "
    f"run yet, or its spec changed since | {SKIPPED} left out | – not applicable"
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A row and its result; a result of a spec that has changed since does not count."""

    row: Row
    kept: CollectedResult | None

    @property
    def mark(self) -> str:
        if self.kept is None:
            return SKIPPED if self.row.skip else PENDING
        return mark(self.row, self.kept.result.total_reward_ma)


def mark(row: Row, score: float) -> str:
    """Mark of a score, compared with the goal of its row."""
    goal = row.goal
    if goal is None:
        return MEASURED
    if score >= goal:
        return SOLVED
    env_id = row.env.replace("LunarLanderContinuous", "LunarLander")
    zero = random_baseline(env_id) or 0.0
    return CLOSE if goal > zero and (score - zero) / (goal - zero) > CLOSE_SHARE else FAILED


def write_page(
    manifest: BenchmarkManifest,
    kept: Mapping[str, CollectedResult],
    *,
    page: Path,
    plots_dir: Path,
    results_dir: Path,
) -> None:
    """Write the page and every plot it shows; the same results give the same bytes."""
    cells = current_cells(manifest, kept)
    plots_dir.mkdir(parents=True, exist_ok=True)
    for title, curves in env_curves(manifest, cells).items():
        plot_algorithms(curves, plots_dir / plot_name(title), title=title)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(
        page_text(manifest, kept, page=page, plots_dir=plots_dir, results_dir=results_dir)
    )


def page_text(
    manifest: BenchmarkManifest,
    kept: Mapping[str, CollectedResult],
    *,
    page: Path,
    plots_dir: Path,
    results_dir: Path,
) -> str:
    cells = current_cells(manifest, kept)

    def link(path: Path) -> str:
        return Path(os.path.relpath(path, page.parent)).as_posix()

    lines = [HEAD.format(manifest=link(MANIFEST_DIR), results=link(results_dir), episodes=EPISODES)]
    lines += _phase_overview(manifest, cells)
    lines += ["", LEGEND, "", "## Results", ""]
    drawn = env_curves(manifest, cells)
    for phase in manifest.phases:
        lines += [f"### Phase {phase.phase}: {phase.name}", "", *_matrix(phase, cells), ""]
        for number, table in enumerate(phase.tables, 1):
            lines += [f"#### {phase.phase}.{number} {table.title}", ""]
            lines += _table(table, cells, link, results_dir)
            for env in table.envs:
                if env in drawn:
                    lines += ["", f"![{env}]({link(plots_dir / plot_name(env))})"]
            lines.append("")
    lines += ["## Sources", "", "| tag | what |", "|---|---|"]
    lines += [f"| {tag} | {text} |" for tag, text in manifest.sources.items()]
    return "\n".join(lines) + "\n"


def current_cells(
    manifest: BenchmarkManifest, kept: Mapping[str, CollectedResult]
) -> dict[str, Cell]:
    """Every row by its id, with its result if that is of the row's spec as it is today."""
    cells = {}
    for row in manifest.rows:
        found = kept.get(row.id)
        is_current = found is not None and not spec_differences(row.spec(), found.spec)
        cells[row.id] = Cell(row, found if is_current else None)
    return cells


def env_curves(
    manifest: BenchmarkManifest, cells: Mapping[str, Cell]
) -> dict[str, dict[str, pd.DataFrame]]:
    """Env -> algorithm -> its curves, for the envs that have any."""
    curves: dict[str, dict[str, pd.DataFrame]] = {}
    for row in manifest.rows:
        if (found := cells[row.id].kept) is not None:
            curves.setdefault(row.env, {})[row.algorithm] = found.curve
    return curves


def plot_name(env: str) -> str:
    return f"{env.replace('/', '_')}.png"


def missing_plots(
    manifest: BenchmarkManifest, kept: Mapping[str, CollectedResult], plots_dir: Path
) -> list[Path]:
    """Plots of the page that are missing or show other curves."""
    drawn = env_curves(manifest, current_cells(manifest, kept))
    paths = {plots_dir / plot_name(env): curves_digest(curves) for env, curves in drawn.items()}
    return [path for path, digest in paths.items() if drawn_from(path) != digest]


# Parts of the page


def _phase_overview(manifest: BenchmarkManifest, cells: Mapping[str, Cell]) -> list[str]:
    """Phase by algorithm: how many envs have which mark."""
    algorithms = list(dict.fromkeys(row.algorithm for row in manifest.rows))
    lines = _header("Phase", "Category", "Envs", *algorithms, "Overall")
    for phase in manifest.phases:
        rows = list(phase.rows)
        each = [
            _tally([cells[row.id] for row in rows if row.algorithm == name]) for name in algorithms
        ]
        envs = str(len({row.env for row in rows}))
        overall = _tally([cells[row.id] for row in rows])
        lines.append(_line(str(phase.phase), phase.name, envs, *each, overall))
    return lines


def _tally(cells: Sequence[Cell]) -> str:
    marks = [cell.mark for cell in cells]
    order = (SOLVED, MEASURED, CLOSE, FAILED, PENDING, SKIPPED)
    return " ".join(f"{m} {marks.count(m)}" for m in order if m in marks) or "–"


def _matrix(phase: Phase, cells: Mapping[str, Cell]) -> list[str]:
    """Env by algorithm."""
    lines = _header("Env", *phase.algorithms)
    by_place = {(row.env, row.algorithm): cells[row.id] for row in phase.rows}
    for env in dict.fromkeys(row.env for row in phase.rows):
        places = [by_place.get((env, name)) for name in phase.algorithms]
        lines.append(_line(env, *(place.mark if place else "–" for place in places)))
    return lines


def _table(
    table: Table, cells: Mapping[str, Cell], link: Callable[[Path], str], results_dir: Path
) -> list[str]:
    has_one_env = len(table.envs) == 1
    about = [f"**Docs**: [{table.title}]({table.docs})"]
    if has_one_env and (target := table.rows[0].target) is not None:
        about.append(f"Solved reward MA > {target:g}")
    lines = [" | ".join([*about, *filter(None, [table.about])]), ""]
    lines += [f"**Settings**: {_settings_of(table)}", ""]
    env_head = [] if has_one_env else ["Env"]
    lines += _header(
        *env_head,
        "Algorithm",
        "Status",
        "MA",
        "Evaluated",
        "Goal",
        "Best",
        "Elsewhere",
        "SPEC_FILE",
        "SPEC_NAME",
        "Folder",
        "Run time",
    )
    for row in table.rows:
        cell = cells[row.id]
        env = [] if has_one_env else [row.env]
        spec_file = f"[{row.spec_file}]({link(Path(row.spec_file))})"
        flags = "".join(f" `-s {flag}`" for flag in row.sets)
        lines.append(
            _line(
                *env,
                row.algorithm,
                cell.mark,
                *_scores(row, cell.kept.result if cell.kept else None),
                "" if row.goal is None else f"{row.goal:g}",
                _reference(row.best),
                "; ".join(map(_reference, row.references)),
                spec_file,
                f"{row.spec_name}{flags}",
                *_run(cell, link, results_dir),
            )
        )
    notes = [(row, row.skip or row.note) for row in table.rows if row.skip or row.note]
    return lines + [""] * bool(notes) + [f"- {_title(row, table)}: {note}." for row, note in notes]


def _title(row: Row, table: Table) -> str:
    return row.algorithm if len(table.envs) == 1 else f"{row.env} {row.algorithm}"


def _settings_of(table: Table) -> str:
    """The Settings shared by the rows, and those of single rows where they differ."""
    names = list(Settings.model_fields)
    parts = []
    for name in names:
        by_value: dict[int, list[str]] = {}
        for row in table.rows:
            by_value.setdefault(getattr(row.settings, name), []).append(row.algorithm)
        shown = [
            _count(value) if len(by_value) == 1 else f"{_count(value)} ({', '.join(_unique(who))})"
            for value, who in by_value.items()
        ]
        parts.append(f"{name} {', '.join(shown)}")
    return " | ".join(parts)


def _scores(row: Row, result: Result | None) -> tuple[str, str]:
    if result is None:
        return "–", "–"
    few = f" ({len(result.sessions)} sessions)" if len(result.sessions) < 4 else ""
    ma = _with_spread(result.total_reward_ma, result.spread)
    if row.best is not None and result.total_reward_ma >= row.best.score:
        ma = f"**{ma}**"
    evaluated = (
        _with_spread(result.evaluation.mean, result.evaluation_spread) if result.evaluation else "–"
    )
    return f"{ma}{few}", evaluated


def _run(cell: Cell, link: Callable[[Path], str], results_dir: Path) -> tuple[str, str]:
    """The folder, with its commit and plot, and the run time."""
    if cell.kept is None:
        return "", ""
    result, provenance = cell.kept.result, cell.kept.result.provenance
    sha = (provenance.git_shas[-1] or "unknown")[:9]
    folder = results_dir / cell.row.id
    state = " (tree not checked)" if provenance.git_dirty is None else ""
    state = " with changes" if provenance.git_dirty else state
    place = f"[{result.folder}]({link(folder)}) at `{sha}`{state}, [plot]({link(folder / PLOT)})"
    if provenance.seconds is None:
        return place, "not recorded"
    cpu = f" (CPU {_time(provenance.cpu_seconds)})" if provenance.cpu_seconds is not None else ""
    return place, f"{_time(provenance.seconds)} on {provenance.cores} cores{cpu}"


def _reference(reference: Reference | None) -> str:
    if reference is None:
        return ""
    algorithm = f"{reference.algorithm} " if reference.algorithm else ""
    spread = f" ± {reference.spread:g}" if reference.spread is not None else ""
    frames = f" @{_count(reference.frames)}" if reference.frames else ""
    note = f" ({reference.note})" if reference.note else ""
    return f"{algorithm}{_number(reference.score)}{spread}{frames} {reference.source}{note}"


def _with_spread(value: float, spread: float | None) -> str:
    return f"{value:.2f}" if spread is None else f"{value:.2f} ± {spread:.2f}"


def _number(value: float) -> str:
    return f"{value:.10g}"


def _count(value: int) -> str:
    """200000 as the documents write it: 2e5."""
    mantissa, _, exponent = f"{value:e}".partition("e")
    if value < 10_000:
        return str(value)
    return f"{float(mantissa):g}e{int(exponent)}"


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def _unique(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _header(*names: str) -> list[str]:
    return [_line(*names), "|" + "---|" * len(names)]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
