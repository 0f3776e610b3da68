"""`slm-lab plot`, `plot-list`, `compare`, `retro`, `dashboard`, `report`: results of runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from slm_lab.cli.options import (
    BAD_INPUT,
    DATA,
    RUN_FOLDER,
    Data,
    RunFolder,
    RunFolders,
    printable,
)

if TYPE_CHECKING:
    from rich.console import Console

    from slm_lab.analysis.comparison import EnvComparison, Estimate
    from slm_lab.analysis.tables import SavedTrial

PLOTS = "plots"  # beside the run folders, unless told otherwise

Output = Annotated[
    Path | None,
    Option("--output", "-o", help=f"Folder to write into; {PLOTS}/ beside the runs by default."),
]
Legends = Annotated[
    str | None,
    Option("--legends", "-l", help="Names of the folders in the graph, separated by commas."),
]


def plot(
    folders: Annotated[
        list[str] | None,
        Argument(metavar="FOLDER", help=f"Run folders, each {RUN_FOLDER}."),
    ] = None,
    listed: Annotated[str | None, Option("--folders", "-f", hidden=True)] = None,
    title: Annotated[
        str | None, Option("--title", "-t", help="Title; the env's name if not given.")
    ] = None,
    legends: Legends = None,
    data: Data = DATA,
    output: Output = None,
    legend: Annotated[bool, Option(help="Draw a legend.")] = True,
    x: Annotated[
        Literal["frame", "time", "opt_step"], Option("--x", help="What to draw against.")
    ] = "frame",
    raw: Annotated[bool, Option("--raw", help="Returns, not their moving average.")] = False,
    html: Annotated[bool, Option("--html", help="Also a page to zoom and hover.")] = False,
) -> None:
    """Draw several trials in one graph: the mean over sessions of each, with its spread."""
    from slm_lab.analysis.comparison_plot import default_title, plot_multi_trial
    from slm_lab.analysis.curves import FRAMES, OPT_STEPS, WALL_TIME

    trials = _read([*(folders or ()), *([listed] if listed else ())], data)
    output = output or _beside(trials)
    with _writing(output):
        paths = plot_multi_trial(
            trials,
            output,
            title=title or default_title(trials),
            legends=_legends(legends, len(trials)),
            x={"frame": FRAMES, "time": WALL_TIME, "opt_step": OPT_STEPS}[x],
            smooth=not raw,
            legend=legend,
            html=html,
        )
    for path in paths:
        typer.echo(str(path))


def plot_list(data: Data = DATA) -> None:
    """List the run folders, and whether they can be plotted."""
    from rich.table import Table

    from slm_lab.analysis.tables import read_trial
    from slm_lab.spec.run_folder import RunFolderError, listed

    table = Table(box=None, pad_edge=False)
    for column in ("folder", "algorithm", "env", "sessions", "frames", "plot"):
        table.add_column(column, justify="right" if column in ("sessions", "frames") else "left")
    for path in listed(data):
        if not path.is_dir() or path.name == PLOTS:
            continue
        try:
            trial = read_trial(path)
        except RunFolderError as error:
            reason = str(error).removeprefix(f"{path}: ")
            table.add_row(*map(_cell, (path.name, "", "", "", "", f"no: {reason}")))
            continue
        frames = max(table_["frame"].max() for table_ in trial.sessions.values())
        cells = (path.name, trial.algorithm, trial.env, str(len(trial.sessions)), f"{frames:,.0f}")
        table.add_row(*map(_cell, cells), "yes")
    if not table.row_count:
        typer.echo(f"No run folders in {data}/. Train one, or give another with --data.")
        return
    _console().print(table)


def compare(
    folders: RunFolders,
    title: Annotated[
        str | None, Option("--title", "-t", help="Title of the graphs and their files.")
    ] = None,
    legends: Legends = None,
    data: Data = DATA,
    output: Output = None,
    seed: Annotated[int, Option(min=0, help="Seed of the bootstrap.")] = 0,
) -> None:
    """Compare trials: robust statistics over seeds, with intervals, tests and graphs."""
    from slm_lab.analysis.comparison import compare as compare_trials
    from slm_lab.analysis.comparison_plot import default_title, plot_comparison

    trials = _read(folders, data)
    output = output or _beside(trials)
    found = compare_trials(trials, _legends(legends, len(trials)), seed=seed)
    console = _console()
    for comparison in found:
        _print_comparison(console, comparison)
    with _writing(output):
        paths = plot_comparison(found, output, title=title or default_title(trials))
    for path in paths:
        typer.echo(str(path))


def retro(
    folder: RunFolder,
    log_extra: Annotated[bool, Option("--log-extra", help="More graphs.")] = False,
    data: Data = DATA,
) -> None:
    """Redo metrics, tables and graphs of a run folder from its saved files."""
    from slm_lab.api.results import analyze
    from slm_lab.runs.find import find_folder

    path = find_folder(folder, data)
    for metrics in analyze(path, log_extra=log_extra):
        typer.echo(f"{metrics.graph_png.name.split('_trial_graph')[0]}: {metrics.summary_line()}")
    typer.echo(f"Graphs in {path}")


def dashboard(
    folder: Annotated[
        str, Argument(metavar="FOLDER", help=f"Folder of runs, or one run: {RUN_FOLDER}.")
    ] = "",
    host: Annotated[
        str, Option(help="Address to listen on; 127.0.0.1 is this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8050,
    data: Data = DATA,
) -> None:
    """Serve a page on all runs of a folder: live curves, comparison, logs, targets."""
    try:
        from slm_lab.dashboard.server import is_loopback, open_server
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("dash", "dash_ag_grid", "flask", "werkzeug"):
            raise
        fix = "Install it: pip install 'slm-lab[dashboard]'"
        typer.echo(f"dashboard needs {error.name}, which is not installed. {fix}", err=True)
        raise typer.Exit(BAD_INPUT) from None
    from slm_lab.runs.find import located

    directory = located(folder, data) if folder else data
    server = open_server(directory, host=host, port=port)
    name = f"[{host}]" if ":" in host else host
    typer.echo(f"Runs of {directory} at http://{name}:{server.server_port}  (Ctrl-C ends)")
    if not is_loopback(host):
        typer.echo("Whoever can reach this machine can read these runs.", err=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        typer.echo("")
    finally:
        server.server_close()


def report(
    folder: RunFolder,
    output: Annotated[
        Path | None, Option("--output", "-o", help="File; in the run folder if not given.")
    ] = None,
    data: Data = DATA,
) -> None:
    """Write a run as one HTML file to send: summary, curves, tables, spec, versions, videos."""
    from slm_lab.dashboard.report import write_report
    from slm_lab.runs.find import find_folder

    path = write_report(find_folder(folder, data), output)
    typer.echo(f"{path}  ({path.stat().st_size / 1e6:.1f} MB, opens offline)")


def _read(arguments: Sequence[str], data: Path) -> list[SavedTrial]:
    """Read trials; the earlier spelling of several folders has commas between them."""
    from slm_lab.analysis.tables import read_trial
    from slm_lab.runs.find import find_folder

    words = [word for text in arguments for word in map(str.strip, text.split(",")) if word]
    if not words:
        raise typer.BadParameter(f"FOLDER: expected at least one run folder, {RUN_FOLDER}")
    return [read_trial(find_folder(word, data)) for word in words]


def _beside(trials: Sequence[SavedTrial]) -> Path:
    """The folder for graphs of several runs, in the folder that holds the first of them."""
    return trials[0].folder.parent / PLOTS


@contextmanager
def _writing(output: Path) -> Iterator[None]:
    """Explain an output folder that cannot be written to."""
    from slm_lab.spec.run_folder import RunFolderError

    try:
        yield
    except OSError as error:
        found = f"{error.filename or output} cannot be written ({error.strerror})"
        raise RunFolderError(f"--output: {found}. Give another folder.") from None


def _legends(text: str | None, count: int) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if len(names) != count:
        found = f"found {len(names)} name(s) for {count} folder(s)"
        raise typer.BadParameter(f"--legends: {found}; expected one each")
    return names


def _print_comparison(console: Console, comparison: EnvComparison) -> None:
    from rich.table import Table

    frame = "" if comparison.frame is None else f" at frame {comparison.frame:,}"
    target = "" if comparison.target is None else f", target {comparison.target:g}"
    console.print(f"\n[bold]{_cell(comparison.env)}[/bold]{frame}{target}")
    is_normalised = any(method.optimality_gap for method in comparison.methods)
    table = Table(box=None, pad_edge=False)
    headers = ["method", "seeds", "IQM", "median", "mean"] + ["optimality gap"] * is_normalised
    for header in headers:
        table.add_column(header, justify="left" if header == "method" else "right")
    for method in comparison.methods:
        cells = [_estimate(e) for e in (method.interquartile_mean, method.median, method.mean)]
        if method.optimality_gap is not None:
            cells.append(_estimate(method.optimality_gap))
        table.add_row(_cell(method.method), str(method.seeds), *cells)
    console.print(table)
    if comparison.improvements:
        pairs = Table(box=None, pad_edge=False)
        for header in ("probability of improvement", "P", "95 %", "p", ""):
            pairs.add_column(header)
        for i in comparison.improvements:
            interval = "" if i.ci95 is None else f"[{i.ci95[0]:.2f}, {i.ci95[1]:.2f}]"
            p_value = "<0.001" if i.p_value < 0.001 else f"{i.p_value:.3f}"
            verdict = f"{i.better} is better" if i.verdict == "better" else i.verdict
            cells = [f"{i.better} > {i.worse}", f"{i.probability:.2f}", interval, p_value, verdict]
            pairs.add_row(*map(_cell, cells))
        console.print(pairs)
    for note in comparison.notes:
        console.print(f"note: {_cell(note)}")


def _cell(text: str) -> str:
    """Escape text of a run folder for rich, without escape sequences."""
    from rich.markup import escape

    return escape(printable(text))


def _estimate(estimate: Estimate) -> str:
    from rich.markup import escape

    if estimate.ci95 is None:
        return f"{estimate.value:.2f}"
    low, high = estimate.ci95
    return escape(f"{estimate.value:.2f} [{low:.2f}, {high:.2f}]")


def _console() -> Console:
    from rich.console import Console

    # Lines in a file or a pipe are not wrapped at the width of a screen.
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 240)
