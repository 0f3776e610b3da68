"""`slm-lab dashboard` and `slm-lab report`: runs in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slm_lab.cli.options import BAD_INPUT

PORT = 8050


def dashboard(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of runs, or one run.")
    ] = Path("data"),
    host: Annotated[
        str, typer.Option(help="Address to listen on; 127.0.0.1 is this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = PORT,
) -> None:
    """Serve a page on all runs of a folder: live curves, comparison, logs, targets."""
    try:
        from slm_lab.dashboard.server import is_loopback, open_server
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("dash", "dash_ag_grid", "flask", "werkzeug"):
            raise
        typer.echo(
            f"dashboard needs {error.name}, which is not installed. "
            "Install it: pip install 'slm-lab[dashboard]'",
            err=True,
        )
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
    folder: Annotated[Path, typer.Argument(help="Run folder of a trial or a search.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File; in the run folder if not given.")
    ] = None,
) -> None:
    """Write a run as one HTML file to send: summary, curves, tables, spec, versions, videos."""
    from slm_lab.dashboard.report import write_report

    path = write_report(folder, output)
    typer.echo(f"{path}  ({path.stat().st_size / 1e6:.1f} MB, opens offline)")
