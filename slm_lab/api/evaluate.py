"""`evaluate(folder)`: score the saved agents of a run on fresh episodes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from slm_lab.analysis.evaluation import Evaluation, summarize, write_evaluation
from slm_lab.runs.find import open_run
from slm_lab.spec.run_folder import RunFolderError
from slm_lab.training.options import RunOptions


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
    """Play fresh episodes, `episodes` with the saved agent of every session of a trial.

    Actions are deterministic, or `sampled` as at the end of training. Agents are the best saved
    ones, or the last. The result is also written to the folder's info/, and the same seed gives
    the same one. `trust` names modules that the folder's spec may import, as for `load_agent`.
    """
    # torch takes seconds to import; who only looks at results imports this file too.
    from slm_lab.playback.saved_agent import load_session
    from slm_lab.training.loop import PARALLEL, play
    from slm_lab.training.threads import set_threads

    run = open_run(folder, trial=trial, trust=trust)
    run.best_session(best=best)  # raises if nothing is saved
    set_threads(run.spec, RunOptions())
    returns = {}
    num_envs = min(PARALLEL, episodes)
    for session in run.sessions(best=best):
        agent, env = load_session(run, session, best=best, num_envs=num_envs, seed=seed)
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
