"""`slm-lab`: the command line.

Importing this module is cheap, because each command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import typer

from slm_lab.cli import (
    benchmark,
    cloud,
    doctor,
    envs,
    graphs,
    hub,
    page,
    replay,
    runs,
    specs,
    train,
)
from slm_lab.cli.guard import guarded
from slm_lab.cli.options import printable

app = typer.Typer(
    help="SLM Lab: deep reinforcement learning from one spec file and one command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
# In the order of `slm-lab --help`.
COMMANDS: dict[str, Callable[..., None]] = {
    "enjoy": replay.enjoy,
    "eval": replay.evaluate,
    "export": replay.export,
    "pull": hub.pull,
    "push": hub.push,
    "graduate": hub.graduate,
    "run-remote": cloud.run_remote,
    "doctor": doctor.doctor,
    "list": runs.list_runs,
    "dashboard": page.dashboard,
    "report": page.report,
    "spec": specs.spec,
    "specs": specs.specs,
    "plot": graphs.plot,
    "plot-list": graphs.plot_list,
    "compare": graphs.compare,
    "retro": graphs.retro,
    "run": train.run,
}
GROUPS = {"env": envs.app, "benchmark": benchmark.app}
for name, command in COMMANDS.items():
    app.command(name)(command)
for name, group in GROUPS.items():
    app.add_typer(group, name=name)


def main() -> None:
    """Entry point: also takes the older form `slm-lab SPEC_FILE SPEC_NAME MODE`."""
    from slm_lab.cli.dotenv import load_dotenv

    warnings.showwarning = _show_warning
    arguments = sys.argv[1:]
    if arguments and arguments[0] not in {*COMMANDS, *GROUPS, "--help"}:
        arguments = ["run", *arguments]
    if "--help" not in arguments:  # which need not wait for the spec package to be imported
        from slm_lab.spec.error import SpecWarning

        warnings.simplefilter("always", SpecWarning)
    with guarded(arguments):
        if note := load_dotenv(Path(".env"), os.environ):
            typer.echo(note, err=True)
        app(arguments, prog_name="slm-lab")


def retro_main() -> None:
    """Entry point of `slm-retro DIR`, the older name of `slm-lab retro DIR`."""
    sys.argv[1:1] = ["retro"]
    main()


def _show_warning(
    message: Warning | str, category: type[Warning], *_: object, **__: object
) -> None:
    typer.echo(printable(f"{category.__name__}: {message}"), err=True)


if __name__ == "__main__":
    main()
