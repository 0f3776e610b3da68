"""Session tables of a run folder, one row per checkpoint, and the metrics of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pandas as pd
from loguru import logger

from slm_lab.analysis.metrics import Metrics, measured_baselines, random_baseline, session_metrics
from slm_lab.runs.files import MAX_TABLE_BYTES, read_spec_tree, read_text
from slm_lab.runs.layout import Mode, RunLayout
from slm_lab.spec.run_folder import RunFolderError, spec_files

CLOCK_COLUMNS = ("fps", "wall_t")


@dataclass(frozen=True, slots=True)
class SessionResult:
    index: int
    tables: Mapping[Mode, pd.DataFrame]
    metrics: Mapping[Mode, Metrics]

    @property
    def has_own_eval(self) -> bool:
        return not self.tables["train"].equals(self.tables["eval"])


def read_session(path: Path, *, folder: Path | None = None) -> pd.DataFrame:
    """Read a session CSV as float64; a row that a crash cut short is left out.

    `folder` is the run folder, by default that of the file.
    """
    text = read_text(folder or path.parent, path, MAX_TABLE_BYTES)
    whole_rows = text[: text.rfind("\n") + 1]
    if not whole_rows:
        raise RunFolderError(f"{path}: no complete line, expected a session table with a header")
    try:
        return pd.read_csv(StringIO(whole_rows)).astype("float64")
    except (ValueError, TypeError) as error:  # a ParserError is a ValueError
        raise RunFolderError(f"{path}: not a session table ({error!s:.200})") from None


def drop_clock(table: pd.DataFrame) -> pd.DataFrame:
    """Drop the columns that depend on the speed of the machine, to compare two runs exactly."""
    return table.drop(columns=[name for name in CLOCK_COLUMNS if name in table])


def read_sessions(paths: RunLayout, trial: int) -> list[SessionResult]:
    """Every session of the trial that has a table."""
    random_mean = _random_mean(paths.predir, trial)
    results = []
    for session in paths.sessions(trial):
        path = paths.session_csv(trial, session, "train")
        train = read_session(path, folder=paths.predir)
        path = paths.session_csv(trial, session, "eval")
        # The eval table is written last: a session that was killed has none, and its training
        # table stands in.
        own_eval = read_session(path, folder=paths.predir) if path.exists() else train
        tables: dict[Mode, pd.DataFrame] = {"train": train, "eval": own_eval}
        metrics = {mode: session_metrics(table, random_mean) for mode, table in tables.items()}
        results.append(SessionResult(session, tables, metrics))
    return results


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
