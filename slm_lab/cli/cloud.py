"""`slm-lab run-remote`: a run on a rented machine."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slm_lab.cli.options import Sets, Trust

if TYPE_CHECKING:
    from slm_lab.cloud import RemoteRun
    from slm_lab.spec import Spec


SpecFile = Annotated[str, typer.Argument(help="Spec file, as for `run`.")]
SpecName = Annotated[str, typer.Argument(help="Name of the spec in the file.")]
Mode = Annotated[str, typer.Argument(help="train, search or dev.")]
Name = Annotated[
    str | None,
    typer.Option("--name", "-n", help="Name of the run in dstack; SPEC_NAME if not given."),
]
Gpu = Annotated[bool, typer.Option("--gpu", help="On a machine with a GPU.")]
Profile = Annotated[
    bool, typer.Option("--profile", help="Profile a dev run in detail, as `run` does.")
]
MaxDuration = Annotated[
    float | None,
    typer.Option(metavar="HOURS", help="Stop the run after so long. Overrides the file's."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be submitted, and exit.")]


def run_remote(
    spec_file: SpecFile,
    spec_name: SpecName,
    mode: Mode = "train",
    name: Name = None,
    sets: Sets = None,
    gpu: Gpu = False,
    profile: Profile = False,
    max_duration: MaxDuration = None,
    dry_run: DryRun = False,
    trust: Trust = None,
) -> None:
    """Run a spec on a rented machine, through dstack. Results arrive on the hub."""
    from slm_lab.cloud import (
        CloudError,
        RemoteRun,
        build_task,
        check_ready,
        missing_token,
        pack,
        submit,
        to_yaml,
    )
    from slm_lab.runs.layout import new_timestamp

    spec = _checked_spec(spec_file, spec_name, mode, sets, trust)
    run = RemoteRun(
        name=name or spec_name.lower().replace("_", "-"),
        spec_name=spec_name,
        run_name=spec.name,
        mode=mode,
        timestamp=new_timestamp(),
        sets=tuple(sets or ()),
        gpu=gpu,
        profile=profile,
        max_hours=max_duration,
    )
    task = build_task(run, pack(spec_file, spec), os.environ)
    lacking = missing_token(task, os.environ)
    if dry_run:
        typer.echo(to_yaml(task), nl=False)
        if lacking:
            typer.echo(lacking, err=True)
        return
    if lacking:
        raise CloudError(lacking)
    check_ready(run.name, gpu=gpu, again=shlex.join(["slm-lab", *sys.argv[1:]]))
    reply = submit(to_yaml(task))
    _print_submitted(reply, run, task, f"{spec.agent.algorithm.name} on {spec.env.name}")


def _checked_spec(
    spec_file: str, spec_name: str, mode: str, sets: list[str] | None, trust: list[str] | None
) -> Spec:
    from slm_lab.search.plan import plan_search
    from slm_lab.spec import load_spec
    from slm_lab.spec.trust import admit_modules

    spec = load_spec(spec_file, spec_name, sets=sets or [], trust=trust or ())
    admit_modules(spec)
    if mode == "search":
        plan_search(spec)
    return spec


def _print_submitted(reply: str, run: RemoteRun, task: dict[str, Any], what: str) -> None:
    from slm_lab.cloud import NO_OFFERS, find_configuration

    typer.echo(reply)
    if NO_OFFERS in reply:
        again = task.get("retry", {}).get("duration", "a while")
        typer.echo(
            f"No machine fits at the moment; dstack looks for one for {again}. What there is: "
            f"`dstack offer`. What is asked for: {find_configuration(run.file_name)}"
        )
    typer.echo(
        f"\nSubmitted {run.name}: {what}, {run.mode}, "
        f"at most {task.get('max_duration', 'off')}\n"
        f"  follow   dstack logs {run.name}\n"
        f"  stop     dstack stop {run.name} -y\n"
        f"  results  slm-lab pull {run.folder}"
    )
