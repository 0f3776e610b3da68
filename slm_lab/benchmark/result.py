"""The result of a row: a folder from which its line of the tables is made, and its score checked.

result.json        scores, evaluation and provenance of every trial
returns.csv.gz     the return at every checkpoint of every session, of which the scores are made
NAME_spec.json     the spec that ran, every key written out, with the seed of trial 0
model/             final policies, as safetensors; `slm-lab enjoy` and `eval` take the folder
plot.png           the curves
attempts.jsonl     the ledger, see ledger.py
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path

import pandas as pd

from slm_lab.analysis.curves import thinned
from slm_lab.analysis.metrics import moving_average
from slm_lab.benchmark.ledger import LEDGER
from slm_lab.benchmark.manifest import Part
from slm_lab.benchmark.plots import plot_sessions
from slm_lab.benchmark.seeds import derived_seed
from slm_lab.error import LabError
from slm_lab.spec import Spec, read_saved_spec

RESULT, RETURNS, PLOT, MODELS = "result.json", "returns.csv.gz", "plot.png", "model"
OLD_CURVE = "curve.csv"  # of results of before returns were kept: moving averages, thinned
EPISODES = 100  # of the evaluation of each final agent
POLICY_BYTES = 300_000  # of all policies of a row together
CURVE_POINTS = 200
DIGITS = "%.8g"


class ResultError(LabError):
    """A result that cannot be read or collected; the message names the folder and the reason."""


class Evaluated(Part):
    """Evaluation of the final agents; `sessions` are means over fresh episodes."""

    agent: str
    policy: str
    episodes: int
    seed: int
    sessions: Mapping[int, float]


class Provenance(Part):
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
    precision: str | None = None
    started: str
    sittings: int
    seconds: float | None
    cpu_seconds: float | None


class TrialResult(Part):
    """One trial; `sessions` maps each session to its `total_reward_ma`."""

    seed: int
    folder: str
    frame: int
    sessions: Mapping[int, float]
    metrics: Mapping[str, float | None]
    evaluation: Evaluated | None
    provenance: Provenance


class Result(Part):
    """The scores of one row; `total_reward_ma` is the mean over the sessions of all trials."""

    row: str
    fingerprint: str
    total_reward_ma: float
    trials: tuple[TrialResult, ...]

    @property
    def scores(self) -> dict[str, float]:
        """Score of each session, by its name."""
        return dict(_named(trial.sessions for trial in self.trials))

    @property
    def evaluated(self) -> dict[str, float]:
        """Mean return of each final agent, by the name of its session."""
        each = (trial.evaluation for trial in self.trials)
        return dict(_named(found.sessions if found else {} for found in each))


def is_derived(result: Result) -> bool:
    """Whether the seed of every trial follows from the spec."""
    seeds = [derived_seed(result.fingerprint, trial) for trial in range(len(result.trials))]
    return seeds == [trial.seed for trial in result.trials]


def session_label(trial: int, session: int) -> str:
    """Name of a session among those of all trials, such as `t1_s0`."""
    return f"t{trial}_s{session}"


def _named(trials: Iterator[Mapping[int, float]]) -> Iterator[tuple[str, float]]:
    for trial, sessions in enumerate(trials):
        for session, score in sorted(sessions.items()):
            yield session_label(trial, session), score


@dataclass(frozen=True)
class CollectedResult:
    """A result with the spec that ran and the returns at every checkpoint: one column per session,
    indexed by frame. `policies` are safetensors files by name."""

    result: Result
    spec: Spec
    returns: pd.DataFrame | None
    policies: Mapping[str, bytes] = field(default_factory=dict)
    old_curve: pd.DataFrame | None = None

    @cached_property
    def averages(self) -> pd.DataFrame:
        """The moving average of each session; its last value is the score."""
        if self.returns is None:
            return pd.DataFrame() if self.old_curve is None else self.old_curve
        columns = {name: self.returns[name].dropna() for name in self.returns}
        averages = {n: pd.Series(moving_average(c), index=c.index) for n, c in columns.items()}
        return pd.DataFrame(averages).sort_index().rename_axis("frame")

    @cached_property
    def curve(self) -> pd.DataFrame:
        """The averages at CURVE_POINTS frames at most, the first and the last included."""
        return thinned(self.averages, CURVE_POINTS)


def write_result(kept: CollectedResult, folder: Path) -> None:
    """Write a result beside its folder and rename it, so that a folder is complete or absent."""
    beside = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    (beside / MODELS).mkdir(parents=True)
    (beside / RESULT).write_text(json.dumps(kept.result.model_dump(mode="json"), indent=1) + "\n")
    if kept.returns is not None:
        text = kept.returns.to_csv(float_format=DIGITS, lineterminator="\n")
        (beside / RETURNS).write_bytes(gzip.compress(text.encode(), mtime=0))
    tree = kept.spec.resolved() | {"name": kept.spec.name}
    tree.pop("search", None)
    (beside / f"{kept.spec.name}_spec.json").write_text(json.dumps(tree, indent=1) + "\n")
    for name, policy in kept.policies.items():
        (beside / MODELS / name).write_bytes(policy)
    plot_sessions(kept.curve, beside / PLOT, title=kept.result.row)
    if (folder / LEDGER).is_file():
        shutil.copy2(folder / LEDGER, beside)
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)


def read_result(folder: Path) -> CollectedResult | None:
    """Read a result; None where there is none, a ResultError for a damaged one."""
    path = folder / RESULT
    if not path.is_file():
        return None
    returns = old_curve = None
    try:
        result = Result.model_validate(json.loads(path.read_text()))
        path = spec_path(folder)
        spec = read_saved_spec(path)
        path = folder / RETURNS
        if path.is_file():
            table = gzip.decompress(path.read_bytes())
            returns = pd.read_csv(BytesIO(table), index_col="frame").astype("float64")
        elif (path := folder / OLD_CURVE).is_file():
            old_curve = pd.read_csv(path, index_col="frame").astype("float64")
    except (OSError, EOFError, ValueError, LabError) as error:
        reason = str(error).splitlines()[0]
        raise ResultError(
            f"{path}: cannot be read ({reason}). Collect it again from its run folder."
        ) from None
    return CollectedResult(result, spec, returns, old_curve=old_curve)


def spec_path(folder: Path) -> Path:
    """The file of the spec that ran."""
    return next(iter(sorted(folder.glob("*_spec.json"))), folder / "NAME_spec.json")


def read_results(results_dir: Path) -> dict[str, CollectedResult]:
    """Read all results, by the id of their row."""
    kept = ((folder.name, read_result(folder)) for folder in result_folders(results_dir))
    return {name: found for name, found in kept if found is not None}


def result_folders(results_dir: Path) -> list[Path]:
    folders = sorted(results_dir.iterdir()) if results_dir.is_dir() else []
    return [f for f in folders if f.is_dir() and not f.name.startswith(".")]
