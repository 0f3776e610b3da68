"""`slm-lab list`: list the runs on this machine and on the hub."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slm_lab.cli.hub import Repo, print_remote
from slm_lab.cli.options import BAD_INPUT, print_columns, printable

if TYPE_CHECKING:
    from slm_lab.runs.summary import RunSummary

HEAD = ("RUN", "ALGORITHM", "ENV", "STATUS", "SCORE", "TARGET", "FRAMES", "SESSIONS", "STARTED")
RIGHT = ("SCORE", "TARGET", "FRAMES", "SESSIONS")
STYLES = {"running": "cyan", "done": "green", "failed": "red", "resumable": "yellow"}

DataDir = Annotated[Path, typer.Option("--data-dir", "-d", help="Folder of runs.")]


def list_runs(
    pattern: Annotated[
        str, typer.Argument(help="Part of a folder's name; here also of algorithm, env or status.")
    ] = "",
    data_dir: DataDir = Path("data"),
    repo: Repo = None,
    only_local: Annotated[bool, typer.Option("--local", help="Only what is here.")] = False,
    only_remote: Annotated[bool, typer.Option("--remote", help="Only what is on the hub.")] = False,
) -> None:
    """List runs: those here with score, frames, status and date, then those on the hub, if set."""
    has_remote = not only_local and (repo is not None or bool(os.environ.get("HF_REPO")))
    if not only_remote and (data_dir.is_dir() or not has_remote):
        print_local(pattern, data_dir)
    if has_remote or only_remote:
        print_remote(pattern, repo)


def print_local(pattern: str, data_dir: Path) -> None:
    """Print the runs of a folder: a table on a terminal, plain columns into a pipe."""
    from slm_lab.runs.catalog import RunCatalog

    if not data_dir.is_dir():
        typer.echo(f"-d: no folder {data_dir}. Expected one that holds runs.", err=True)
        raise typer.Exit(BAD_INPUT)
    runs = [run for run in RunCatalog(data_dir).scan() if run.matches(pattern)]
    if not runs:
        fitting = f" that fits `{pattern}`" if pattern else ""
        typer.echo(f"No run{fitting} in {data_dir}.", err=True)
        return
    rows = [_cells(run) for run in runs]
    if sys.stdout.isatty():
        _print_table(rows)
    else:
        print_columns(HEAD, rows, RIGHT)


def _cells(run: RunSummary) -> tuple[str, ...]:
    if run.kind == "search":
        sessions = f"{run.trials}/{run.max_trial or '?'} trials"
    else:
        sessions = f"{run.sessions}/{run.max_session}"
    return (
        printable(run.key),
        printable(run.algorithm),
        printable(run.env),
        run.status,
        "" if run.score is None else f"{run.score:.2f}",
        "" if run.target is None else f"{run.target:g}",
        f"{run.frame:,}",
        sessions,
        run.started.strftime("%Y-%m-%d %H:%M"),
    )


def _print_table(rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in HEAD:
        is_run = name == "RUN"
        table.add_column(
            name.lower(),
            justify="right" if name in RIGHT else "left",
            overflow="fold" if is_run else "ellipsis",
            no_wrap=not is_run,
        )
    for row in rows:
        table.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in row))
    Console().print(table)
