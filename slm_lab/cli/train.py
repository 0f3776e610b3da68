"""`slm-lab run` and `run-remote`: train a spec, search over it, or go on with an earlier run."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer
from typer import Argument, Option

from slm_lab.cli.options import DATA, FAILED, Data, LogLevel, Sets, Trust, printable

if TYPE_CHECKING:
    from rich.console import Console

    from slm_lab.analysis.experiment import SearchMetrics
    from slm_lab.analysis.trial import TrialMetrics
    from slm_lab.cloud import RemoteRun
    from slm_lab.spec import Spec
    from slm_lab.training.options import RunOptions

DEMO = "ppo_cartpole"
SHOWN_TRIALS = 5

SpecFile = Annotated[
    str | None,
    Argument(
        metavar="SPEC_FILE", help="A file. A shipped spec needs none: `run ppo_cartpole train`."
    ),
]
SpecName = Annotated[
    str | None,
    Argument(metavar="SPEC_NAME", help="Name of the spec; without, those of the file are listed."),
]
Mode = Annotated[
    str | None,
    Argument(
        metavar="MODE",
        help="dev: one session, more checks. train: every session. search: many trials. "
        "train@latest, train@FOLDER, search@...: go on with an earlier run. "
        "enjoy@FOLDER: replay.",
    ),
]
Render = Annotated[
    bool, Option("--render", envvar="RENDER", help="Watch the training in a window.")
]
OptimizePerf = Annotated[
    bool,
    Option(envvar="OPTIMIZE_PERF", help="Set threads, and TF32 and cuDNN on a GPU, for speed."),
]
CudaOffset = Annotated[int, Option(envvar="CUDA_OFFSET", help="First GPU to use.")]
Profile = Annotated[
    bool,
    Option(
        "--profile", envvar="PROFILE", help="Profile a dev run in detail; see the profiler folder."
    ),
]
LogExtra = Annotated[
    bool, Option("--log-extra", envvar="LOG_EXTRA", help="More metrics in the log, more graphs.")
]
Wandb = Annotated[
    bool,
    Option("--wandb", help="Also log to Weights & Biases; WANDB_MODE=offline without a network."),
]
Compile = Annotated[
    Literal["auto", "on", "off"] | None,
    Option(help="Whether to compile the learning step. Overrides meta.compile."),
]
Seed = Annotated[
    int | None, Option(min=0, help="Seed of everything random. Overrides meta.random_seed.")
]
Keep = Annotated[
    int,
    Option(envvar="KEEP_TRIALS", help="Search: best trials whose models are kept; -1 keeps all."),
]
Validate = Annotated[int, Option(help="Search: retrain the N best trials with new seeds.")]
RayAddress = Annotated[
    str | None,
    Option(envvar="RAY_ADDRESS", help="Train or search on the nodes of this Ray cluster."),
]
Timestamp = Annotated[
    str, Option(help="Time in the run folder's name, as 2026_01_31_235959; now if absent.")
]
DryRun = Annotated[
    bool, Option("--dry-run", help="Search: print its space, size and time, and exit.")
]
UploadHF = Annotated[
    bool,
    Option(
        "--upload-hf",
        envvar="UPLOAD_HF",
        help="Share the run folder (see HF_REPO): at every few checkpoints and at the end.",
    ),
]
FollowBudget = Annotated[
    bool,
    Option("--follow-budget", help="More frames: stretch schedules in proportion to the budget."),
]
StopRay = Annotated[
    bool, Option("--stop-ray", help="End the searches that run in data/, and exit.")
]


def run(
    spec_file: SpecFile = None,
    spec_name: SpecName = None,
    mode: Mode = None,
    sets: Sets = None,
    render: Render = False,
    log_level: LogLevel = "INFO",
    optimize_perf: OptimizePerf = True,
    cuda_offset: CudaOffset = 0,
    profile: Profile = False,
    log_extra: LogExtra = False,
    wandb: Wandb = False,
    compile: Compile = None,
    seed: Seed = None,
    keep: Keep = 3,
    validate: Validate = 0,
    ray_address: RayAddress = None,
    timestamp: Timestamp = "",
    dry_run: DryRun = False,
    upload_hf: UploadHF = False,
    follow_budget: FollowBudget = False,
    stop_ray: StopRay = False,
    data: Data = DATA,
    trust: Trust = None,
) -> None:
    """Train a spec. Without arguments: PPO on CartPole, a demo of a minute."""
    flags = {name: value for name, value in locals().items() if name != "mode"}
    if stop_ray:
        _stop_searches(data)
        return
    chosen = choose_spec(spec_file, spec_name, mode)
    if chosen is None:
        _print_names(str(spec_file))
        return
    mode = chosen.mode or "dev"
    if mode.partition("@")[0] == "enjoy":
        from slm_lab.cli.replay import enjoy_mode

        name = chosen.name
        enjoy_mode(mode, name, sets=sets, render=render, seed=seed, data=data, trust=trust)
        return
    from slm_lab.spec import load_spec
    from slm_lab.training.options import RunOptions

    written = [(k, v) for k, v in (("compile", compile), ("random_seed", seed)) if v is not None]
    changes = [*(sets or ()), *(f"meta.{key}={value}" for key, value in written)]
    spec = load_spec(chosen.file, chosen.name, sets=changes, trust=trust or ())
    if dry_run:
        _print_search_plan(spec, mode)
        return
    named = {field.name: flags[field.name] for field in fields(RunOptions) if field.name in flags}
    options = RunOptions(**named, data_dir=str(data))
    given: dict[str, Any] = {"-s": sets, "--seed": seed, "--compile": compile, "--trust": trust}
    given |= {} if data == DATA else {"--data": str(data)}
    _run(spec, mode, options, NextSteps(chosen.words, given, data))


def run_remote(
    spec_file: Annotated[str, Argument(metavar="SPEC_FILE", help="As for `run`.")],
    spec_name: SpecName = None,
    mode: Annotated[str | None, Argument(metavar="MODE", help="train, search or dev.")] = None,
    name: Annotated[
        str | None,
        Option("--name", "-n", help="Name of the run in dstack; SPEC_NAME if not given."),
    ] = None,
    sets: Sets = None,
    gpu: Annotated[bool, Option("--gpu", help="On a machine with a GPU.")] = False,
    profile: Annotated[
        bool, Option("--profile", help="Profile a dev run in detail, as `run` does.")
    ] = False,
    max_duration: Annotated[
        float | None,
        Option(metavar="HOURS", help="Stop the run after so long. Overrides the file's."),
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print what would be submitted, and exit.")
    ] = False,
    trust: Trust = None,
) -> None:
    """Run a spec on a rented machine, through dstack. Results arrive on the hub."""
    from slm_lab import cloud
    from slm_lab.runs.layout import new_timestamp
    from slm_lab.spec import load_spec

    chosen = choose_spec(spec_file, spec_name, mode)
    if chosen is None:
        _print_names(spec_file)
        return
    mode = chosen.mode or "train"
    spec = load_spec(chosen.file, chosen.name, sets=sets or [], trust=trust or ())
    _check(spec, mode)
    run = cloud.RemoteRun(
        name=name or chosen.name.lower().replace("_", "-"),
        spec_name=chosen.name,
        run_name=spec.name,
        mode=mode,
        timestamp=new_timestamp(),
        sets=tuple(sets or ()),
        gpu=gpu,
        profile=profile,
        max_hours=max_duration,
    )
    task = cloud.build_task(run, cloud.pack(chosen.file, spec), os.environ)
    lacking = cloud.missing_token(task, os.environ)
    if dry_run:
        typer.echo(cloud.to_yaml(task), nl=False)
        typer.echo(lacking, err=True, nl=bool(lacking))
        return
    if lacking:
        raise cloud.CloudError(lacking)
    cloud.check_ready(run.name, gpu=gpu, again=shlex.join(["slm-lab", *sys.argv[1:]]))
    reply = cloud.submit(cloud.to_yaml(task))
    _print_submitted(reply, run, task, f"{spec.agent.algorithm.name} on {spec.env.name}")


class ChosenSpec(NamedTuple):
    """The spec and the mode that a command names; `words` name the spec as its user did."""

    file: str
    name: str
    mode: str | None
    words: tuple[str, ...]


def choose_spec(
    spec_file: str | None, spec_name: str | None, mode: str | None
) -> ChosenSpec | None:
    """Read the words of `run`: SPEC_FILE SPEC_NAME MODE, where a spec that ships needs no file, nor
    the only spec of a file its name. None for a file alone."""
    from slm_lab.spec.load import packaged_file, spec_names

    given = spec_file or DEMO
    shipped = packaged_file(given)
    if shipped is not None and mode is None:
        return ChosenSpec(shipped.as_posix(), given, spec_name, (given,))
    if spec_name is None:
        return None
    is_mode = spec_name.partition("@")[0] in ("dev", "train", "search", "enjoy")
    if mode is None and is_mode and len(names := spec_names(given)) == 1:
        return ChosenSpec(given, names[0], spec_name, (given, names[0]))
    return ChosenSpec(given, spec_name, mode, (given, spec_name))


def _print_names(spec_file: str) -> None:
    from slm_lab.spec import spec_names

    names = spec_names(spec_file)
    typer.echo("\n".join(names))
    example = shlex.join(["slm-lab", "run", spec_file, *names[:1], "dev"])
    typer.echo(f"{len(names)} spec(s) in {spec_file}. Run one: {example}", err=True)


def _stop_searches(data: Path) -> None:
    from slm_lab.search.processes import stop_searches

    stopped = [f"Stopped the search in {predir}" for predir in stop_searches(data)]
    typer.echo("\n".join(stopped or [f"No search runs in {data}/"]))


def _run(spec: Spec, mode: str, options: RunOptions, steps: NextSteps) -> None:
    """Run, print what came out, and end with the exit code that says so."""
    from slm_lab.api.run import RunStopped, run as run_spec, search
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
        steps.print()


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

    sessions = f"over {len(metrics.sessions)} session(s)"
    console.print(
        f"\n[bold]Score[/bold]   last 100 episodes {metrics.last_100_return:.2f} {sessions}"
    )
    average = f"total_reward_ma {metrics.total_reward_ma:.2f}"
    console.print(f"        {average}, a mean over the curve's last 100 rows, which lags")
    console.print(f"[bold]Curve[/bold]   {escape(str(metrics.graph_png))}")
    console.print(f"[bold]Folder[/bold]  {escape(str(metrics.predir))}")
    for session, why in metrics.stopped.items():
        console.print(f"[bold]Session {session} ended early[/bold]: {escape(printable(why))}")
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
        score = f"search score {row.score:.2f}"
        console.print(f"  trial {row.trial}: {again}, {score}, {escape(values)}")
    if not metrics.validated:
        console.print("A search score flatters: add --validate 3 to train the best again.")
    console.print(f"[bold]Best spec[/bold]  {escape(str(metrics.best_spec))}")
    console.print(f"[bold]Graphs[/bold]     {escape(str(metrics.graph_html))}")
    console.print(f"[bold]Folder[/bold]     {escape(str(metrics.predir))}")


def _print_search_plan(spec: Spec, mode: str) -> None:
    from slm_lab.search.plan import describe_search, measure_speed

    if mode != "search":
        raise typer.BadParameter("--dry-run goes with the mode search")
    _check(spec, mode)
    typer.echo(describe_search(spec, measure_speed(spec)))


class NextSteps(NamedTuple):
    """What to try after a run, by commands with the options that the run had."""

    spec: tuple[str, ...]
    options: Mapping[str, Any]
    data: Path

    def command(self, mode: str, *changes: str) -> str:
        """The command of this run in another mode."""
        words = ["slm-lab", "run", *self.spec, mode]
        for flag, given in self.options.items():
            values = given if isinstance(given, list) else [given]
            words += [text for value in values if value is not None for text in (flag, str(value))]
        return shlex.join([*words, *changes])

    def print(self) -> None:
        from rich.console import Console
        from rich.markup import escape

        folder = "" if self.data == DATA else f" --data {shlex.quote(str(self.data))}"
        steps = {
            "all seeds": self.command("train"),
            "change it": self.command("dev", "-s", "agent.algorithm.gamma=0.95"),
            "watch it": f"slm-lab enjoy latest --video{folder}",
            "your own env": "slm-lab env check my_module:MyEnv-v0",
            "all curves": f"tensorboard --logdir {shlex.quote(str(self.data))}",
        }
        lines = [f"{name + ':':14}{step}" for name, step in steps.items()]
        text = escape("\n        ".join(lines))
        Console(highlight=False, soft_wrap=True).print(f"\n[bold]Next[/bold]    {text}")


def _check(spec: Spec, mode: str) -> None:
    """Refuse what a run of the spec would refuse, before a machine is rented or time spent."""
    from slm_lab.search.plan import plan_search
    from slm_lab.spec.trust import admit_modules

    admit_modules(spec)
    if mode == "search":
        plan_search(spec)


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
        f"\nSubmitted {run.name}: {what}, {run.mode}, at most {task.get('max_duration', 'off')}\n"
        f"  follow   dstack logs {run.name}\n"
        f"  stop     dstack stop {run.name} -y\n"
        f"  results  slm-lab pull {run.folder}"
    )
