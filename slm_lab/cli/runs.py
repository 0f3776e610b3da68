"""`slm-lab list`, `pull`, `push`, `graduate`: runs here, on a hub, or in a shared directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from slm_lab.cli.options import BAD_INPUT, DATA, Data, RunFolders, print_table, printable
from slm_lab.error import LabError

if TYPE_CHECKING:
    from slm_lab.hub.transfer import Progress, Transfer
    from slm_lab.runs.summary import RunSummary

NUMBERS = ("LAST_100", "MA", "EVALUATED", "TARGET", "FRAMES", "SESSIONS")
HEAD = ("RUN", "ALGORITHM", "ENV", "STATUS", *NUMBERS, "STARTED")
STYLES = {"running": "cyan", "done": "green", "failed": "red", "resumable": "yellow"}

Repo = Annotated[
    str | None,
    Option(help="Dataset such as user/name, or file:PATH for a directory. By default HF_REPO."),
]


def list_runs(
    pattern: Annotated[
        str,
        Argument(
            metavar="PATTERN",
            help="Part of a folder's name; here also of algorithm, env, status; * and ? work.",
        ),
    ] = "",
    data: Data = DATA,
    repo: Repo = None,
    only_local: Annotated[bool, Option("--local", help="Only what is here.")] = False,
    only_remote: Annotated[bool, Option("--remote", help="Only what is on the hub.")] = False,
) -> None:
    """List runs: those here with scores, frames, status and date, then those on the hub, if set."""
    has_remote = not only_local and (repo is not None or bool(os.environ.get("HF_REPO")))
    if not only_remote and (data.is_dir() or not has_remote):
        print_local(pattern, data)
    if has_remote or only_remote:
        print_remote(pattern, repo)


def print_local(pattern: str, data: Path) -> None:
    """Print the runs of a folder: a table on a terminal, plain columns into a pipe."""
    from slm_lab.runs.catalog import RunCatalog

    if not data.is_dir() and data != DATA:
        typer.echo(f"--data: no folder {data}. Expected one that holds runs.", err=True)
        raise typer.Exit(BAD_INPUT)
    runs = [run for run in RunCatalog(data).scan() if run.matches(pattern)]
    if not runs:
        fitting = f" that fits `{pattern}`" if pattern else ""
        typer.echo(f"No run{fitting} in {data}. `slm-lab run` makes one.", err=True)
        return
    head: tuple[str, ...] = HEAD
    rows: list[tuple[str, ...]] = [_cells(run) for run in runs]
    if not any(run.evaluated for run in runs):
        at = HEAD.index("EVALUATED")
        head, *rows = [(*row[:at], *row[at + 1 :]) for row in (head, *rows)]
    reasons = [printable(run.reason) if run.status == "done" else "" for run in runs]
    if any(reasons):  # why callbacks ended them
        head = (*head, "REASON")
        rows = [(*row, why) for row, why in zip(rows, reasons, strict=True)]
    print_table(head, rows, NUMBERS, fold=("RUN", "REASON"), styles=STYLES)


def _cells(run: RunSummary) -> tuple[str, ...]:
    sessions, scores = f"{run.finished}/{run.max_session}", (run.last_100, run.score, run.evaluated)
    if run.kind == "search":
        sessions = f"{run.trials}/{run.max_trial or '?'} trials"
    return (
        printable(run.key),
        printable(run.algorithm),
        printable(run.env),
        run.status,
        *("" if score is None else f"{score:.2f}" for score in scores),
        "" if run.target is None else f"{run.target:g}",
        f"{run.frame:,}",
        sessions,
        run.started.strftime("%Y-%m-%d %H:%M"),
    )


def print_remote(pattern: str, repo: str | None) -> None:
    """Print one run folder per line; the name of the remote goes to stderr."""
    from slm_lab.hub.remote import is_folder_name, open_remote
    from slm_lab.hub.transfer import matching

    remote = open_remote(repo)
    found = matching(remote.folders(), pattern)
    names = [name for name in found if is_folder_name(name)]  # others could steer the terminal
    for name in names:
        typer.echo(name)
    fitting = f" that fit `{pattern}`" if pattern else ""
    left_out = f", and {len(found) - len(names)} with unusable names" * (len(found) > len(names))
    typer.echo(f"{len(names)} run folder(s){fitting} in {remote.label}{left_out}", err=True)


def pull(
    pattern: Annotated[
        str,
        Argument(metavar="PATTERN", help="Name of a run folder, or part of several; * and ? work."),
    ],
    show: Annotated[bool, Option("--list", "-l", help="Only list what would be fetched.")] = False,
    data: Data = DATA,
    repo: Repo = None,
    force: Annotated[bool, Option("--force", help="Replace files that were changed here.")] = False,
    if_exists: Annotated[
        bool, Option("--if-exists", help="It is no error if there is nothing to fetch.")
    ] = False,
) -> None:
    """Fetch run folders from the hub; what is here already is left alone."""
    from slm_lab.hub import transfer
    from slm_lab.hub.remote import RemoteError, open_remote

    if show:
        print_remote(pattern, repo)
        return
    if not pattern:  # perhaps a variable that is not set
        raise RemoteError("PATTERN: is empty. Give a name or part of one, or `*` to fetch all.")
    remote = open_remote(repo)
    names = transfer.matching(remote.folders(), pattern)
    if not names:
        found = f"nothing fits `{pattern}` in {remote.label}"
        if if_exists:
            typer.echo(f"{found}; nothing to fetch.")
            return
        raise RemoteError(f"PATTERN: {found}. `slm-lab list --remote` shows what is there.")

    def fetch(name: str, progress: Progress) -> Transfer:
        return transfer.pull(remote, name, data, force=force, progress=progress)

    _each(names, fetch, "Pulled", f"into {data}")


def push(
    folders: RunFolders,
    repo: Repo = None,
    force: Annotated[
        bool, Option("--force", help="Replace what somebody else has pushed.")
    ] = False,
    data: Data = DATA,
) -> None:
    """Send run folders to the hub; only what it does not have is sent."""
    from slm_lab.hub import transfer
    from slm_lab.hub.remote import open_remote
    from slm_lab.runs.find import located

    remote = open_remote(repo)

    def send(name: str, progress: Progress) -> Transfer:
        return transfer.push(remote, Path(name), force=force, progress=progress)

    _each([str(located(word, data)) for word in folders], send, "Pushed", f"to {remote.label}")


def graduate(
    run: Annotated[str, Argument(metavar="FOLDER", help="A run folder, here or there.")],
    source: Annotated[
        str | None, Option("--from", help="Where NAME is. By default HF_REPO.")
    ] = None,
    target: Annotated[
        str, Option("--to", help="Public dataset, or file:PATH.")
    ] = "SLM-Lab/benchmark",
    check: Annotated[bool, Option("--check", help="Only say whether it could graduate.")] = False,
    data: Data = DATA,
) -> None:
    """Publish a finished run whose spec has the Settings of the benchmark it claims to be of."""
    from slm_lab.benchmark.graduate import graduate as publish
    from slm_lab.runs.find import located

    run = str(located(run, data))
    with _progress("Graduating") as progress:
        outcome = publish(run, source, target, only_check=check, progress=progress)
    for line in outcome.notes:
        typer.echo(line)
    typer.echo(outcome.summary)


def _each(names: list[str], work: Callable[[str, Progress], Transfer], done: str, to: str) -> None:
    """Transfer every folder; those that failed are named, and then the command fails."""
    from slm_lab.hub.remote import NotAllowed

    failed = 0
    for name in names:
        try:
            with _progress(Path(name).name) as progress:
                transfer = work(name, progress)
        except NotAllowed:
            raise  # the next one would fare no better
        except LabError as error:
            failed += 1
            typer.echo(f"{type(error).__name__}: {error}", err=True)
            continue
        typer.echo(f"{done} {Path(name).name} {to}: {transfer}")
        if transfer.skipped:
            reason = "left out, because its manifest does not name them or they begin with a dot"
            typer.echo(f"  {reason}: {', '.join(transfer.skipped[:5])}", err=True)
        if transfer.damaged:
            failed += 1
            some = f"{', '.join(transfer.damaged[:5])}. Mend or remove them, and push again."
            typer.echo(f"  not sent, because they are damaged or no plain files: {some}", err=True)
    if failed:
        raise typer.Exit(BAD_INPUT)


@contextmanager
def _progress(title: str) -> Iterator[Progress]:
    """Show a bar of bytes on a terminal, and nothing elsewhere."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    with Progress(
        *columns,
        TransferSpeedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(escape(title), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
