"""`run(spec, mode)` and `search(spec)`: validate the command, make the folder, train, analyse."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from loguru import logger

from slm_lab.analysis.experiment import SearchMetrics
from slm_lab.analysis.tables import read_session
from slm_lab.analysis.trial import analyze_ended_trial, analyze_trial
from slm_lab.api.live_graphs import live_graphs
from slm_lab.api.result import Result
from slm_lab.error import LabError, MissingTorch
from slm_lab.hub.sync import run_synced, upload_remote
from slm_lab.runs.extend import Extension, extend
from slm_lab.runs.find import find_run
from slm_lab.runs.init_from import describe_source, with_source
from slm_lab.runs.layout import TIMESTAMP, RunLayout, new_timestamp
from slm_lab.runs.lock import locked
from slm_lab.runs.provenance import recorded_run, save_spec
from slm_lab.runs.resume import (
    check_same_experiment,
    is_extension,
    resume_command,
    stop_reasons,
    unfinished_sessions,
    was_killed,
)
from slm_lab.search.run import SearchFailed, SearchStopped, run_search
from slm_lab.spec import Problem, Spec, SpecError
from slm_lab.spec.callback import load_callbacks
from slm_lab.spec.schema import name_complaint
from slm_lab.spec.trust import admit_modules
from slm_lab.training.console import setup_run_log
from slm_lab.training.executors.carried import only_here
from slm_lab.training.executors.local import available_cores, session_spec
from slm_lab.training.options import RunOptions
from slm_lab.training.seeding import draw_seed
from slm_lab.training.trial import TrialEnd, run_sessions

if TYPE_CHECKING:
    from slm_lab.training.callback import Callback

LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "SUCCESS", "WARNING", "ERROR", "CRITICAL")


class SessionsFailed(LabError):
    """Every session of a trial failed, so that there is nothing to analyse."""

    exit_code = 1


class RunStopped(KeyboardInterrupt):
    """SIGINT (Ctrl-C) or SIGTERM ended a run early, after all its results were written.

    `metrics` are those of the shorter run, or None if it had measured nothing yet. `resume` is the
    command that continues the run.
    """

    def __init__(
        self, by: signal.Signals, metrics: Result | None, predir: Path, resume: str = ""
    ) -> None:
        self.by, self.metrics, self.predir, self.resume = by, metrics, predir, resume
        go_on = f"To go on in Python: train(load_result({predir.as_posix()!r}))"
        super().__init__(f"stopped early by {by.name}. Output: {predir}. {go_on}")


@overload
def run(  # type: ignore[overload-overlap]  # "search" is a str that gives another result
    spec: Spec,
    mode: Literal["search", "search@latest"],
    options: RunOptions | None = None,
    *,
    callbacks: Sequence[Callback | type[Callback]] = (),
) -> SearchMetrics: ...
@overload
def run(
    spec: Spec,
    mode: str = "train",
    options: RunOptions | None = None,
    *,
    callbacks: Sequence[Callback | type[Callback]] = (),
) -> Result: ...
def run(
    spec: Spec,
    mode: str = "train",
    options: RunOptions | None = None,
    *,
    callbacks: Sequence[Callback | type[Callback]] = (),
) -> Result | SearchMetrics:
    """Train all sessions of a spec and return the result that is also written to its folder.

    `dev` is the quick look: one session, more checks. `train@latest` and `train@FOLDER` continue
    an earlier run of the same spec. `search` runs many trials, see `search`. A run that is stopped
    by Ctrl-C or SIGTERM is analysed too, and then raises `RunStopped`, a KeyboardInterrupt.
    With `options.upload_hf` the folder is shared meanwhile; `UploadFailed` has the metrics.

    `callbacks` are added to those of `meta.callbacks`: subclasses of
    `slm_lab.training.callback.Callback` that can be imported, or instances that stand for one and
    its keys.
    """
    if callbacks:
        from slm_lab.training.callback import with_callbacks  # torch is slow to import

        spec = with_callbacks(spec, callbacks)
    kind, at, where = mode.partition("@")
    if kind == "search" and (where or not at):
        return search(spec, options, resume=where)
    resumes = bool(at)
    options = replace(options or RunOptions(), mode=_checked(mode))
    _check_command(spec, options, goes_on=resumes)
    remote = upload_remote(options.upload_hf)
    if resumes:
        options = replace(options, resume=True)
        layout = find_run(spec.name, where, Path(options.data_dir))
        asked, spec = spec, check_same_experiment(spec, layout, 0)
        more = _extension(asked, spec, options)
        if not os.access(layout.predir, os.W_OK):
            fix = "Make it writable, or copy it and resume that."
            problem = Problem("MODE", f"{layout.predir} cannot be written to. {fix}")
            raise SpecError([problem], "the command")
    else:
        if options.profile:
            options = replace(options, mode="dev")
        spec = with_source(_with_seed_and_mode(spec, options), Path(options.data_dir))
        timestamp = options.timestamp or new_timestamp()
        layout = RunLayout.create(spec.name, timestamp, root=options.data_dir)
    with locked(layout.run_lock(), f"run folder {layout.predir}", folder=layout.predir):
        setup_run_log(layout.log_path(0), layout.predir, options.log_level)
        if resumes:
            if more is not None:
                _extend(more, layout)
                spec = more.spec
            return run_synced(remote, layout.predir, lambda: _resume(spec, layout, options))
        for path in (layout.spec_path(), layout.trial_spec_path(0)):
            save_spec(spec, path, layout, 0, timestamp, options.cuda_offset)
        logger.info(f"Running trial 0 of {spec.name}, output in {layout.predir}")
        if here := only_here(spec):
            logger.warning(f"Only from here can this run be resumed: no module has {here}")
        return run_synced(remote, layout.predir, lambda: _train(spec, layout, options))


def search(spec: Spec, options: RunOptions | None = None, *, resume: str = "") -> SearchMetrics:
    """Run the trials of a spec's search, as `run(spec, "search")` does.

    `resume` continues an interrupted search: `latest`, or its folder.
    """
    options = replace(options or RunOptions(), mode="search")
    _check_command(spec, options)
    if not resume:
        spec = with_source(spec, Path(options.data_dir))
    try:
        return run_search(spec, options, resume, train=run)
    except SearchStopped as stopped:
        raise RunStopped(stopped.by, None, stopped.predir, stopped.resume) from None
    except SearchFailed as failure:
        raise SessionsFailed(f"the trials of the search failed: {failure}") from None


# The command


def _checked(mode: str) -> Literal["dev", "train"]:
    name, at, where = mode.partition("@")
    if name == "train" and (not at or where):
        return "train"
    if mode == "dev":
        return "dev"
    modes = "dev, train, train@latest, train@FOLDER, search, search@latest or search@FOLDER"
    fix = f"expected {modes}."
    if name == "enjoy":
        others = "Replay with `slm_lab.load_agent(FOLDER)`, score with `evaluate(FOLDER)`."
        fix = f"`run` trains. {others}"
    raise SpecError([Problem("MODE", f"found `{mode}`; {fix}")], "the command")


def _check_command(spec: Spec, options: RunOptions, *, goes_on: bool = False) -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingTorch
    problems = []
    if options.follow_budget and not goes_on:
        problems.append(_follows_nothing())
    if options.log_level.upper() not in LOG_LEVELS:
        found = f"found `{options.log_level}`; expected DEBUG, INFO, WARNING or ERROR."
        problems.append(Problem("--log-level (or LOG_LEVEL)", found))
    if options.timestamp and not re.fullmatch(TIMESTAMP, options.timestamp):
        found = f"found `{options.timestamp}`; expected the form 2026_01_31_235959."
        problems.append(Problem("--timestamp", found))
    if complaint := name_complaint(spec.name):
        problems.append(Problem("SPEC_NAME", complaint))
    if spec.meta.init_from and options.ray_address is not None and options.mode != "search":
        fix = "the nodes of a cluster do not have that folder. Train without --ray-address."
        problems.append(Problem("meta.init_from", fix))
    apart = "a search" if options.mode == "search" else "--ray-address"
    if (options.mode == "search" or options.ray_address is not None) and (here := only_here(spec)):
        fix = f"exists in this process alone, and {apart} needs others. Define it in a module."
        problems.append(Problem(here, fix))
    if problems:
        raise SpecError(problems, "the command")
    admit_modules(spec)
    load_callbacks(spec, only_own=True)
    if options.wandb:
        from slm_lab.training.recorder import check_wandb  # with TensorBoard, slow to import

        check_wandb()


def _with_seed_and_mode(spec: Spec, options: RunOptions) -> Spec:
    """The spec that is run and saved: with a seed, and in `dev` with a single session."""
    changes = {"meta.max_session": 1, "meta.max_trial": 2} if options.mode == "dev" else {}
    if spec.meta.random_seed is None:
        changes["meta.random_seed"] = draw_seed()
    return spec.with_values(changes)


def _extension(asked: Spec, saved: Spec, options: RunOptions) -> Extension | None:
    """More frames for a run, if its budget was asked to be larger."""
    if is_extension(asked, saved):
        ran = session_spec(saved)
        return extend(saved, ran, asked.env.max_frame, follow=options.follow_budget)
    if options.follow_budget:
        raise SpecError([_follows_nothing()], "the command")
    return None


def _follows_nothing() -> Problem:
    fix = "it goes with more frames: train@FOLDER -s env.max_frame=..."
    return Problem("--follow-budget", fix)


def _extend(more: Extension, layout: RunLayout) -> None:
    """Write the spec of the larger budget. From the trial's spec on, which is written last, every
    resume goes on to the new end."""
    logger.info(more.note)
    meta = more.spec.to_dict()["meta"]
    stamp, offset = str(meta.get("experiment_ts", "")), int(meta.get("cuda_offset") or 0)
    for path in (layout.spec_path(), layout.trial_spec_path(0)):
        save_spec(more.spec, path, layout, 0, stamp, offset)


# Training and analysis


def _resume(spec: Spec, layout: RunLayout, options: RunOptions) -> Result:
    """Train what is left of an earlier run; a finished run is only read."""
    sessions = unfinished_sessions(spec, layout, 0)
    if not sessions and layout.trial_metrics(0).exists() and not was_killed(layout, 0):
        logger.info(f"Trial 0 is finished, there is nothing to resume. Output: {layout.predir}")
        return Result.of(analyze_trial(layout, 0, write=False), spec, layout)
    left = f"{len(sessions)} of {spec.meta.max_session} session(s) left"
    logger.info(f"Resuming trial 0 of {spec.name} in {layout.predir}: {left}")
    return _train(spec, layout, options)


def _train(spec: Spec, layout: RunLayout, options: RunOptions) -> Result:
    try:
        record, cores, folder = layout.trial_provenance(0), available_cores(), layout.predir
        precision = _precision(spec)
        with recorded_run(
            record, options.mode, cores, folder=folder, spec=spec, precision=precision
        ) as this:
            this.init_from = describe_source(spec, layout)
            if spec.meta.extended:
                this.extended_from = spec.meta.extended[-1].max_frame
            with live_graphs(layout, trial=0):
                end = run_sessions(spec, layout, trial=0, options=options)
            reasons = stop_reasons(layout, 0, range(spec.meta.max_session))
            this.stop_reasons = {str(session): why for session, why in reasons.items()}
            how = "stopped" if end.stopped_by else _failure_text(end.failed) or "finished"
            try:
                metrics = _analyze(spec, layout, options, end)
            except (RunStopped, SessionsFailed):
                this.end = how
                raise
            this.end = how  # last: after a kill before this, a resume writes metrics and graphs
            return metrics
    except (SpecError, ValueError):
        # Bad input, and nothing ran: a folder would look like a run.
        if not options.resume and not layout.sessions(0):
            shutil.rmtree(layout.predir, ignore_errors=True)
        raise


def _precision(spec: Spec) -> str:
    """The precision that this machine trains a spec in."""
    if spec.meta.precision == "float32":
        return "float32"
    # Imported here: with several sessions this process has no other use for torch.
    from slm_lab.agent.algorithm.base import resolve_device
    from slm_lab.agent.learning.precision import resolve_precision

    return resolve_precision(spec, resolve_device(spec.agent.net.gpu)).name


def _analyze(spec: Spec, layout: RunLayout, options: RunOptions, end: TrialEnd) -> Result:
    """Write the metrics and graphs of a trial, and log how it ended."""
    resume = resume_command(layout)
    if len(end.failed) == spec.meta.max_session and not _has_rows(layout):
        raise SessionsFailed(f"all sessions {_failure_text(end.failed)}. See {layout.log_dir()}")
    if end.stopped_by and not layout.sessions(0):
        raise RunStopped(end.stopped_by, None, layout.predir, resume)
    ended = analyze_ended_trial(layout, 0, log_extra=options.log_extra, failed=end.failed)
    metrics = Result.of(ended, spec, layout)
    if options.log_extra:
        for session, scalars in metrics.sessions.items():
            cells = "  ".join(f"{name}: {value:.4g}" for name, value in scalars.items())
            unit = f"Trial 0 session {session} {layout.session_name(0, session)}"
            logger.info(f"{unit} [train_df metrics] {cells}")
    logger.info(metrics.summary_line())
    if end.stopped_by:
        logger.warning(f"Trial 0 stopped early by {end.stopped_by.name}. Output: {layout.predir}")
        raise RunStopped(end.stopped_by, metrics, layout.predir, resume)
    logger.info(f"Trial 0 done. Output: {layout.predir}")
    return metrics


def _has_rows(layout: RunLayout) -> bool:
    paths = (layout.session_csv(0, session, "train") for session in layout.sessions(0))
    return any(not read_session(path, folder=layout.predir).empty for path in paths)


def _failure_text(failed: dict[int, str]) -> str:
    reasons = {error.splitlines()[-1] for error in failed.values()}
    return f"failed: {'; '.join(sorted(reasons))}" if reasons else ""
