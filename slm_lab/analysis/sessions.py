"""The sessions of a trial as they lie on disk: their tables, and what the tables are worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import pandas as pd
from loguru import logger

from slm_lab.analysis.metrics import SessionMetrics, random_baseline, session_metrics
from slm_lab.analysis.tables import read_session
from slm_lab.runs.files import read_spec_tree
from slm_lab.spec.run_folder import RunFolderError, spec_files

Mode = Literal["train", "eval"]


class RunPaths(Protocol):
    """The paths that analysis reads and writes; `experiment.layout.RunLayout` provides them.

    Stated here because analysis does not import training.
    """

    @property
    def predir(self) -> Path: ...
    @property
    def name(self) -> str: ...
    def sessions(self, trial: int) -> tuple[int, ...]: ...
    def trial_name(self, trial: int) -> str: ...
    def session_name(self, trial: int, session: int) -> str: ...
    def session_csv(self, trial: int, session: int, mode: Mode) -> Path: ...
    def session_metrics(self, trial: int, session: int, mode: Mode) -> Path: ...
    def session_metrics_scalar(self, trial: int, session: int, mode: Mode) -> Path: ...
    def session_graph(self, trial: int, session: int, mode: Mode, y: str, x: str) -> Path: ...
    def session_graph_html(self, trial: int, session: int, mode: Mode) -> Path: ...
    def trial_metrics(self, trial: int) -> Path: ...
    def trial_metrics_scalar(self, trial: int) -> Path: ...
    def trial_metrics_scalar_copy(self, trial: int) -> Path: ...
    def trial_graph(self, trial: int, y: str, x: str = "frames") -> Path: ...
    def trial_graph_copy(self, trial: int, y: str) -> Path: ...
    def trial_graph_html(self, trial: int) -> Path: ...


@dataclass(frozen=True, slots=True)
class Session:
    index: int
    tables: Mapping[Mode, pd.DataFrame]
    metrics: Mapping[Mode, SessionMetrics]

    @property
    def has_own_eval(self) -> bool:
        return not self.tables["train"].equals(self.tables["eval"])


def read_sessions(paths: RunPaths, trial: int) -> list[Session]:
    """Every session of the trial that has a table."""
    random_mean = _random_mean(paths.predir, trial)
    return [_read(paths, trial, session, random_mean) for session in paths.sessions(trial)]


def measured_baselines(predir: Path) -> Path:
    """Random-policy scores measured here, beside the run folders they serve."""
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


def _read(paths: RunPaths, trial: int, session: int, random_mean: float) -> Session:
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
    return Session(session, tables, metrics)
