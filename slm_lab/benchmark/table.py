"""docs/BENCHMARKS.md, generated from the manifest and the results."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from slm_lab.analysis.metrics import random_baseline
from slm_lab.benchmark import MANIFEST_DIR
from slm_lab.benchmark.manifest import BenchmarkManifest, Phase, Reference, Row, Settings, Table
from slm_lab.benchmark.result import (
    EPISODES,
    PLOT,
    CollectedResult,
    Result,
    curves_digest,
    drawn_from,
    plot_algorithms,
)
from slm_lab.runs.resume import spec_differences

SOLVED, CLOSE, MEASURED, FAILED, PENDING, SKIPPED = "✅", "⚠️", "📊", "❌", "🔄", "Skip"
CLOSE_SHARE = 0.8
SCORE_COLUMNS = ("Algorithm", "Status", "MA", "Evaluated", "Goal", "Best", "Elsewhere")
RUN_COLUMNS = ("SPEC_FILE", "SPEC_NAME", "Folder", "Run time")
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


@dataclass(frozen=True)
class BenchmarkPage:
    """The page of a manifest and its results, and the places that it links to."""

    manifest: BenchmarkManifest
    kept: Mapping[str, CollectedResult]
    page: Path
    plots_dir: Path
    results_dir: Path

    @cached_property
    def current(self) -> dict[str, CollectedResult]:
        """Results by row; one of a spec that has changed since does not count."""
        rows = (row for row in self.manifest.rows if row.id in self.kept)
        found = ((row, self.kept[row.id]) for row in rows)
        return {row.id: kept for row, kept in found if not spec_differences(row.spec(), kept.spec)}

    @cached_property
    def curves(self) -> dict[str, dict[str, pd.DataFrame]]:
        """Env -> algorithm -> its curves, for the envs that have any."""
        curves: dict[str, dict[str, pd.DataFrame]] = {}
        for row in self.manifest.rows:
            if (found := self.current.get(row.id)) is not None:
                curves.setdefault(row.env, {})[row.algorithm] = found.curve
        return curves

    def plot_path(self, env: str) -> Path:
        return self.plots_dir / f"{env.replace('/', '_')}.png"

    def missing_plots(self) -> list[Path]:
        """Plots of the page that are missing or show other curves."""
        drawn = {self.plot_path(env): curves_digest(curves) for env, curves in self.curves.items()}
        return [path for path, digest in drawn.items() if drawn_from(path) != digest]

    def write(self) -> None:
        """Write the page and every plot it shows; the same results give the same bytes."""
        self.plots_dir.mkdir(parents=True, exist_ok=True)
        for env, curves in self.curves.items():
            plot_algorithms(curves, self.plot_path(env), title=env)
        self.page.parent.mkdir(parents=True, exist_ok=True)
        self.page.write_text(self.text())

    def text(self) -> str:
        places = {"manifest": self._link(MANIFEST_DIR), "results": self._link(self.results_dir)}
        lines = [HEAD.format(**places, episodes=EPISODES), *self._phase_overview()]
        lines += ["", LEGEND, "", "## Results", ""]
        for phase in self.manifest.phases:
            lines += [f"### Phase {phase.phase}: {phase.name}", "", *self._matrix(phase), ""]
            for number, table in enumerate(phase.tables, 1):
                lines += [f"#### {phase.phase}.{number} {table.title}", "", *self._table(table)]
                for env in table.envs:
                    if env in self.curves:
                        lines += ["", f"![{env}]({self._link(self.plot_path(env))})"]
                lines.append("")
        lines += ["## Sources", "", "| tag | what |", "|---|---|"]
        lines += [f"| {tag} | {text} |" for tag, text in self.manifest.sources.items()]
        return "\n".join(lines) + "\n"

    def _link(self, path: Path) -> str:
        return Path(os.path.relpath(path, self.page.parent)).as_posix()

    def _mark(self, row: Row) -> str:
        if (found := self.current.get(row.id)) is not None:
            return mark(row, found.result.total_reward_ma)
        return SKIPPED if row.skip else PENDING

    def _phase_overview(self) -> list[str]:
        """Phase by algorithm: how many envs have which mark."""
        algorithms = list(dict.fromkeys(row.algorithm for row in self.manifest.rows))
        lines = _header("Phase", "Category", "Envs", *algorithms, "Overall")
        for phase in self.manifest.phases:
            rows = list(phase.rows)
            each = [self._tally([r for r in rows if r.algorithm == name]) for name in algorithms]
            envs = str(len({row.env for row in rows}))
            lines.append(_line(str(phase.phase), phase.name, envs, *each, self._tally(rows)))
        return lines

    def _tally(self, rows: Sequence[Row]) -> str:
        marks = [self._mark(row) for row in rows]
        order = (SOLVED, MEASURED, CLOSE, FAILED, PENDING, SKIPPED)
        return " ".join(f"{m} {marks.count(m)}" for m in order if m in marks) or "–"

    def _matrix(self, phase: Phase) -> list[str]:
        """Env by algorithm."""
        lines = _header("Env", *phase.algorithms)
        marks = {(row.env, row.algorithm): self._mark(row) for row in phase.rows}
        for env in dict.fromkeys(row.env for row in phase.rows):
            lines.append(_line(env, *(marks.get((env, name), "–") for name in phase.algorithms)))
        return lines

    def _table(self, table: Table) -> list[str]:
        has_one_env = len(table.envs) == 1
        about = [f"**Docs**: [{table.title}]({table.docs})"]
        if has_one_env and (target := table.rows[0].target) is not None:
            about.append(f"Solved reward MA > {target:g}")
        lines = [" | ".join([*about, *filter(None, [table.about])]), ""]
        lines += [f"**Settings**: {_settings_of(table)}", ""]
        lines += _header(*([] if has_one_env else ["Env"]), *SCORE_COLUMNS, *RUN_COLUMNS)
        notes = []
        for row in table.rows:
            name = [row.algorithm] if has_one_env else [row.env, row.algorithm]
            lines.append(_line(*name, *self._cells(row)))
            if note := row.skip or row.note:
                notes.append(f"- {' '.join(name)}: {note}.")
        return [*lines, "", *notes] if notes else lines

    def _cells(self, row: Row) -> list[str]:
        """The cells of a row after its name."""
        kept = self.current.get(row.id)
        return [
            self._mark(row),
            *(("–", "–") if kept is None else _scores(row, kept.result)),
            "" if row.goal is None else f"{row.goal:g}",
            _reference(row.best) if row.best else "",
            "; ".join(map(_reference, row.references)),
            f"[{row.spec_file}]({self._link(Path(row.spec_file))})",
            f"{row.spec_name}{''.join(f' `-s {flag}`' for flag in row.sets)}",
            *(("", "") if kept is None else self._run(row, kept.result)),
        ]

    def _run(self, row: Row, result: Result) -> tuple[str, str]:
        """The folder, with its commit and plot, and the run time."""
        provenance, folder = result.provenance, self.results_dir / row.id
        sha = (provenance.git_shas[-1] or "unknown")[:9]
        state = {None: " (tree not checked)", True: " with changes", False: ""}
        place = f"[{result.folder}]({self._link(folder)}) at `{sha}`{state[provenance.git_dirty]}"
        place += f", [plot]({self._link(folder / PLOT)})"
        if provenance.seconds is None:
            return place, "not recorded"
        cpu = provenance.cpu_seconds
        time = f"{_time(provenance.seconds)} on {provenance.cores} cores"
        return place, time if cpu is None else f"{time} (CPU {_time(cpu)})"


# Cells as text


def _settings_of(table: Table) -> str:
    """The Settings shared by the rows, and those of single rows where they differ."""
    parts = []
    for name in Settings.model_fields:
        by_value: dict[int, dict[str, None]] = {}
        for row in table.rows:
            by_value.setdefault(getattr(row.settings, name), {})[row.algorithm] = None
        shown = [
            _count(value) if len(by_value) == 1 else f"{_count(value)} ({', '.join(who)})"
            for value, who in by_value.items()
        ]
        parts.append(f"{name} {', '.join(shown)}")
    return " | ".join(parts)


def _scores(row: Row, result: Result) -> tuple[str, str]:
    few = f" ({len(result.sessions)} sessions)" if len(result.sessions) < 4 else ""
    ma = _with_spread(result.total_reward_ma, result.sessions)
    if row.best is not None and result.total_reward_ma >= row.best.score:
        ma = f"**{ma}**"
    played = result.evaluation
    return f"{ma}{few}", _with_spread(played.mean, played.sessions) if played else "–"


def _with_spread(mean: float, sessions: Mapping[int, float]) -> str:
    """A mean ± the standard deviation over sessions."""
    spread = f" ± {statistics.stdev(sessions.values()):.2f}" if len(sessions) > 1 else ""
    return f"{mean:.2f}{spread}"


def _reference(reference: Reference) -> str:
    algorithm = f"{reference.algorithm} " if reference.algorithm else ""
    spread = f" ± {reference.spread:g}" if reference.spread is not None else ""
    frames = f" @{_count(reference.frames)}" if reference.frames else ""
    note = f" ({reference.note})" if reference.note else ""
    return f"{algorithm}{reference.score:.10g}{spread}{frames} {reference.source}{note}"


def _count(value: int) -> str:
    """200000 as the documents write it: 2e5."""
    mantissa, _, exponent = f"{value:e}".partition("e")
    return str(value) if value < 10_000 else f"{float(mantissa):g}e{int(exponent)}"


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def _header(*names: str) -> list[str]:
    return [_line(*names), "|" + "---|" * len(names)]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
