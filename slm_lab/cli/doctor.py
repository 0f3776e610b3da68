"""`slm-lab doctor`: check this machine, and print how to fix what fails."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from slm_lab.cli.options import FAILED

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at this machine: versions, cores, compiler, GPU, extras, envs, disk, hub, dstack."""
    from dataclasses import asdict

    from slm_lab.doctor.checks import examine

    findings = examine()
    failed = [finding for finding in findings if finding.status == "fail"]
    if as_json:
        report = {"ok": not failed, "findings": [asdict(finding) for finding in findings]}
        typer.echo(json.dumps(report, indent=2))
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            mark = typer.style(f"{finding.status:4}", fg=COLOURS[finding.status])
            typer.echo(f"{mark}  {finding.name:{width}}  {finding.found}")
            if finding.fix:
                typer.echo(f"{'':{width + 8}}fix: {finding.fix}")
        warned = sum(finding.status == "warn" for finding in findings)
        verdict = f"{len(failed)} thing(s) to mend" if failed else "Ready to train"
        typer.echo(f"{verdict}, {warned} warning(s).")
    if failed:
        raise typer.Exit(FAILED)
