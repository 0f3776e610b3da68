"""`run(spec, mode)`: train, then analyse. What the command line does, from Python.

The one place where the experiment and analysis rooms meet; otherwise they share only files.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Literal, cast

from loguru import logger

from slm_lab.analysis.trial import TrialMetrics, analyze_trial
from slm_lab.experiment.console import setup_logging
from slm_lab.experiment.layout import RunLayout
from slm_lab.experiment.options import RunOptions
from slm_lab.experiment.seeding import draw_seed
from slm_lab.experiment.trial import run_sessions
from slm_lab.spec import Problem, Spec, SpecError


class SessionsFailed(RuntimeError):
    """Every session of a trial failed, so that there is nothing to analyse."""


def run(spec: Spec, mode: str = "train", options: RunOptions | None = None) -> TrialMetrics:
    """Train all sessions of a spec and return the metrics that are also written to its folder.

    `dev` is the quick look: one session, more checks.
    """
    options = replace(options or RunOptions(), mode=_checked(mode))
    if options.profile:
        options = replace(options, mode="dev")
    changes: dict[str, object] = {}
    if options.mode == "dev":
        changes |= {"meta.max_session": 1, "meta.max_trial": 2}
    if spec.meta.random_seed is None:
        changes["meta.random_seed"] = draw_seed()
    spec = spec.with_values(changes)

    timestamp = datetime.now().strftime("%Y_%m_%d_%H%M%S")
    layout = RunLayout.create(spec.name, timestamp, root=options.data_dir)
    setup_logging(layout.log_path(0), options.log_level)
    _save_spec(spec, layout, timestamp, options)
    logger.info(f"Running trial 0 of {spec.name}, output in {layout.predir}")
    failed = run_sessions(spec, layout, trial=0, options=options)
    if len(failed) == spec.meta.max_session and not layout.sessions(0):
        raise SessionsFailed(_failure_text(failed, layout))
    metrics = analyze_trial(layout, 0, log_extra=options.log_extra, failed=failed)
    if options.log_extra:
        for session, scalars in metrics.sessions.items():
            cells = "  ".join(f"{name}: {value:.4g}" for name, value in scalars.items())
            unit = f"Trial 0 session {session} {layout.session_name(0, session)}"
            logger.info(f"{unit} [train_df metrics] {cells}")
    logger.info(metrics.summary_line())
    logger.info(f"Trial 0 done. Output: {layout.predir}")
    return metrics


def _checked(mode: str) -> Literal["dev", "train"]:
    if mode in ("dev", "train"):
        return cast(Literal["dev", "train"], mode)
    raise SpecError([Problem("MODE", f"found `{mode}`; expected dev or train.")], "the command")


def _save_spec(spec: Spec, layout: RunLayout, timestamp: str, options: RunOptions) -> None:
    tree = spec.to_dict()
    tree["name"] = spec.name
    tree["meta"] |= {
        "experiment": 0,
        "trial": 0,
        "session": -1,
        "cuda_offset": options.cuda_offset,
        "resume": False,
        "experiment_ts": timestamp,
        "git_sha": git_sha(),
        "predir": layout.predir.as_posix(),
    }
    text = json.dumps(tree, indent=2) + "\n"
    layout.spec_path().write_text(text)
    layout.trial_spec_path(0).write_text(text)


def git_sha() -> str | None:
    """Commit of the code that runs, if it runs from a checkout."""
    folder = Path(__file__).parent
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("SLM_LAB_GIT_SHA")
    return done.stdout.strip()


def _failure_text(failed: dict[int, str], layout: RunLayout) -> str:
    reasons = {error.splitlines()[-1] for error in failed.values()}
    return f"all sessions failed: {'; '.join(sorted(reasons))}. See {layout.log_dir()}"
