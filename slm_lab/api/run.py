"""`run(spec, mode)`: train, then analyse. `evaluate(folder)`: play what was trained, then analyse.
`analyze(folder)`: analyse once more.

The one place where the experiment and analysis rooms meet; otherwise they share only files.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal, overload

from loguru import logger

from slm_lab.analysis.evaluation import Evaluation, summarize, write_evaluation
from slm_lab.analysis.experiment import SearchMetrics
from slm_lab.analysis.tables import read_session
from slm_lab.analysis.trial import TrialMetrics, analyze_ended_trial, analyze_trial
from slm_lab.api.live_graphs import live_graphs
from slm_lab.error import LabError
from slm_lab.hub.remote import Remote
from slm_lab.hub.sync import run_synced, upload_remote
from slm_lab.runs.files import check_no_links
from slm_lab.runs.find import find_run, open_run
from slm_lab.runs.layout import TIMESTAMP, RunLayout, new_timestamp
from slm_lab.runs.lock import locked
from slm_lab.runs.provenance import recorded_run, save_spec
from slm_lab.runs.resume import (
    check_same_experiment,
    resume_command,
    unfinished_sessions,
    was_killed,
)
from slm_lab.search.run import SearchFailed, SearchStopped, redo_tables, run_search
from slm_lab.spec import Problem, Spec, SpecError
from slm_lab.spec.name import name_complaint
from slm_lab.spec.run_folder import RunFolderError, spec_files
from slm_lab.spec.trust import admit_modules
from slm_lab.training.console import setup_logging
from slm_lab.training.executors.local import available_cores
from slm_lab.training.options import RunOptions
from slm_lab.training.seeding import draw_seed
from slm_lab.training.trial import TrialEnd, run_sessions
from slm_lab.training.wandb_sink import check_wandb

LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "SUCCESS", "WARNING", "ERROR", "CRITICAL")


class SessionsFailed(LabError):
    """Every session of a trial failed, so that there is nothing to analyse."""

    exit_code = 1


class RunStopped(KeyboardInterrupt):
    """SIGINT (Ctrl-C) or SIGTERM ended a run early, after everything it had so far was written.

    `metrics` are those of the shorter run; None if it had measured nothing yet. `resume` is the
    command that goes on from there.
    """

    def __init__(
        self, by: signal.Signals, metrics: TrialMetrics | None, predir: Path, resume: str = ""
    ) -> None:
        self.by, self.metrics, self.predir, self.resume = by, metrics, predir, resume
        super().__init__(f"stopped early by {by.name}. Output: {predir}")


@overload
def run(  # type: ignore[overload-overlap]  # "search" is a str that gives another result
    spec: Spec, mode: Literal["search", "search@latest"], options: RunOptions | None = None
) -> SearchMetrics: ...
@overload
def run(spec: Spec, mode: str = "train", options: RunOptions | None = None) -> TrialMetrics: ...
def run(
    spec: Spec, mode: str = "train", options: RunOptions | None = None
) -> TrialMetrics | SearchMetrics:
    """Train all sessions of a spec and return the metrics that are also written to its folder.

    `dev` is the quick look: one session, more checks. `train@latest` and `train@FOLDER` go on with
    an earlier run of the same spec. `search` runs many trials, see `search`. A run that is stopped
    by Ctrl-C or SIGTERM is analysed too, and then raises `RunStopped`, a KeyboardInterrupt.
    With `options.upload_hf` the folder is shared meanwhile; `UploadFailed` has the metrics.
    """
    kind, at, where = mode.partition("@")
    if kind == "search" and (where or not at):
        return search(spec, options, resume=where)
    options = replace(options or RunOptions(), mode=_checked(mode))
    _check_command(spec, options)
    remote = upload_remote(options.upload_hf)
    if at:
        return _resume(spec, where, replace(options, resume=True), remote)
    if options.profile:
        options = replace(options, mode="dev")
    changes: dict[str, object] = {}
    if options.mode == "dev":
        changes |= {"meta.max_session": 1, "meta.max_trial": 2}
    if spec.meta.random_seed is None:
        changes["meta.random_seed"] = draw_seed()
    spec = spec.with_values(changes)

    timestamp = options.timestamp or new_timestamp()
    layout = RunLayout.create(spec.name, timestamp, root=options.data_dir)
    with locked(layout.run_lock(), f"run folder {layout.predir}", folder=layout.predir):
        _start_log(layout, options)
        for path in (layout.spec_path(), layout.trial_spec_path(0)):
            save_spec(spec, path, layout, 0, timestamp, options.cuda_offset)
        logger.info(f"Running trial 0 of {spec.name}, output in {layout.predir}")
        return run_synced(remote, layout.predir, lambda: _train(spec, layout, options))


def search(spec: Spec, options: RunOptions | None = None, *, resume: str = "") -> SearchMetrics:
    """Run the trials of a spec's search; what `run(spec, "search")` does, with `resume` for what
    follows the @: `latest`, or the folder of a search that was interrupted."""
    options = replace(options or RunOptions(), mode="search")
    _check_command(spec, options)
    try:
        return run_search(spec, options, resume, train=run)
    except SearchStopped as stopped:
        raise RunStopped(stopped.by, None, stopped.predir, stopped.resume) from None
    except SearchFailed as failure:
        raise SessionsFailed(f"the trials of the search failed: {failure}") from None


def _resume(spec: Spec, where: str, options: RunOptions, remote: Remote | None) -> TrialMetrics:
    """Go on with what is left of an earlier run; of one that is finished, only say so."""
    layout = find_run(spec.name, where, Path(options.data_dir))
    spec = check_same_experiment(spec, layout, 0)
    if not os.access(layout.predir, os.W_OK):
        found = (
            f"{layout.predir} cannot be written to. Make it writable, or copy it and resume that"
        )
        raise SpecError([Problem("MODE", f"{found}.")], "the command")
    with locked(layout.run_lock(), f"run folder {layout.predir}", folder=layout.predir):
        _start_log(layout, options)
        return run_synced(remote, layout.predir, lambda: _go_on(spec, layout, options))


def _go_on(spec: Spec, layout: RunLayout, options: RunOptions) -> TrialMetrics:
    sessions = unfinished_sessions(spec, layout, 0)
    if not sessions and layout.trial_metrics(0).exists() and not was_killed(layout, 0):
        logger.info(f"Trial 0 is finished, there is nothing to resume. Output: {layout.predir}")
        return analyze_trial(layout, 0, write=False)
    left = f"{len(sessions)} of {spec.meta.max_session} session(s) left"
    logger.info(f"Resuming trial 0 of {spec.name} in {layout.predir}: {left}")
    return _train(spec, layout, options)


def _start_log(layout: RunLayout, options: RunOptions) -> None:
    # The file keeps what tools look for, however quiet the screen shall be.
    file_level = "DEBUG" if options.log_level.upper() in ("TRACE", "DEBUG") else "INFO"
    path, folder = layout.log_path(0), layout.predir
    setup_logging(path, file_level, stderr_level=options.log_level, folder=folder)


def _train(spec: Spec, layout: RunLayout, options: RunOptions) -> TrialMetrics:
    try:
        record, folder = layout.trial_provenance(0), layout.predir
        with recorded_run(record, options.mode, available_cores(), folder=folder) as this:
            with live_graphs(layout, trial=0):
                end = run_sessions(spec, layout, trial=0, options=options)
            how = "stopped" if end.stopped_by else _failure_text(end.failed) or "finished"
            try:
                metrics = _conclude(spec, layout, options, end)
            except (RunStopped, SessionsFailed):
                this.end = how
                raise
            this.end = how  # last of all: killed before, a resume writes metrics and graphs again
            return metrics
    except (SpecError, ValueError):
        # Bad input, and nothing ran: a folder would look like a run.
        if not options.resume and not layout.sessions(0):
            shutil.rmtree(layout.predir, ignore_errors=True)
        raise


def _conclude(spec: Spec, layout: RunLayout, options: RunOptions, end: TrialEnd) -> TrialMetrics:
    """Write the metrics and graphs of a trial, and say how it ended."""
    resume = resume_command(layout)
    if len(end.failed) == spec.meta.max_session and not _has_rows(layout):
        raise SessionsFailed(f"all sessions {_failure_text(end.failed)}. See {layout.log_dir()}")
    if end.stopped_by and not layout.sessions(0):
        raise RunStopped(end.stopped_by, None, layout.predir, resume)
    metrics = analyze_ended_trial(layout, 0, log_extra=options.log_extra, failed=end.failed)
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


def evaluate(
    folder: str | Path,
    *,
    trial: int | None = None,
    episodes: int = 100,
    sampled: bool = False,
    best: bool = True,
    seed: int = 0,
    trust: Collection[str] = (),
) -> Evaluation:
    """Play `episodes` fresh ones with the saved agent of every session of a trial.

    Deterministic actions, or `sampled` ones as at the end of training. The best saved agents, or
    the last. The result is also written to the folder's info/; the same seed gives the same one.
    `trust` names modules that the folder's spec may have imported, as for `load_agent`.
    """
    # torch is imported here, so that a trial's process need not: see trial.py.
    from slm_lab.playback.play import PARALLEL, play
    from slm_lab.playback.saved_agent import load_session
    from slm_lab.training.threads import set_threads

    run = open_run(folder, trial=trial, trust=trust)
    run.best_session(best=best)  # complains if nothing is saved
    set_threads(run.spec, RunOptions())
    returns = {}
    for session in run.sessions(best=best):
        agent, env = load_session(
            run, session, best=best, num_envs=min(PARALLEL, episodes), seed=seed
        )
        try:
            returns[session] = play(agent, env, episodes, explore=sampled).returns
        finally:
            env.close()
    path = run.layout.trial_evaluation(run.trial, best=best, sampled=sampled)
    evaluation = summarize(returns, seed=seed, path=path)
    circumstances = {
        "env": run.spec.env.name,
        "trial": run.trial,
        "agent": "best" if best else "last",
        "policy": "sampled" if sampled else "deterministic",
        "episodes": episodes,
        "seed": seed,
    }
    try:
        write_evaluation(evaluation, circumstances, folder=run.layout.predir)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be written ({error.strerror}).") from None
    return evaluation


def analyze(folder: str | Path, *, log_extra: bool = False) -> list[TrialMetrics]:
    """Redo metrics, tables and graphs of a run folder, ours or the original's, from its files.

    One entry per trial that has results. A folder that a run works on is refused.
    """
    predir = Path(folder)
    name, _ = spec_files(predir)
    check_no_links(predir)
    layout = RunLayout(predir, name)
    trials = layout.trials()
    if not trials:
        expected = layout.session_csv(0, 0, "train").relative_to(predir)
        raise RunFolderError(f"{predir}: no session table in it, expected files such as {expected}")
    is_search = layout.journal_path().exists() or layout.trial_data_dict().exists()
    is_ours = layout.run_lock().exists()
    lock = locked(layout.run_lock(), f"run folder {predir}", folder=predir)
    with lock if is_ours else nullcontext():
        try:
            metrics = [
                analyze_trial(layout, trial, log_extra=log_extra, html=not is_search)
                for trial in trials
            ]
            if is_search:
                redo_tables(layout)
        except (KeyError, ValueError) as error:
            if isinstance(error, LabError):
                raise
            raise RunFolderError(f"{predir}: its files cannot be analysed ({error!r})") from None
        except OSError as error:
            raise RunFolderError(f"{error.filename or predir}: {error.strerror}") from None
    return metrics


def _checked(mode: str) -> Literal["dev", "train"]:
    name, at, where = mode.partition("@")
    if name == "train" and (not at or where):
        return "train"
    if mode == "dev":
        return "dev"
    expected = (
        "expected dev, train, train@latest, train@FOLDER, search, search@latest or search@FOLDER."
    )
    if name == "enjoy":
        expected = (
            "`run` trains. Replay with `slm_lab.load_agent(FOLDER)`, score with `evaluate(FOLDER)`."
        )
    raise SpecError([Problem("MODE", f"found `{mode}`; {expected}")], "the command")


def _check_command(spec: Spec, options: RunOptions) -> None:
    problems = []
    if options.log_level.upper() not in LOG_LEVELS:
        found = f"found `{options.log_level}`; expected DEBUG, INFO, WARNING or ERROR."
        problems.append(Problem("--log-level (or LOG_LEVEL)", found))
    if options.timestamp and not re.fullmatch(TIMESTAMP, options.timestamp):
        found = f"found `{options.timestamp}`; expected the form 2026_01_31_235959."
        problems.append(Problem("--timestamp", found))
    if complaint := name_complaint(spec.name):
        problems.append(Problem("SPEC_NAME", complaint))
    if problems:
        raise SpecError(problems, "the command")
    admit_modules(spec)
    if options.wandb:
        check_wandb()


def _has_rows(layout: RunLayout) -> bool:
    paths = (layout.session_csv(0, session, "train") for session in layout.sessions(0))
    tables = (read_session(path, folder=layout.predir) for path in paths)
    return any(not table.empty for table in tables)


def _failure_text(failed: dict[int, str]) -> str:
    reasons = {error.splitlines()[-1] for error in failed.values()}
    return f"failed: {'; '.join(sorted(reasons))}" if reasons else ""
