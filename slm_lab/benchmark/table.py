"""docs/BENCHMARKS.md, generated from the manifest and the results."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from slm_lab.analysis import robust
from slm_lab.analysis.metrics import random_baseline
from slm_lab.analysis.robust import interval
from slm_lab.benchmark import MANIFEST_DIR
from slm_lab.benchmark.ledger import attempts, read_ledger
from slm_lab.benchmark.manifest import BenchmarkManifest, Phase, Reference, Row, Settings, Table
from slm_lab.benchmark.plots import curves_digest, drawn_from, plot_algorithms
from slm_lab.benchmark.result import EPISODES, PLOT, CollectedResult, Result, is_derived
from slm_lab.benchmark.seeds import fingerprint

SOLVED, CLOSE, MEASURED, FAILED, PENDING, SKIPPED = "✅", "⚠️", "📊", "❌", "🔄", "Skip"
HAND_PICKED, WEAK, LATER = "✋", "⬇", "†"
CLOSE_SHARE = 0.8
WEAK_SHARE = 0.5
FEW = 4  # sessions, below which a mean says little
SCORE_COLUMNS = (
    *("Algorithm", "Status", "MA", "Sessions", "Evaluated", "Goal", "Best", "Differs", "Attempts"),
    "Elsewhere",
)
RUN_COLUMNS = ("SPEC_FILE", "SPEC_NAME", "Folder", "Run time")
HEAD = """\
# Benchmarks

Written by `slm-lab benchmark table` from the [manifest]({manifest}) and the [results]({results});
not to be edited by hand.

The seed of a run is derived from the hash of its spec, so that whoever changes a spec gets seeds
that nobody has seen. Every attempt at a row is entered into its ledger, `attempts.jsonl`, when it
starts and when it ends, and is counted in the table. `slm-lab benchmark audit` recomputes seeds and
scores, and fails where they are not those of the ledger.

- **MA** is `total_reward_ma`: training-time returns, exploration included. Each checkpoint is the
  mean of the last 100 episodes, the score the mean of the last 100 checkpoints. Mean over sessions
  with its 95 % interval (bootstrap over sessions; ± the standard deviation where there are two).
- **Bold** where the lower end of the interval, or the mean of at least {few} sessions, reaches the
  documents' best.
- **Sessions**: how many, their interquartile mean (IQM) and the worst; {weak} marks how many are
  below half of the way from a random policy to the goal. A row is robust if none is.
- **Evaluated** is the mean return of the final agents over {episodes} fresh episodes each, with
  deterministic actions, ± the standard deviation over sessions.
- **Goal**: in brackets, targets of other versions of the documents.
- **Best** is the best training run of the original's documents, {later} if that is newer than those
  that this lab was built from. **Elsewhere** is what others report, often under other conditions:
  see [Sources](#sources).
- **Differs**: our setting where the documents, or the specs that they name, had another, theirs in
  brackets. `batch` is the rows of a gradient step. bf16 is `meta.precision: bfloat16`.
- **Attempts**: trainings begun for the row, those of earlier specs and failed ones included.
- **Run time** is the whole training, every session, on a machine with that many cores; then the CPU
  time of all sessions together. Much less of it than cores × run time means that the machine did
  other work meanwhile.

A folder of results holds the final policies where they are small: `slm-lab enjoy results/ROW` and
`slm-lab eval results/ROW` play them. To make one row, or whatever is missing:

    slm-lab benchmark run --phase 1 --env CartPole-v1 --algo PPO
    slm-lab benchmark status

## Progress
"""
LEGEND = (
    f"**Legend**: {SOLVED} reaches its goal | {CLOSE} close (over {CLOSE_SHARE:.0%} of the way "
    f"from a random policy) | {FAILED} below | {MEASURED} measured, without a goal | {HAND_PICKED} "
    "of a seed that was picked by hand, before seeds were derived: it counts as nothing and will "
    f"be replaced | {PENDING} not run yet, or its spec changed since | {SKIPPED} left out | – not "
    "applicable"
)


def mark(row: Row, score: float) -> str:
    """Mark of a score, compared with the goal of its row."""
    if (share := share_of_goal(row, score)) is None:
        return MEASURED
    return SOLVED if share >= 1.0 else CLOSE if share > CLOSE_SHARE else FAILED


def share_of_goal(row: Row, score: float) -> float | None:
    """How far a score is on the way from a random policy (0) to the goal (1)."""
    goal = row.goal
    if goal is None:
        return None
    if score >= goal:
        return 1.0
    env_id = row.env.replace("LunarLanderContinuous", "LunarLander")
    zero = random_baseline(env_id) or 0.0
    return (score - zero) / (goal - zero) if goal > zero else 0.0


def weak_sessions(row: Row, result: Result) -> int | None:
    """How many sessions are below half of the way to the goal; None without a goal."""
    shares = [share_of_goal(row, score) for score in result.scores.values()]
    known = [share for share in shares if share is not None]
    return sum(share < WEAK_SHARE for share in known) if len(known) == len(shares) else None


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
        return {r.id: kept for r, kept in found if fingerprint(r.spec()) == kept.result.fingerprint}

    @cached_property
    def curves(self) -> dict[str, dict[str, pd.DataFrame]]:
        """Env -> algorithm -> its curves, for the envs that have any."""
        curves: dict[str, dict[str, pd.DataFrame]] = {}
        for row in self.manifest.rows:
            if (found := self.current.get(row.id)) is not None:
                curves.setdefault(row.env, {})[row.label] = found.curve
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
        signs = {"few": FEW, "weak": WEAK, "later": LATER, "episodes": EPISODES}
        lines = [HEAD.format(**places, **signs), *self._phase_overview()]
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
        for tag, source in self.manifest.sources.items():
            lines.append(f"| {tag}{LATER if source.is_later else ''} | {source.what} |")
        return "\n".join(lines) + "\n"

    def _link(self, path: Path) -> str:
        return Path(os.path.relpath(path, self.page.parent)).as_posix()

    def _mark(self, row: Row) -> str:
        if (found := self.current.get(row.id)) is not None:
            derived = is_derived(found.result)
            return mark(row, found.result.total_reward_ma) if derived else HAND_PICKED
        return SKIPPED if row.skip else PENDING

    def _phase_overview(self) -> list[str]:
        """Phase by algorithm: how many envs have which mark."""
        algorithms = list(dict.fromkeys(row.algorithm for row in self.manifest.rows))
        lines = _header("Phase", "Category", "Envs", *algorithms, "Overall", "Robust")
        for phase in self.manifest.phases:
            rows = list(phase.rows)
            each = [self._tally([r for r in rows if r.algorithm == name]) for name in algorithms]
            envs = str(len({row.env for row in rows}))
            cells = (str(phase.phase), phase.name, envs, *each, self._tally(rows))
            lines.append(_line(*cells, self._robust(rows)))
        return lines

    def _robust(self, rows: Sequence[Row]) -> str:
        """How many of the rows with a score have no weak session."""
        found = [(row, self.current[row.id].result) for row in rows if row.id in self.current]
        weak = [weak_sessions(row, result) for row, result in found if is_derived(result)]
        known = [number for number in weak if number is not None]
        return f"{known.count(0)} of {len(known)} rows" if known else "–"

    def _tally(self, rows: Sequence[Row]) -> str:
        marks = [self._mark(row) for row in rows]
        order = (SOLVED, MEASURED, CLOSE, FAILED, HAND_PICKED, PENDING, SKIPPED)
        return " ".join(f"{m} {marks.count(m)}" for m in order if m in marks) or "–"

    def _matrix(self, phase: Phase) -> list[str]:
        """Env by algorithm, its variants side by side."""
        lines = _header("Env", *phase.algorithms)
        marks: dict[tuple[str, str], list[str]] = {}
        for row in phase.rows:
            marks.setdefault((row.env, row.algorithm), []).append(self._mark(row))
        for env in dict.fromkeys(row.env for row in phase.rows):
            each = (" ".join(marks.get((env, name), ["–"])) for name in phase.algorithms)
            lines.append(_line(env, *each))
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
            name = [row.label] if has_one_env else [row.env, row.label]
            lines.append(_line(*name, *self._cells(row)))
            if note := row.skip or row.note:
                notes.append(f"- {' '.join(name)}: {note}.")
        return [*lines, "", *notes] if notes else lines

    def _cells(self, row: Row) -> list[str]:
        """The cells of a row after its name."""
        kept = self.current.get(row.id)
        return [
            self._mark(row),
            *(("–", "–", "–") if kept is None else _scores(row, kept.result)),
            _goal(row),
            self._reference(row.best) if row.best else "",
            "; ".join(differences(row)),
            str(len(attempts(read_ledger(self.results_dir / row.id))) or ""),
            "; ".join(map(self._reference, row.references)),
            f"[{row.spec_file}]({self._link(Path(row.spec_file))})",
            f"{row.spec_name}{''.join(f' `-s {flag}`' for flag in row.sets)}",
            *(("", "") if kept is None else self._run(row, kept.result)),
        ]

    def _run(self, row: Row, result: Result) -> tuple[str, str]:
        """The run folders, with their commits, the plot, and the run time."""
        folder, places = self.results_dir / row.id, []
        for trial in result.trials:
            made = trial.provenance
            state = {None: " (tree not checked)", True: " with changes", False: ""}[made.git_dirty]
            places.append(f"{trial.folder} at `{(made.git_shas[-1] or 'unknown')[:9]}`{state}")
        place = f"[{row.id}]({self._link(folder)}): {', '.join(places)}"
        place += f", [plot]({self._link(folder / PLOT)})"
        made = result.trials[0].provenance
        seconds = [trial.provenance.seconds for trial in result.trials]
        cpu = [trial.provenance.cpu_seconds for trial in result.trials]
        if None in seconds:
            return place, "not recorded"
        time = f"{_time(seconds)} on {made.cores} cores"
        return place, time if None in cpu else f"{time} (CPU {_time(cpu)})"

    def _reference(self, reference: Reference) -> str:
        algorithm = f"{reference.algorithm} " if reference.algorithm else ""
        spread = f" ± {reference.spread:g}" if reference.spread is not None else ""
        frames = f" @{_count(reference.frames)}" if reference.frames else ""
        note = f" ({reference.note})" if reference.note else ""
        source = reference.source
        later = LATER if self.manifest.sources[source].is_later else ""
        return f"{algorithm}{reference.score:.10g}{spread}{frames} {source}{later}{note}"


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
        if name == "max_session" and (trials := {row.trials for row in table.rows}) != {1}:
            parts.append(f"trials {', '.join(map(str, sorted(trials)))}")
    return " | ".join(parts)


def _scores(row: Row, result: Result) -> tuple[str, str, str]:
    """MA, what of its sessions it hides, and the evaluation."""
    scores, derived = np.array(list(result.scores.values())), is_derived(result)
    found = interval([scores], statistic=robust.mean)
    ma = _with_spread(result.scores)
    if found is not None:
        ma = f"{result.total_reward_ma:.2f} [{found[0]:.2f}, {found[1]:.2f}]"
    if derived and row.best is not None:
        lower = -math.inf if found is None else found[0]
        mean = result.total_reward_ma if len(scores) >= FEW else -math.inf
        if max(lower, mean) >= row.best.score:
            ma = f"**{ma}**"
    of = f" of {row.sessions}" if len(scores) < row.sessions and derived else ""
    iqm = f"{robust.interquartile_mean([scores]):.2f}"
    weak = weak_sessions(row, result)
    shown = f"{len(scores)}{of}, IQM {iqm}, worst {scores.min():.2f}"
    shown += f", {WEAK} {weak} of {len(scores)}" if weak else ""
    return ma, shown, _with_spread(result.evaluated) if result.evaluated else "–"


def _with_spread(sessions: Mapping[str, float]) -> str:
    """A mean ± the standard deviation over sessions."""
    spread = f" ± {statistics.stdev(sessions.values()):.2f}" if len(sessions) > 1 else ""
    return f"{statistics.fmean(sessions.values()):.2f}{spread}"


def _goal(row: Row) -> str:
    others = ", ".join(f"{source} {score:g}" for source, score in row.other_targets.items())
    return ("" if row.goal is None else f"{row.goal:g}") + (f" ({others})" if others else "")


def differences(row: Row) -> list[str]:
    """Settings of a row that the documents had other values of, theirs in brackets."""
    spec = row.spec()
    pace = spec.agent.algorithm.pace(spec)
    settings = row.settings
    ours = {
        "max_frame": settings.max_frame,
        "num_envs": settings.num_envs,
        "sessions": row.sessions,
        "log_frequency": settings.log_frequency,
        "batch": spec.agent.algorithm.step_rows(spec),
        "updates_per_frame": None if pace.whole_episodes else pace.gradient_steps / pace.frames,
    }
    theirs = row.documents.model_dump()
    found = [
        f"{name} {_count(ours[name])} ({_count(value)})"
        for name, value in theirs.items()
        if value is not None and value != ours[name]
    ]
    return found if spec.meta.precision == "float32" else [*found, "bf16"]


def _count(value: object) -> str:
    """200000 as the documents write it: 2e5."""
    if not isinstance(value, int) or value < 10_000:
        return f"{value:.3g}" if isinstance(value, float) else str(value)
    mantissa, _, exponent = f"{value:e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def _time(parts: Sequence[float | None]) -> str:
    seconds = sum(filter(None, parts))
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def _header(*names: str) -> list[str]:
    return [_line(*names), "|" + "---|" * len(names)]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
