"""The result of a run: a folder of a few kilobytes, from which the tables are made.

result.json   scores, evaluation, provenance
curve.csv     the learning curve of each session, thinned out
spec.json     the spec that ran
plot.png      the curves drawn
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict

from slm_lab.benchmark.plot import plot_sessions
from slm_lab.error import LabError
from slm_lab.spec import Spec, load_spec

RESULT, CURVE, SPEC, PLOT = "result.json", "curve.csv", "spec.json", "plot.png"


class ResultError(LabError):
    """A result that cannot be read or collected; the message names the folder and the reason."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Evaluated(_Part):
    """Evaluation of the final agents; `sessions` are means over fresh episodes."""

    agent: str
    policy: str
    episodes: int
    seed: int
    mean: float
    sessions: Mapping[int, float]


class Provenance(_Part):
    """The code, machine and time of a run; None is unknown.

    A run that was resumed has several sittings, and one commit only if nobody changed the code in
    between. `cpu_seconds` are those of all sessions together.
    """

    mode: str
    git_shas: tuple[str | None, ...]
    git_dirty: bool | None
    versions: Mapping[str, str]
    cores: int | None
    machine: str
    started: str
    sittings: int
    seconds: float | None
    cpu_seconds: float | None


class Result(_Part):
    """The scores of one row; `sessions` maps each session to its `total_reward_ma`."""

    row: str
    folder: str
    seed: int
    frame: int
    total_reward_ma: float
    sessions: Mapping[int, float]
    metrics: Mapping[str, float | None]
    evaluation: Evaluated | None
    provenance: Provenance

    @property
    def spread(self) -> float | None:
        """Standard deviation over sessions."""
        return _spread(self.sessions)

    @property
    def evaluation_spread(self) -> float | None:
        return _spread(self.evaluation.sessions) if self.evaluation else None


@dataclass(frozen=True, slots=True)
class CollectedResult:
    """A result with the spec that ran and the curve: one column per session, indexed by frame."""

    result: Result
    spec: Spec
    curve: pd.DataFrame


def write_result(kept: CollectedResult, folder: Path) -> None:
    """Write a result beside its folder and rename it, so that a folder is complete or absent."""
    beside = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    (beside / RESULT).write_text(json.dumps(kept.result.model_dump(mode="json"), indent=2) + "\n")
    (beside / CURVE).write_text(kept.curve.to_csv(float_format="%.6g", lineterminator="\n"))
    tree = kept.spec.to_dict() | {"name": kept.spec.name}
    (beside / SPEC).write_text(json.dumps(tree, indent=1) + "\n")
    plot_sessions(kept.curve, beside / PLOT, title=kept.result.row)
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)


def read_result(folder: Path) -> CollectedResult | None:
    """Read a result; None where there is none, a ResultError for a damaged one."""
    path = folder / RESULT
    if not path.is_file():
        return None
    try:
        result = Result.model_validate(_read_json(path))
        path = folder / SPEC
        spec = load_spec(path)
        path = folder / CURVE
        curve = pd.read_csv(path, index_col="frame").astype("float64")
    except (OSError, ValueError, LabError) as error:
        reason = str(error).splitlines()[0]
        raise ResultError(
            f"{path}: cannot be read ({reason}). Collect it again from its run folder."
        ) from None
    return CollectedResult(result, spec, curve)


def read_results(results_dir: Path) -> dict[str, CollectedResult]:
    """Read all results, by the id of their row."""
    folders = sorted(results_dir.iterdir()) if results_dir.is_dir() else []
    kept = ((f.name, read_result(f)) for f in folders if f.is_dir() and not f.name.startswith("."))
    return {name: found for name, found in kept if found is not None}


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def _spread(sessions: Mapping[int, float]) -> float | None:
    return statistics.stdev(sessions.values()) if len(sessions) > 1 else None
