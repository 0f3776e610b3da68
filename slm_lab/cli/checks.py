"""`slm-lab doctor` and `slm-lab env`: check this machine, or an environment."""

from __future__ import annotations

import json
from typing import Annotated, get_args

import typer
from typer import Argument, Option

from slm_lab.cli.options import DATA, FAILED, Data

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}

app = typer.Typer(help="Look at environments.", no_args_is_help=True)


def doctor(
    as_json: Annotated[bool, Option("--json", help="Print the findings as JSON.")] = False,
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


@app.command("check")
def env_check(
    env_id: Annotated[
        str, Argument(metavar="ENV_ID", help="Env id, such as CartPole-v1 or my_module:MyEnv-v0.")
    ],
    num_envs: Annotated[int, Option(min=1, help="Envs in the batch.")] = 4,
    backend: Annotated[str, Option(help="Engine that runs the env, as in `env.backend`.")] = "auto",
    seconds: Annotated[
        float, Option(min=0.1, help="Stop after so long, and say what is left.")
    ] = 10,
) -> None:
    """Check an env, and print its spaces, back-end and frames per second."""
    from slm_lab.env import check_env
    from slm_lab.spec import EnvSpec
    from slm_lab.types import Backend

    if backend not in get_args(Backend):
        expected = ", ".join(get_args(Backend))
        raise typer.BadParameter(f"--backend: found `{backend}`, expected one of {expected}")
    tree = {"name": env_id, "num_envs": num_envs, "max_frame": 1, "backend": backend}
    report = check_env(EnvSpec.model_validate(tree), seconds=seconds)
    typer.echo(report.format())
    if not report.ok:
        raise typer.Exit(FAILED)


@app.command("baseline")
def env_baseline(
    env_id: Annotated[str, Argument(metavar="ENV_ID", help="Env id, such as CartPole-v1.")],
    episodes: Annotated[int, Option(min=1, help="Episodes to play.")] = 100,
    seed: Annotated[int, Option(help="Seed of the envs and of the actions.")] = 0,
    data: Data = DATA,
) -> None:
    """Measure the score of random actions in an env, and keep it for the strength metrics."""
    from slm_lab.analysis.metrics import save_random_baseline
    from slm_lab.env.check import measure_random_policy
    from slm_lab.spec import EnvSpec

    spec = EnvSpec.model_validate({"name": env_id, "max_frame": 1})
    score = measure_random_policy(spec, episodes=episodes, seed=seed)
    assert score is not None, "without a time limit every episode is played"
    path = data / "random_baseline.json"
    is_saved = save_random_baseline(path, env_id, score.mean, score.std)
    spread = f"{score.mean:.2f} +- {score.std:.2f}"
    typer.echo(f"{env_id}: random policy {spread} over {score.episodes} episodes")
    if not is_saved:
        raise typer.Exit(FAILED)
    typer.echo(f"saved in {path}")
