"""`slm-lab run`: train a spec, search over it, or go on with an earlier run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slm_lab.cli.options import FAILED, LogLevel, Sets, Trust

if TYPE_CHECKING:
    from rich.console import Console

    from slm_lab.analysis.experiment import SearchMetrics
    from slm_lab.analysis.trial import TrialMetrics
    from slm_lab.spec import Spec
    from slm_lab.training.options import RunOptions

DEFAULT_SPEC_FILE = "slm_lab/spec/benchmark/ppo/ppo_cartpole.json"
DEFAULT_SPEC_NAME = "ppo_cartpole"
SHOWN_TRIALS = 5


class Compile(StrEnum):
    auto = "auto"
    on = "on"
    off = "off"


SpecFile = Annotated[str, typer.Argument(help="Spec file: a path, or one that ships with slm_lab.")]
SpecName = Annotated[str, typer.Argument(help="Name of the spec in the file.")]
Mode = Annotated[
    str,
    typer.Argument(
        help="dev: one session, more checks. train: every session. search: many trials. "
        "train@latest, train@FOLDER, search@...: go on with an earlier run. "
        "enjoy@FOLDER: replay.",
    ),
]
Render = Annotated[
    bool, typer.Option("--render", envvar="RENDER", help="Watch the training in a window.")
]
OptimizePerf = Annotated[
    bool,
    typer.Option(
        envvar="OPTIMIZE_PERF", help="Set threads, and TF32 and cuDNN on a GPU, for speed."
    ),
]
CudaOffset = Annotated[int, typer.Option(envvar="CUDA_OFFSET", help="First GPU to use.")]
Profile = Annotated[
    bool,
    typer.Option(
        "--profile", envvar="PROFILE", help="Profile a dev run in detail; see the profiler folder."
    ),
]
LogExtra = Annotated[
    bool,
    typer.Option("--log-extra", envvar="LOG_EXTRA", help="More metrics in the log, more graphs."),
]
Wandb = Annotated[
    bool,
    typer.Option(
        "--wandb", help="Also log to Weights & Biases; WANDB_MODE=offline without a network."
    ),
]
CompileChoice = Annotated[
    Compile | None,
    typer.Option(help="Whether to compile the learning step. Overrides meta.compile."),
]
Seed = Annotated[
    int | None, typer.Option(min=0, help="Seed of everything random. Overrides meta.random_seed.")
]
Keep = Annotated[
    int,
    typer.Option(
        envvar="KEEP_TRIALS", help="Search: best trials whose models are kept; -1 keeps all."
    ),
]
Validate = Annotated[int, typer.Option(help="Search: retrain the N best trials with new seeds.")]
RayAddress = Annotated[
    str | None,
    typer.Option(envvar="RAY_ADDRESS", help="Train or search on the nodes of this Ray cluster."),
]
Timestamp = Annotated[
    str, typer.Option(help="Time in the run folder's name, as 2026_01_31_235959; now if absent.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Search: print its space, size and time, and exit.")
]
UploadHF = Annotated[
    bool,
    typer.Option(
        "--upload-hf",
        envvar="UPLOAD_HF",
        help="Share the run folder (see HF_REPO): at every few checkpoints and at the end.",
    ),
]
StopRay = Annotated[
    bool, typer.Option("--stop-ray", help="End the searches that run in data/, and exit.")
]


def run(
    spec_file: SpecFile = DEFAULT_SPEC_FILE,
    spec_name: SpecName = DEFAULT_SPEC_NAME,
    mode: Mode = "dev",
    sets: Sets = None,
    render: Render = False,
    log_level: LogLevel = "INFO",
    optimize_perf: OptimizePerf = True,
    cuda_offset: CudaOffset = 0,
    profile: Profile = False,
    log_extra: LogExtra = False,
    wandb: Wandb = False,
    compile: CompileChoice = None,
    seed: Seed = None,
    keep: Keep = 3,
    validate: Validate = 0,
    ray_address: RayAddress = None,
    timestamp: Timestamp = "",
    dry_run: DryRun = False,
    upload_hf: UploadHF = False,
    stop_ray: StopRay = False,
    trust: Trust = None,
) -> None:
    """Train a spec. Without arguments: PPO on CartPole, a demo of a minute."""
    if mode.partition("@")[0] == "enjoy":
        from slm_lab.cli.replay import enjoy_mode

        enjoy_mode(mode, spec_name, sets=sets, render=render, seed=seed, trust=trust)
        return
    if stop_ray:
        _stop_searches()
        return
    from slm_lab.spec import load_spec
    from slm_lab.training.options import RunOptions

    overrides = {"meta.compile": compile, "meta.random_seed": seed}
    sets = [*(sets or ()), *(f"{k}={v}" for k, v in overrides.items() if v is not None)]
    spec = load_spec(spec_file, spec_name, sets=sets, trust=trust or ())
    if dry_run:
        _print_search_plan(spec, mode)
        return
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
    _run(spec, mode, options, again=f"slm-lab run {spec_file} {spec_name}")


def _run(spec: Spec, mode: str, options: RunOptions, *, again: str) -> None:
    """Run, print what came out, and end with the exit code that says so."""
    from slm_lab.api.run import RunStopped, search
    from slm_lab.api.run import run as run_spec
    from slm_lab.hub.sync import UploadFailed

    kind, _, where = mode.partition("@")
    outcome: TrialMetrics | SearchMetrics
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
        _print_outcome(failure.metrics)
        raise
    if _print_outcome(outcome):
        raise typer.Exit(FAILED)
    if mode == "dev":
        _print_next_steps(again)


def _print_outcome(outcome: TrialMetrics | SearchMetrics) -> bool:
    """Print the results of a trial or a search; returns whether a session failed."""
    from rich.console import Console

    from slm_lab.analysis.experiment import SearchMetrics

    console = Console(highlight=False, soft_wrap=True)
    if isinstance(outcome, SearchMetrics):
        _print_search(console, outcome)
        return False
    _print_trial(console, outcome)
    return bool(outcome.failed)


def _print_trial(console: Console, metrics: TrialMetrics) -> None:
    from rich.markup import escape

    score = f"total_reward_ma {metrics.total_reward_ma:.2f} over {len(metrics.sessions)} session(s)"
    console.print(f"\n[bold]Score[/bold]   {score}")
    console.print(f"[bold]Curve[/bold]   {escape(str(metrics.graph_png))}")
    console.print(f"[bold]Folder[/bold]  {escape(str(metrics.predir))}")
    for session, error in metrics.failed.items():
        reason = escape(error.splitlines()[-1])
        console.print(f"[bold red]Session {session} failed[/bold red]: {reason}")


def _print_search(console: Console, metrics: SearchMetrics) -> None:
    """The best trials. A search score, the best of many draws, is never shown as a result."""
    from rich.markup import escape

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
    from slm_lab.search.plan import describe_search, measure_speed, plan_search
    from slm_lab.spec.trust import admit_modules

    if mode != "search":
        raise typer.BadParameter("--dry-run goes with the mode search")
    admit_modules(spec)
    plan_search(spec)  # its errors show before seconds are spent on measuring
    typer.echo(describe_search(spec, measure_speed(spec)))


def _stop_searches() -> None:
    from slm_lab.search.processes import stop_searches

    stopped = stop_searches(Path("data"))
    for predir in stopped:
        typer.echo(f"Stopped the search in {predir}")
    if not stopped:
        typer.echo("No search runs in data/")


def _print_next_steps(again: str) -> None:
    from rich.console import Console
    from rich.markup import escape

    again = escape(again)
    Console(highlight=False, soft_wrap=True).print(
        f"\n[bold]Next[/bold]    all seeds:    {again} train\n"
        f"        change it:    {again} dev -s agent.algorithm.gamma=0.95\n"
        "        watch it:     slm-lab enjoy latest --video\n"
        "        your own env: slm-lab env check my_module:MyEnv-v0\n"
        "        all curves:   tensorboard --logdir data"
    )
