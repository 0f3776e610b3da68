"""`slm-lab`: the command line.

Importing this module is kept cheap; each command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import sys
import warnings
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slm_lab.cli import benchmark, cloud, doctor, graphs, hub, page, replay, runs, specs
from slm_lab.cli.options import BAD_INPUT, FAILED, Sets, Trust, printable

if TYPE_CHECKING:
    from slm_lab.analysis.experiment import SearchMetrics
    from slm_lab.analysis.trial import TrialMetrics
    from slm_lab.spec import Spec

DEFAULT_SPEC_FILE = "slm_lab/spec/benchmark/ppo/ppo_cartpole.json"
DEFAULT_SPEC_NAME = "ppo_cartpole"
SHOWN_TRIALS = 5
OUR_ERRORS = (
    "slm_lab.benchmark.manifest",
    "slm_lab.benchmark.result",
    "slm_lab.cli.dotenv",
    "slm_lab.cloud.error",
    "slm_lab.dashboard.report",
    "slm_lab.dashboard.server",
    "slm_lab.env.error",
    "slm_lab.playback.export",
    "slm_lab.runs.lock",
    "slm_lab.hub.error",
    "slm_lab.api.run",
    "slm_lab.spec.error",
    "slm_lab.spec.run_folder",
)

app = typer.Typer(
    help="SLM Lab: deep reinforcement learning from one spec file and one command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
env_app = typer.Typer(help="Look at environments.", no_args_is_help=True)
app.add_typer(env_app, name="env")
app.add_typer(benchmark.app, name="benchmark")
app.command("enjoy")(replay.enjoy)
app.command("eval")(replay.evaluate)
app.command("export")(replay.export)
hub.register(app)
app.command("run-remote")(cloud.run_remote)
app.command("doctor")(doctor.doctor)
app.command("list")(runs.list_runs)
app.command("dashboard")(page.dashboard)
app.command("report")(page.report)
specs.register(app)
graphs.register(app)


class Compile(StrEnum):
    auto = "auto"
    on = "on"
    off = "off"


class Backend(StrEnum):
    auto = "auto"
    gymnasium = "gymnasium"
    envpool = "envpool"
    ale = "ale"


@app.command()
def run(
    spec_file: Annotated[
        str, typer.Argument(help="Spec file: a path, or one that ships with slm_lab.")
    ] = DEFAULT_SPEC_FILE,
    spec_name: Annotated[
        str, typer.Argument(help="Name of the spec in the file.")
    ] = DEFAULT_SPEC_NAME,
    mode: Annotated[
        str,
        typer.Argument(
            help="dev: one session, more checks. train: every session. search: many trials. "
            "train@latest, train@FOLDER, search@...: go on with an earlier run. "
            "enjoy@FOLDER: replay.",
        ),
    ] = "dev",
    sets: Sets = None,
    render: Annotated[
        bool, typer.Option("--render", envvar="RENDER", help="Watch the training in a window.")
    ] = False,
    log_level: Annotated[
        str, typer.Option(envvar="LOG_LEVEL", help="DEBUG, INFO, WARNING or ERROR.")
    ] = "INFO",
    optimize_perf: Annotated[
        bool,
        typer.Option(
            envvar="OPTIMIZE_PERF", help="Set threads, and TF32 and cuDNN on a GPU, for speed."
        ),
    ] = True,
    cuda_offset: Annotated[int, typer.Option(envvar="CUDA_OFFSET", help="First GPU to use.")] = 0,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            envvar="PROFILE",
            help="Profile a dev run in detail; see the profiler folder.",
        ),
    ] = False,
    log_extra: Annotated[
        bool,
        typer.Option(
            "--log-extra", envvar="LOG_EXTRA", help="More metrics in the log, more graphs."
        ),
    ] = False,
    wandb: Annotated[
        bool,
        typer.Option(
            "--wandb", help="Also log to Weights & Biases; WANDB_MODE=offline without a network."
        ),
    ] = False,
    compile: Annotated[
        Compile | None,
        typer.Option(help="Whether to compile the learning step. Overrides meta.compile."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of everything random. Overrides meta.random_seed."),
    ] = None,
    keep: Annotated[
        int,
        typer.Option(
            envvar="KEEP_TRIALS", help="Search: best trials whose models are kept; -1 keeps all."
        ),
    ] = 3,
    validate: Annotated[
        int, typer.Option(help="Search: train the best so many again, with fresh seeds.")
    ] = 0,
    ray_address: Annotated[
        str | None,
        typer.Option(
            envvar="RAY_ADDRESS", help="Train or search on the nodes of this Ray cluster."
        ),
    ] = None,
    timestamp: Annotated[
        str,
        typer.Option(help="Time in the run folder's name, as 2026_01_31_235959; now if absent."),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Search: print its space, size and time, and exit.")
    ] = False,
    upload_hf: Annotated[
        bool,
        typer.Option(
            "--upload-hf",
            envvar="UPLOAD_HF",
            help="Share the run folder (see HF_REPO): at every few checkpoints and at the end.",
        ),
    ] = False,
    stop_ray: Annotated[
        bool, typer.Option("--stop-ray", help="End the searches that run in data/, and exit.")
    ] = False,
    trust: Trust = None,
) -> None:
    """Train a spec. Without arguments: PPO on CartPole, a demo of a minute."""
    if mode.partition("@")[0] == "enjoy":
        replay.enjoy_mode(
            mode, spec_name, sets=sets or [], render=render, seed=seed, trust=trust or ()
        )
        return
    from slm_lab.analysis.experiment import SearchMetrics
    from slm_lab.api.run import RunStopped, search
    from slm_lab.api.run import run as run_spec
    from slm_lab.hub.error import UploadFailed
    from slm_lab.spec import load_spec
    from slm_lab.training.options import RunOptions

    if stop_ray:
        _stop_searches()
        return

    overrides = [f"meta.compile={compile}"] * (compile is not None) + [
        f"meta.random_seed={seed}"
    ] * (seed is not None)
    spec = load_spec(spec_file, spec_name, sets=[*(sets or []), *overrides], trust=trust or ())
    options = RunOptions(
        render=render,
        log_level=log_level,
        log_extra=log_extra,
        profile=profile,
        optimize_perf=optimize_perf,
        cuda_offset=cuda_offset,
        wandb=wandb,
        keep=keep,
        validate=validate,
        ray_address=ray_address,
        upload_hf=upload_hf,
        timestamp=timestamp,
    )
    if dry_run:
        _print_search_plan(spec, mode)
        return
    kind, _, where = mode.partition("@")
    outcome: TrialMetrics | SearchMetrics
    not_uploaded = ""
    try:
        if mode == "search" or (kind == "search" and where):
            outcome = search(spec, options, resume=where)
        else:
            outcome = run_spec(spec, mode, options)
    except RunStopped as stopped:
        if stopped.metrics is not None:
            _print_outcome(stopped.metrics)
        typer.echo(f"Stopped early by {stopped.by.name}: see {stopped.predir}", err=True)
        if stopped.resume:
            typer.echo(f"Resume with: {stopped.resume}", err=True)
        raise typer.Exit(128 + stopped.by) from None
    except UploadFailed as failure:
        outcome, not_uploaded = failure.metrics, str(failure)
    if isinstance(outcome, SearchMetrics):
        _print_search(outcome)
    else:
        _print_outcome(outcome)
    if not_uploaded:
        typer.echo(f"UploadFailed: {not_uploaded}", err=True)
        raise typer.Exit(FAILED)
    if isinstance(outcome, SearchMetrics):
        return
    if outcome.failed:
        raise typer.Exit(FAILED)
    if mode == "dev":
        _print_next_steps(spec_file, spec_name)


@env_app.command("check")
def env_check(
    env_id: Annotated[
        str, typer.Argument(help="Env id, such as CartPole-v1 or my_module:MyEnv-v0.")
    ],
    num_envs: Annotated[int, typer.Option(min=1, help="Envs in the batch.")] = 4,
    backend: Annotated[Backend, typer.Option(help="Engine that runs the env.")] = Backend.auto,
) -> None:
    """Check an env, and print its spaces, back-end and frames per second."""
    from slm_lab.env import check_env
    from slm_lab.spec import EnvSpec

    tree = {"name": env_id, "num_envs": num_envs, "max_frame": 1, "backend": backend.value}
    report = check_env(EnvSpec.model_validate(tree))
    typer.echo(report.format())
    if report.problems:
        raise typer.Exit(FAILED)


@env_app.command("baseline")
def env_baseline(
    env_id: Annotated[str, typer.Argument(help="Env id, such as CartPole-v1.")],
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the envs and of the actions.")] = 0,
    data_dir: Annotated[str, typer.Option(help="Folder of runs to keep the score in.")] = "data",
) -> None:
    """Measure what random actions score in an env, and keep it for the strength metrics."""
    from slm_lab.analysis.metrics import save_random_baseline
    from slm_lab.env.baseline import measure_random_policy
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


def _print_outcome(metrics: TrialMetrics) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    score = f"total_reward_ma {metrics.total_reward_ma:.2f} over {len(metrics.sessions)} session(s)"
    console.print(f"\n[bold]Score[/bold]   {score}")
    console.print(f"[bold]Curve[/bold]   {escape(str(metrics.graph_png))}")
    console.print(f"[bold]Folder[/bold]  {escape(str(metrics.predir))}")
    for session, error in metrics.failed.items():
        reason = escape(error.splitlines()[-1])
        console.print(f"[bold red]Session {session} failed[/bold red]: {reason}")


def _print_search(metrics: SearchMetrics) -> None:
    """The best trials. A search score is the best of many draws, and is never shown as a result."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"\n{escape(metrics.summary_line())}")
    for row in (metrics.validated or metrics.trials)[:SHOWN_TRIALS]:
        again = "not validated" if row.validated is None else f"validated {row.validated:.2f}"
        values = ", ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in row.values.items()
        )
        console.print(
            f"  trial {row.trial}: {again}, search score {row.score:.2f}, {escape(values)}"
        )
    if not metrics.validated:
        console.print("A search score flatters: add --validate 3 to train the best again.")
    console.print(f"[bold]Best spec[/bold]  {escape(str(metrics.best_spec))}")
    console.print(f"[bold]Graphs[/bold]     {escape(str(metrics.graph_html))}")
    console.print(f"[bold]Folder[/bold]     {escape(str(metrics.predir))}")


def _print_search_plan(spec: Spec, mode: str) -> None:
    from slm_lab.search.plan import describe_search, plan_search
    from slm_lab.search.speed import measure_speed
    from slm_lab.spec.trust import admit_modules

    if mode != "search":
        raise typer.BadParameter("--dry-run goes with the mode search")
    admit_modules(spec)
    plan_search(spec)  # what is wrong shows before seconds are spent on measuring
    typer.echo(describe_search(spec, measure_speed(spec)))


def _stop_searches() -> None:
    from slm_lab.search.processes import stop_searches

    stopped = stop_searches(Path("data"))
    for predir in stopped:
        typer.echo(f"Stopped the search in {predir}")
    if not stopped:
        typer.echo("No search runs in data/")


def _print_next_steps(spec_file: str, spec_name: str) -> None:
    from rich.console import Console
    from rich.markup import escape

    again = escape(f"slm-lab run {spec_file} {spec_name}")
    Console(highlight=False, soft_wrap=True).print(
        f"\n[bold]Next[/bold]    all seeds:    {again} train\n"
        f"        change it:    {again} dev -s agent.algorithm.gamma=0.95\n"
        "        watch it:     slm-lab enjoy latest --video\n"
        "        your own env: slm-lab env check my_module:MyEnv-v0\n"
        "        all curves:   tensorboard --logdir data"
    )


def main() -> None:
    """Entry point: also takes the older form `slm-lab SPEC_FILE SPEC_NAME MODE`."""
    from slm_lab.cli.dotenv import load_dotenv

    warnings.showwarning = _show_warning
    arguments = sys.argv[1:]
    if arguments and arguments[0] not in _known_words():
        arguments = ["run", *arguments]
    if "--help" not in arguments:  # which need not wait for the room of specs to be imported
        from slm_lab.spec.error import SpecWarning

        warnings.simplefilter("always", SpecWarning)
    try:
        if note := load_dotenv(Path(".env"), os.environ):
            typer.echo(note, err=True)
        app(arguments, prog_name="slm-lab")
    except Exception as error:
        if not _is_ours(error):
            raise
        code = FAILED if isinstance(error, RuntimeError) else BAD_INPUT
        _fail(f"{type(error).__name__}: {error}", code)


def retro_main() -> None:
    """Entry point of `slm-retro DIR`, the older name of `slm-lab retro DIR`."""
    sys.argv[1:1] = ["retro"]
    main()


def _known_words() -> set[str]:
    commands = {
        command.name or command.callback.__name__
        for command in app.registered_commands
        if command.callback
    }
    groups = {group.name for group in app.registered_groups if group.name}
    return commands | groups | {"--help"}


def _is_ours(error: Exception) -> bool:
    """SpecError, EnvError and the like, without importing their rooms for every command."""
    return type(error).__module__ in OUR_ERRORS


def _fail(text: str, code: int = BAD_INPUT) -> None:
    typer.echo(printable(text), err=True)
    sys.exit(code)


def _show_warning(
    message: Warning | str, category: type[Warning], *_: object, **__: object
) -> None:
    typer.echo(printable(f"{category.__name__}: {message}"), err=True)


if __name__ == "__main__":
    main()
