"""`slm-lab enjoy`, `eval`, `export`: replay, score and export a trained agent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from slm_lab.cli.options import DATA, RUN_FOLDER, Data, Trust, printable

if TYPE_CHECKING:
    from slm_lab.analysis.evaluation import Evaluation
    from slm_lab.runs.find import SavedRun
    from slm_lab.training.loop import Episodes

EPISODES, EPISODES_ON_VIDEO = 10, 1

Folder = Annotated[
    str, Argument(metavar="FOLDER", help=f"Run folder, or a *_spec.json in it: {RUN_FOLDER}.")
]
Trial = Annotated[int | None, Option(min=0, help="Trial; the best one if not given.")]
SessionIndex = Annotated[int | None, Option(min=0, help="Session; the best one if not given.")]
Last = Annotated[bool, Option("--last", help="The agent as training left it, not at its best.")]
Checkpoint = Annotated[
    str, Option(help="An agent that a callback saved, such as frame200000 or evaluated.")
]
Sampled = Annotated[bool, Option("--sampled", help="Draw actions as at the end of training.")]
Seed = Annotated[int, Option(min=0, help="Seed of the envs and of drawn actions.")]


HOW_TO_LOAD = {
    "torch-export": 'torch.export.load("{path}").module()(obs)',
    "torchscript": 'torch.jit.load("{path}")(obs)',
    "onnx": 'onnxruntime.InferenceSession("{path}").run(None, {{"obs": obs}})[0]',
}


def enjoy(
    folder: Folder,
    episodes: Annotated[
        int | None,
        Option(min=1, help=f"Episodes to play: {EPISODES}, or {EPISODES_ON_VIDEO} with --video."),
    ] = None,
    seed: Seed = 0,
    trial: Trial = None,
    session: SessionIndex = None,
    last: Last = False,
    checkpoint: Checkpoint = "",
    sampled: Sampled = False,
    render: Annotated[bool, Option("--render", help="Watch in a window.")] = False,
    video: Annotated[
        bool, Option("--video", help="Write a video: .mp4 with imageio-ffmpeg, else .gif.")
    ] = False,
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            help="File of the video, .mp4 or .gif; in the folder's video/ if not given.",
        ),
    ] = None,
    data: Data = DATA,
    trust: Trust = None,
) -> None:
    """Replay a trained agent and print its returns."""
    from slm_lab.playback.enjoy import can_write_mp4, enjoy as play_saved
    from slm_lab.runs.find import open_run

    run = open_run(folder, trial=trial, data_dir=data, trust=trust or (), checkpoint=checkpoint)
    session = _announce(run, session, best=not last)
    is_filmed = video or output is not None
    if is_filmed and output is None:
        suffix = ".mp4" if can_write_mp4() else ".gif"
        output = run.layout.video_path(
            run.trial, session, suffix, best=not last, checkpoint=checkpoint
        )
    played = play_saved(
        run,
        session,
        best=not last,
        episodes=episodes or (EPISODES_ON_VIDEO if is_filmed else EPISODES),
        seed=seed,
        sampled=sampled,
        render=render,
        video=output,
    )
    _print_episodes(played)
    if output is not None:
        typer.echo(f"video   {output}")


def enjoy_mode(
    mode: str,
    spec_name: str,
    *,
    sets: Sequence[str] | None,
    render: bool,
    seed: int | None,
    data: Path,
    trust: Sequence[str] | None,
) -> None:
    """Run `slm-lab run SPEC_FILE SPEC_NAME enjoy@WHERE`; the saved spec is used, not SPEC_FILE."""
    from slm_lab.playback.enjoy import enjoy as play_saved
    from slm_lab.runs.find import open_run

    where = mode.partition("@")[2]
    if not where:
        raise typer.BadParameter("enjoy what? Give enjoy@FOLDER, enjoy@SPEC or enjoy@latest.")
    if sets:
        raise typer.BadParameter("-s changes nothing in enjoy: an agent is replayed as it was.")
    run = open_run(where, spec_name=spec_name, data_dir=data, trust=trust or ())
    session = _announce(run, None, best=True)
    _print_episodes(play_saved(run, session, episodes=EPISODES, seed=seed or 0, render=render))


def _announce(run: SavedRun, session: int | None, *, best: bool) -> int:
    """Print whose agent plays, of the best session if none is given; returns the session."""
    session = run.best_session(best=best) if session is None else session
    name, kind = run.layout.session_name(run.trial, session), run.kind(best=best)
    what = f"{run.spec.agent.algorithm.name} on {run.spec.env.name}"
    typer.echo(printable(f"{name} ({kind} agent): {what}"))
    return session


def evaluate(
    folder: Folder,
    episodes: Annotated[int, Option(min=1, help="Episodes of each session.")] = 100,
    sampled: Sampled = False,
    seed: Seed = 0,
    trial: Trial = None,
    last: Last = False,
    checkpoint: Checkpoint = "",
    data: Data = DATA,
    trust: Trust = None,
) -> None:
    """Score every session of a trial over fresh episodes, with confidence intervals."""
    from slm_lab.api.results import evaluate as evaluate_run
    from slm_lab.runs.find import located

    evaluation = evaluate_run(
        located(folder, data),
        trial=trial,
        episodes=episodes,
        sampled=sampled,
        best=not last,
        seed=seed,
        trust=trust or (),
        checkpoint=checkpoint,
    )
    _print_evaluation(evaluation)


def export(
    folder: Folder,
    format: Annotated[
        Literal["torch-export", "torchscript", "onnx"],
        Option(help="torch-export is .pt2, torchscript .ts, onnx .onnx."),
    ] = "torch-export",
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="File to write; in the folder's model/ if not given."),
    ] = None,
    trial: Trial = None,
    session: SessionIndex = None,
    last: Last = False,
    checkpoint: Checkpoint = "",
    data: Data = DATA,
    trust: Trust = None,
) -> None:
    """Write a trained agent as one file, observation in, action out, checked against the agent."""
    from slm_lab.playback.export import export_policy
    from slm_lab.runs.find import open_run

    run = open_run(folder, trial=trial, data_dir=data, trust=trust or (), checkpoint=checkpoint)
    session = run.best_session(best=not last) if session is None else session
    path = export_policy(run, session, best=not last, format=format, out=output)
    typer.echo(
        f"{path}  (acts as the live agent does in float32, on recorded and random observations)"
    )
    typer.echo(f"load    {HOW_TO_LOAD[format].format(path=path)}")


def _print_episodes(played: Episodes) -> None:
    import statistics

    for number, (return_, length) in enumerate(zip(played.returns, played.lengths, strict=True)):
        typer.echo(f"episode {number + 1:<4} return {return_:10.2f}   length {length}")
    mean, std = statistics.fmean(played.returns), statistics.pstdev(played.returns)
    spread = f"from {min(played.returns):.2f} to {max(played.returns):.2f}"
    typer.echo(f"mean    {mean:.2f} +- {std:.2f} over {len(played.returns)} episode(s), {spread}")


def _print_evaluation(evaluation: Evaluation) -> None:
    for index, score in evaluation.sessions.items():
        low, high = score.interval
        mean = f"mean {score.mean:10.2f}   95 % [{low:.2f}, {high:.2f}]   std {score.std:.2f}"
        typer.echo(f"session {index:<4} {mean}   {len(score.returns)} episodes")
    low, high = evaluation.interval
    typer.echo(f"mean    {evaluation.mean:.2f}   95 % [{low:.2f}, {high:.2f}] over episodes")
    if evaluation.interval_over_sessions is not None:
        low, high = evaluation.interval_over_sessions
        typer.echo(f"        95 % [{low:.2f}, {high:.2f}] over sessions and episodes")
    typer.echo(f"written {evaluation.path}")
