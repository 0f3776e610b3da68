"""`slm-lab env`: check an env, and measure the score of a random policy in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

from slm_lab.cli.options import FAILED

app = typer.Typer(help="Look at environments.", no_args_is_help=True)


@app.command("check")
def env_check(
    env_id: Annotated[
        str, typer.Argument(help="Env id, such as CartPole-v1 or my_module:MyEnv-v0.")
    ],
    num_envs: Annotated[int, typer.Option(min=1, help="Envs in the batch.")] = 4,
    backend: Annotated[
        str, typer.Option(help="Engine that runs the env, as in `env.backend`.")
    ] = "auto",
) -> None:
    """Check an env, and print its spaces, back-end and frames per second."""
    from slm_lab.env import check_env
    from slm_lab.spec import EnvSpec
    from slm_lab.types import Backend

    if backend not in get_args(Backend):
        expected = ", ".join(get_args(Backend))
        raise typer.BadParameter(f"--backend: found `{backend}`, expected one of {expected}")
    tree = {"name": env_id, "num_envs": num_envs, "max_frame": 1, "backend": backend}
    report = check_env(EnvSpec.model_validate(tree))
    typer.echo(report.format())
    if report.problems:
        raise typer.Exit(FAILED)


@app.command("baseline")
def env_baseline(
    env_id: Annotated[str, typer.Argument(help="Env id, such as CartPole-v1.")],
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the envs and of the actions.")] = 0,
    data_dir: Annotated[
        str, typer.Option(help="Folder of runs in which the score is kept.")
    ] = "data",
) -> None:
    """Measure the score of random actions in an env, and keep it for the strength metrics."""
    from slm_lab.analysis.metrics import save_random_baseline
    from slm_lab.env.check import measure_random_policy
    from slm_lab.spec import EnvSpec

    spec = EnvSpec.model_validate({"name": env_id, "max_frame": 1})
    score = measure_random_policy(spec, episodes=episodes, seed=seed)
    assert score is not None, "without a time limit every episode is played"
    path = Path(data_dir) / "random_baseline.json"
    is_saved = save_random_baseline(path, env_id, score.mean, score.std)
    spread = f"{score.mean:.2f} +- {score.std:.2f}"
    typer.echo(f"{env_id}: random policy {spread} over {score.episodes} episodes")
    if not is_saved:
        raise typer.Exit(FAILED)
    typer.echo(f"saved in {path}")
