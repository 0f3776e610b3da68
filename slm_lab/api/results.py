"""`analyze(folder)` redoes the results of a run from its files; `evaluate(folder)` plays anew."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path

from slm_lab.analysis.evaluation import Evaluation, summarize, write_evaluation
from slm_lab.analysis.trial import TrialMetrics, analyze_trial
from slm_lab.error import LabError
from slm_lab.runs.files import check_no_links
from slm_lab.runs.find import open_run
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.lock import locked
from slm_lab.search.run import redo_tables
from slm_lab.spec.run_folder import RunFolderError, spec_files
from slm_lab.training.options import RunOptions


def analyze(folder: str | Path, *, log_extra: bool = False) -> list[TrialMetrics]:
    """Redo the metrics, tables and graphs of a run folder, ours or the original SLM Lab's.

    Returns one entry per trial that has results. A folder that a run works on is refused.
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
        except LabError:
            raise
        except (KeyError, ValueError) as error:
            raise RunFolderError(f"{predir}: its files cannot be analysed ({error!r})") from None
        except OSError as error:
            raise RunFolderError(f"{error.filename or predir}: {error.strerror}") from None
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
    checkpoint: str = "",
) -> Evaluation:
    """Play fresh episodes, `episodes` with the saved agent of every session of a trial.

    Actions are deterministic, or `sampled` as at the end of training. Agents are the best saved
    ones, the last, or those that a callback saved as `checkpoint`. The result is also written to
    the folder's info/, and the same seed gives the same one. `trust` names modules that the
    folder's spec may import, as for `load_agent`.
    """
    # torch takes seconds to import; who only looks at results imports this file too.
    from slm_lab.playback.saved_agent import load_session
    from slm_lab.training.loop import PARALLEL, play
    from slm_lab.training.threads import set_threads

    run = open_run(folder, trial=trial, trust=trust, checkpoint=checkpoint)
    best = run.kind(best=best) == "best"
    run.best_session(best=best)  # raises if nothing is saved
    set_threads(run.spec, RunOptions())
    returns, num_envs = {}, min(PARALLEL, episodes)
    for session in run.sessions(best=best):
        agent, env = load_session(run, session, best=best, num_envs=num_envs, seed=seed)
        try:
            returns[session] = play(agent, env, episodes, explore=sampled).returns
        finally:
            env.close()
    path = run.layout.trial_evaluation(run.trial, best=best, sampled=sampled, checkpoint=checkpoint)
    evaluation = summarize(returns, seed=seed, path=path)
    circumstances = {
        "env": run.spec.env.name,
        "trial": run.trial,
        "agent": run.kind(best=best),
        "policy": "sampled" if sampled else "deterministic",
        "episodes": episodes,
        "seed": seed,
    }
    try:
        write_evaluation(evaluation, circumstances, folder=run.layout.predir)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be written ({error.strerror}).") from None
    return evaluation
