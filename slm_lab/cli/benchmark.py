"""`slm-lab benchmark`: run the rows of the tables, show their status, collect, write, audit."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from slm_lab.benchmark import PAGE, PLOTS_DIR, RESULTS_DIR
from slm_lab.cli.options import DATA, FAILED, Data, LogLevel, RunFolders, print_table

if TYPE_CHECKING:
    from slm_lab.benchmark.runner import BenchmarkOutcome, Step
    from slm_lab.benchmark.state import RowState

app = typer.Typer(
    help="The benchmark tables: run what is missing, collect, write docs/BENCHMARKS.md, audit.",
    no_args_is_help=True,
)

Phases = Annotated[list[int] | None, Option("--phase", help="Phase, 1 to 5. Repeatable.")]
Envs = Annotated[
    list[str] | None, Option("--env", help="Env, or part of its name; * works. Repeatable.")
]
Algorithms = Annotated[
    list[str] | None, Option("--algo", help="Algorithm, such as PPO. Repeatable.")
]
ManifestPath = Annotated[Path | None, Option(help="Another manifest: a folder, or a file of it.")]
Results = Annotated[Path, Option(help="Folder of the collected results.")]
Page = Annotated[Path, Option(help="The page that is written.")]
Plots = Annotated[Path, Option(help="Folder of the page's plots.")]


@app.command()
def run(
    phases: Phases = None,
    envs: Envs = None,
    algorithms: Algorithms = None,
    budget: Annotated[
        float | None, Option(min=0.0, metavar="HOURS", help="Stop cleanly after so many hours.")
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print what would run and how long, and exit.")
    ] = False,
    retry: Annotated[bool, Option("--retry", help="Also rows whose last run failed.")] = False,
    trials: Annotated[
        int | None, Option(min=1, help="Only the first trials of each row; more can follow.")
    ] = None,
    sessions: Annotated[
        int | None, Option(min=1, help="Only the first sessions of each trial.")
    ] = None,
    nice: Annotated[
        int, Option(min=0, max=19, help="Give way to other work: 19 takes what is left over.")
    ] = 0,
    log_level: LogLevel = "INFO",
    data: Data = DATA,
    results: Results = RESULTS_DIR,
    manifest: ManifestPath = None,
) -> None:
    """Run the rows that are missing, and collect their results.

    Each is run as `slm-lab run` would, with a seed derived from its spec, and every attempt stands
    in the ledger of its row. An interrupted one goes on where it stopped. With a budget the longest
    row that fits comes first; without one it is the order of the tables.
    """
    from slm_lab.benchmark.manifest import load_manifest
    from slm_lab.benchmark.result import read_results
    from slm_lab.benchmark.runner import open_steps, run_benchmark

    loaded = load_manifest(manifest)
    chosen = loaded.choose(phases=phases or (), envs=envs or (), algorithms=algorithms or ())
    rows, kept = [row.limited(sessions, trials) for row in chosen], read_results(results)
    steps = open_steps(rows, loaded, kept, results_dir=results, data_dir=data, retry=retry)
    if not steps:
        typer.echo(f"Nothing to run: see `slm-lab benchmark status`. {len(rows)} row(s) asked for.")
        return
    if dry_run:
        _print_plan(steps, budget)
        return
    if nice and not hasattr(os, "nice"):
        raise typer.BadParameter("--nice: this system has no such priorities. Leave it out.")
    if nice:
        os.nice(nice)
    report = run_benchmark(
        loaded,
        steps,
        results_dir=results,
        data_dir=data,
        budget_hours=budget,
        log_level=log_level,
        tell=typer.echo,
    )
    _print_report(report)


@app.command()
def status(
    phases: Phases = None,
    envs: Envs = None,
    algorithms: Algorithms = None,
    data: Data = DATA,
    results: Results = RESULTS_DIR,
    manifest: ManifestPath = None,
) -> None:
    """Show the status of each row: done, running, interrupted, failed, missing."""
    from slm_lab.benchmark.manifest import load_manifest
    from slm_lab.benchmark.state import row_state

    loaded = load_manifest(manifest)
    rows = loaded.choose(phases=phases or (), envs=envs or (), algorithms=algorithms or ())
    states = [row_state(row, results, data) for row in rows]
    head = ("ENV", "ALGORITHM", "STATUS", "SCORE", "GOAL", "ATTEMPTS", "FOLDER OR REASON")
    print_table(head, [_status_cells(state) for state in states], fold=head)
    counts = Counter(state.status for state in states)
    typer.echo(", ".join(f"{number} {status}" for status, number in counts.items()))


@app.command()
def collect(
    folders: RunFolders,
    data: Data = DATA,
    results: Results = RESULTS_DIR,
    manifest: ManifestPath = None,
) -> None:
    """Evaluate the final agents of run folders, and keep their results as small data."""
    from slm_lab.benchmark.collect import collect as collect_run
    from slm_lab.benchmark.manifest import load_manifest
    from slm_lab.runs.find import located

    paths = [located(folder, data) for folder in folders]
    for result in collect_run(paths, load_manifest(manifest), results):
        score = f"{result.total_reward_ma:.2f} over {len(result.scores)} session(s)"
        typer.echo(f"{results / result.row}  total_reward_ma {score}")


@app.command()
def table(
    results: Results = RESULTS_DIR,
    page: Page = PAGE,
    plots: Plots = PLOTS_DIR,
    manifest: ManifestPath = None,
) -> None:
    """Write docs/BENCHMARKS.md and its plots from the collected results."""
    from slm_lab.benchmark.manifest import load_manifest
    from slm_lab.benchmark.result import read_results
    from slm_lab.benchmark.table import BenchmarkPage

    loaded, kept = load_manifest(manifest), read_results(results)
    BenchmarkPage(loaded, kept, page, plots, results).write()
    typer.echo(f"{page}  {len(loaded.rows)} rows, {len(kept)} with a result")


@app.command()
def audit(
    folders: Annotated[
        list[str] | None,
        Argument(metavar="FOLDER", help="Run folders; without, the collected results."),
    ] = None,
    data: Data = DATA,
    results: Results = RESULTS_DIR,
    page: Page = PAGE,
    plots: Plots = PLOTS_DIR,
    manifest: ManifestPath = None,
) -> None:
    """Fail on results that do not match their row: spec, seeds, ledger, scores, code, page."""
    from slm_lab.benchmark.audit import NOTE, audit_folder, audit_results
    from slm_lab.benchmark.manifest import load_manifest
    from slm_lab.runs.find import located

    loaded, paths = load_manifest(manifest), [located(word, data) for word in folders or ()]
    found = [text for path in paths for text in audit_folder(path, loaded)]
    if not folders:
        found = list(audit_results(loaded, results, page=page, plots_dir=plots))
    for text in found:
        typer.echo(text)
    offences = [text for text in found if not text.startswith(NOTE)]
    if offences:
        typer.echo(f"{len(offences)} offence(s)", err=True)
        raise typer.Exit(FAILED)
    typer.echo("ok")


def _status_cells(state: RowState) -> tuple[str, ...]:
    score = "" if state.kept is None else f"{state.kept.result.total_reward_ma:.2f}"
    goal = "" if state.row.goal is None else f"{state.row.goal:g}"
    status = state.status.value
    if 0.0 < state.progress < 1.0:
        status += f" {state.progress:.0%}"
    where = state.reason or " ".join(folder.as_posix() for folder in state.folders)
    if not where and state.kept is not None:
        where = " ".join(trial.folder for trial in state.kept.result.trials)
    return state.row.env, state.row.label, status, score, goal, str(state.attempts), where


def _print_plan(steps: Sequence[Step], budget: float | None) -> None:
    from slm_lab.benchmark.runner import next_step

    waiting, left, total, rows = list(steps), budget, 0.0, []
    while waiting and (step := next_step(waiting, left)) is not None:
        waiting.remove(step)
        left = None if left is None else left - step.hours
        total += step.hours
        row = step.state.row
        rows.append((row.id, step.state.status.value, f"{step.hours:.2f}", row.command))
    rows += [(s.state.row.id, "left out", f"{s.hours:.2f}", s.state.row.command) for s in waiting]
    head = ("ROW", "STATUS", "HOURS", "COMMAND")
    print_table(head, rows, fold=head)
    typer.echo(f"{len(rows) - len(waiting)} row(s), about {total:.1f} h")


def _print_report(report: BenchmarkOutcome) -> None:
    for row, reason in report.failed.items():
        typer.echo(f"failed    {row}: {reason}", err=True)
    for step in report.left_out:
        typer.echo(f"left out  {step.state.row.id}: about {step.hours:.1f} h, more than is left")
    typer.echo(f"{len(report.done)} done, {len(report.failed)} failed")
    if report.stopped_by is not None:
        typer.echo("Stopped. The same command goes on where it was.", err=True)
        raise typer.Exit(128 + report.stopped_by)
    if report.failed:
        raise typer.Exit(FAILED)
