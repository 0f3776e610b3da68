"""`slm-lab plot`, `plot-list`, `compare`, `retro`, `dashboard`, `report`: results of runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from slm_lab.cli.options import BAD_INPUT, DataFolder, printable

if TYPE_CHECKING:
    from rich.console import Console

    from slm_lab.analysis.comparison import EnvComparison, Estimate
    from slm_lab.analysis.tables import SavedTrial

Output = Annotated[Path, Option("--output", "-o", help="Folder to write graphs into.")]
Legends = Annotated[
    str | None,
    Option("--legends", "-l", help="Names of the folders in the graph, separated by commas."),
]


def plot(
    folders: Annotated[
        str,
        Option("--folders", "-f", help="Run folders, separated by commas: names in -d, or paths."),
    ],
    title: Annotated[
        str | None, Option("--title", "-t", help="Title; the env's name if not given.")
    ] = None,
    legends: Legends = None,
    data_folder: DataFolder = Path("data"),
    output: Output = Path("docs/plots"),
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

    trials = _read(_split(folders), data_folder)
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


def plot_list(data_folder: DataFolder = Path("data")) -> None:
    """List the run folders, and whether they can be plotted."""
    from rich.table import Table

    from slm_lab.analysis.tables import read_trial
    from slm_lab.spec.run_folder import RunFolderError, listed

    table = Table(box=None, pad_edge=False)
    for column in ("folder", "algorithm", "env", "sessions", "frames", "plot"):
        table.add_column(column, justify="right" if column in ("sessions", "frames") else "left")
    for path in listed(data_folder):
        if not path.is_dir():
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
        typer.echo(f"No run folders in {data_folder}/. Train one, or give another with -d.")
        return
    _console().print(table)


def compare(
    folders: Annotated[
        list[str], Argument(help="Run folders: names in -d, or paths.", metavar="FOLDERS…")
    ],
    title: Annotated[
        str | None, Option("--title", "-t", help="Title of the graphs and their files.")
    ] = None,
    legends: Legends = None,
    data_folder: DataFolder = Path("data"),
    output: Output = Path("docs/plots"),
    seed: Annotated[int, Option(min=0, help="Seed of the bootstrap.")] = 0,
) -> None:
    """Compare trials: robust statistics over seeds, with intervals, tests and graphs."""
    from slm_lab.analysis.comparison import compare as compare_trials
    from slm_lab.analysis.comparison_plot import default_title, plot_comparison

    words = [word for argument in folders for word in _split(argument)]
    trials = _read(words, data_folder)
    found = compare_trials(trials, _legends(legends, len(trials)), seed=seed)
    console = _console()
    for comparison in found:
        _print_comparison(console, comparison)
    with _writing(output):
        paths = plot_comparison(found, output, title=title or default_title(trials))
    for path in paths:
        typer.echo(str(path))


def retro(
    folder: Annotated[Path, Argument(help="Run folder of a trial or of a search.")],
    log_extra: Annotated[bool, Option("--log-extra", help="More graphs.")] = False,
) -> None:
    """Redo metrics, tables and graphs of a run folder from its saved files."""
    from slm_lab.api.results import analyze

    for metrics in analyze(folder, log_extra=log_extra):
        typer.echo(f"{metrics.graph_png.name.split('_trial_graph')[0]}: {metrics.summary_line()}")
    typer.echo(f"Graphs in {folder}")


def dashboard(
    directory: Annotated[Path, Argument(metavar="DIR", help="Folder of runs, or one run.")] = Path(
        "data"
    ),
    host: Annotated[
        str, Option(help="Address to listen on; 127.0.0.1 is this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8050,
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
    folder: Annotated[Path, Argument(help="Run folder of a trial or a search.")],
    output: Annotated[
        Path | None, Option("--output", "-o", help="File; in the run folder if not given.")
    ] = None,
) -> None:
    """Write a run as one HTML file to send: summary, curves, tables, spec, versions, videos."""
    from slm_lab.dashboard.report import write_report

    path = write_report(folder, output)
    typer.echo(f"{path}  ({path.stat().st_size / 1e6:.1f} MB, opens offline)")


def _read(words: Sequence[str], data_folder: Path) -> list[SavedTrial]:
    from slm_lab.analysis.tables import read_trial
    from slm_lab.runs.find import find_folder

    return [read_trial(find_folder(word, data_folder)) for word in words]


@contextmanager
def _writing(output: Path) -> Iterator[None]:
    """Explain an output folder that cannot be written to."""
    from slm_lab.spec.run_folder import RunFolderError

    try:
        yield
    except OSError as error:
        found = f"{error.filename or output} cannot be written ({error.strerror})"
        raise RunFolderError(f"-o: {found}. Give another folder.") from None


def _split(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise typer.BadParameter("--folders: expected at least one run folder")
    return words


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
