"""A trial read from its run folder, of this or the original SLM Lab, for comparisons.

A folder may come from anywhere: only CSV, JSON and YAML are read, no link in it is followed, sizes
are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from slm_lab.analysis.metrics import measured_baselines, random_baseline
from slm_lab.analysis.tables import read_session
from slm_lab.runs.files import MAX_TABLE_BYTES, read_json, read_spec_tree
from slm_lab.spec.algorithm import algorithm_label
from slm_lab.spec.catalog import target_score
from slm_lab.spec.run_folder import RunFolderError, listed, spec_files

NEEDED = ("frame", "total_reward")


@dataclass(frozen=True, slots=True)
class SavedTrial:
    """`sessions` are tables with at least `frame` and `total_reward`, one row per checkpoint."""

    folder: Path
    name: str  # of the spec
    trial: int
    algorithm: str  # as graphs call it: PPO, DDQN+PER
    env: str
    target: float | None
    random_mean: float | None
    seed: int | None
    sessions: Mapping[int, pd.DataFrame]


def read_trial(folder: Path, trial: int | None = None) -> SavedTrial:
    """A trial of a run folder; without a number, the first that has results."""
    name, specs = spec_files(folder)
    if trial is None:
        trial = min(_trials_with_results(folder, name), default=0)
    spec_path = specs.get(trial) or specs.get(None)
    if spec_path is None:
        raise RunFolderError(f"{folder}: no spec of trial {trial}, expected {name}_spec.json")
    tree = read_spec_tree(folder, spec_path)
    agent, env = _first(tree, "agent"), _first(tree, "env")
    algorithm, memory = _mapping(agent.get("algorithm")), _mapping(agent.get("memory"))
    env_name = str(env.get("name", ""))
    seed = _mapping(tree.get("meta")).get("random_seed")
    return SavedTrial(
        folder=folder,
        name=name,
        trial=trial,
        algorithm=algorithm_label(str(algorithm.get("name", name)), str(memory.get("name", ""))),
        env=env_name,
        target=target_score(env_name, env),
        random_mean=random_baseline(env_name, measured_baselines(folder)),
        seed=seed if isinstance(seed, int) else None,
        sessions=_sessions(folder, f"{name}_t{trial}"),
    )


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
            f"info/{unit}_s0_session_df_eval.csv or info/{unit}_trial_metrics.json with rows"
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
    missing = [name for name in NEEDED if name not in table]
    if missing:
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
