"""Session tables of a run folder, one row per checkpoint, with their metrics or for comparisons.

A folder may come from anywhere, of this or the original SLM Lab: only CSV, JSON and YAML are read,
no link in it is followed, sizes are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from loguru import logger

from slm_lab.analysis.metrics import Metrics, measured_baselines, random_baseline, session_metrics
from slm_lab.runs.files import MAX_TABLE_BYTES, read_json, read_spec_tree, read_text
from slm_lab.runs.layout import Mode, RunLayout
from slm_lab.spec.algorithm import algorithm_label
from slm_lab.spec.catalog import target_score
from slm_lab.spec.env import GIVEN
from slm_lab.spec.run_folder import RunFolderError, listed, spec_files

CLOCK_COLUMNS = ("fps", "wall_t")


@dataclass(frozen=True, slots=True)
class SessionResult:
    """Tables of a session with their metrics: "train", and "eval" if episodes apart from training
    were played."""

    index: int
    tables: Mapping[Mode, pd.DataFrame]
    metrics: Mapping[Mode, Metrics]

    @property
    def table(self) -> pd.DataFrame:
        """The table that the session is scored by: that of its evaluations, if it has any."""
        return self.tables.get("eval", self.tables["train"])

    @property
    def scored(self) -> Metrics:
        return self.metrics.get("eval", self.metrics["train"])


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
        train = read_session(paths.session_csv(trial, session, "train"), folder=paths.predir)
        path = paths.session_csv(trial, session, "eval")
        tables: dict[Mode, pd.DataFrame] = {"train": train}
        evaluations = read_session(path, folder=paths.predir) if path.exists() else train
        if not evaluations.equals(train):  # earlier versions, and the original, write a copy
            tables["eval"] = evaluations
        metrics = {mode: session_metrics(table, random_mean) for mode, table in tables.items()}
        results.append(SessionResult(session, tables, metrics))
    return results


def _random_mean(predir: Path, trial: int) -> float:
    facts = read_facts(predir, trial)
    if not facts.env:
        raise RunFolderError(f"{predir}: its spec names no env, expected `env.name`.")
    if facts.random_mean is None and facts.env.startswith(GIVEN):
        return 0.0  # an object: no command could measure it
    if facts.random_mean is None:
        logger.warning(
            f"env.name: no random-policy baseline is known for {facts.env}, so strength counts "
            f"from a return of 0. Measure it with: slm-lab env baseline {facts.env}"
        )
        return 0.0
    return facts.random_mean


@dataclass(frozen=True, slots=True)
class TrialFacts:
    """What the saved spec of a trial says of it."""

    folder: Path
    name: str  # of the spec
    trial: int
    algorithm: str  # as graphs call it: PPO, DDQN+PER
    env: str
    target: float | None
    random_mean: float | None
    seed: int | None


def read_facts(folder: Path, trial: int) -> TrialFacts:
    name, specs = spec_files(folder)
    spec_path = specs.get(trial) or specs.get(None)
    if spec_path is None:
        raise RunFolderError(f"{folder}: no spec of trial {trial}, expected {name}_spec.json")
    tree = read_spec_tree(folder, spec_path)
    agent, env = _first(tree, "agent"), _first(tree, "env")
    algorithm, memory = _mapping(agent.get("algorithm")), _mapping(agent.get("memory"))
    env_name = str(env.get("name", ""))
    seed = _mapping(tree.get("meta")).get("random_seed")
    return TrialFacts(
        folder=folder,
        name=name,
        trial=trial,
        algorithm=algorithm_label(str(algorithm.get("name", name)), str(memory.get("name", ""))),
        env=env_name,
        target=target_score(env_name, env),
        random_mean=random_baseline(env_name, measured_baselines(folder)),
        seed=seed if isinstance(seed, int) else None,
    )


# Trials to compare


@dataclass(frozen=True, slots=True)
class SavedTrial(TrialFacts):
    """A trial to compare; `sessions` are tables with at least `frame` and `total_reward`."""

    sessions: Mapping[int, pd.DataFrame]


def read_trial(folder: Path, trial: int | None = None) -> SavedTrial:
    """A trial of a run folder; without a number, the first that has results."""
    name, _ = spec_files(folder)
    if trial is None:
        trial = min(_trials_with_results(folder, name), default=0)
    facts = read_facts(folder, trial)
    known = {each.name: getattr(facts, each.name) for each in fields(facts)}
    return SavedTrial(**known, sessions=_sessions(folder, f"{name}_t{trial}"))


def _trials_with_results(folder: Path, name: str) -> set[int]:
    pattern = re.compile(
        rf"{re.escape(name)}_t(\d{{1,6}})_(s\d+_session_df_(train|eval)\.csv|trial_metrics\.json)"
    )
    matches = (pattern.fullmatch(path.name) for path in listed(folder / "info"))
    return {int(match[1]) for match in matches if match}


def _sessions(folder: Path, unit: str) -> dict[int, pd.DataFrame]:
    """Read the session tables; without any, the series in the metrics of the trial."""
    pattern = re.compile(rf"{re.escape(unit)}_s(\d{{1,6}})_session_df_(train|eval)\.csv")
    paths: dict[int, Path] = {}
    for path in listed(folder / "info"):  # eval comes before train
        if match := pattern.fullmatch(path.name):
            paths.setdefault(int(match[1]), path)
    sessions = {
        index: _checked(read_session(path, folder=folder), path)
        for index, path in sorted(paths.items())
    }
    if not sessions:
        sessions = _from_trial_metrics(folder, folder / "info" / f"{unit}_trial_metrics.json")
    sessions = {index: table for index, table in sessions.items() if not table.empty}
    if not sessions:
        raise RunFolderError(
            f"{folder}: no results of trial {unit.rsplit('_t', 1)[1]}, expected "
            f"info/{unit}_s0_session_df_train.csv or info/{unit}_trial_metrics.json with rows"
        )
    return sessions


def _from_trial_metrics(folder: Path, path: Path) -> dict[int, pd.DataFrame]:
    """The original's plots read this file alone: returns per session, frames of the first."""
    if not path.exists():
        return {}
    try:
        local = read_json(folder, path, MAX_TABLE_BYTES)["local"]
        frames = np.asarray(local["frames"], dtype=np.float64)
        steps = np.asarray(local.get("opt_steps", []), dtype=np.float64)
        returns = [np.asarray(series, dtype=np.float64) for series in local["mean_returns"]]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunFolderError(f"{path}: not a metrics file ({error!r:.200})") from None
    sessions = {}
    for index, series in enumerate(returns):
        rows = min(len(series), len(frames)) if series.ndim == 1 else 0
        columns = {"frame": frames[:rows], "total_reward": series[:rows]}
        if len(steps) >= rows:
            columns["opt_step"] = steps[:rows]
        sessions[index] = _checked(pd.DataFrame(columns), path)
    return sessions


def _checked(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    if missing := [name for name in ("frame", "total_reward") if name not in table]:
        raise RunFolderError(f"{path}: lacks the column {', '.join(missing)}")
    table = table[table["frame"].notna()]
    return table.sort_values("frame", kind="stable").drop_duplicates("frame", keep="last")


def _first(tree: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A block of the spec; SLM Lab v4 has a list of one."""
    block = tree.get(key)
    if isinstance(block, Sequence) and not isinstance(block, str) and block:
        block = block[0]
    return _mapping(block)


def _mapping(block: object) -> Mapping[str, Any]:
    return block if isinstance(block, Mapping) else {}
