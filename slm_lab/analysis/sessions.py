"""Session tables of a trial, read from its run folder, and the metrics of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from loguru import logger

from slm_lab.analysis.metrics import SessionMetrics, random_baseline, session_metrics
from slm_lab.analysis.tables import read_session
from slm_lab.runs.files import read_spec_tree
from slm_lab.runs.layout import Mode, RunLayout
from slm_lab.spec.run_folder import RunFolderError, spec_files


@dataclass(frozen=True, slots=True)
class SessionResult:
    index: int
    tables: Mapping[Mode, pd.DataFrame]
    metrics: Mapping[Mode, SessionMetrics]

    @property
    def has_own_eval(self) -> bool:
        return not self.tables["train"].equals(self.tables["eval"])


def read_sessions(paths: RunLayout, trial: int) -> list[SessionResult]:
    """Every session of the trial that has a table."""
    random_mean = _random_mean(paths.predir, trial)
    return [_read(paths, trial, session, random_mean) for session in paths.sessions(trial)]


def measured_baselines(predir: Path) -> Path:
    """The file of random-policy scores measured on this machine, beside the run folders."""
    return predir.parent / "random_baseline.json"


def _random_mean(predir: Path, trial: int) -> float:
    specs = spec_files(predir)[1]
    spec_path = specs.get(trial) or specs.get(None) or next(iter(specs.values()))
    try:
        env = read_spec_tree(predir, spec_path)["env"]
        env_name = str((env[0] if isinstance(env, list) else env)["name"])  # a list in SLM Lab v4
    except (KeyError, TypeError, IndexError):
        raise RunFolderError(f"{spec_path}: names no env, expected `env.name`.") from None
    random_mean = random_baseline(env_name, measured_baselines(predir))
    if random_mean is None:
        logger.warning(
            f"env.name: no random-policy baseline is known for {env_name}, so strength counts "
            f"from a return of 0. Measure it with: slm-lab env baseline {env_name}"
        )
        return 0.0
    return random_mean


def _read(paths: RunLayout, trial: int, session: int, random_mean: float) -> SessionResult:
    folder = paths.predir
    train = read_session(paths.session_csv(trial, session, "train"), folder=folder)
    eval_path = paths.session_csv(trial, session, "eval")
    # The eval table is written last: a session that was killed has none, and its training table
    # stands in.
    tables: dict[Mode, pd.DataFrame] = {
        "train": train,
        "eval": read_session(eval_path, folder=folder) if eval_path.exists() else train,
    }
    metrics = {mode: session_metrics(table, random_mean) for mode, table in tables.items()}
    return SessionResult(session, tables, metrics)
