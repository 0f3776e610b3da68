"""The result of a run: a folder of a few kilobytes, from which the tables are made.

result.json   scores, evaluation, provenance
curve.csv     the learning curve of each session, thinned out
spec.json     the spec that ran
plot.png      the curves drawn

The plots of the page, of all algorithms on an env, are drawn here too: small PNG files for the
repository.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from slm_lab.analysis.curves import SMOOTH_LABEL
from slm_lab.analysis.plot import draw_mean, dress
from slm_lab.analysis.style import MEAN_COLOR, SESSION_COLOR, line_styles
from slm_lab.benchmark.manifest import Part
from slm_lab.error import LabError
from slm_lab.spec import Spec, read_saved_spec

RESULT, CURVE, SPEC, PLOT = "result.json", "curve.csv", "spec.json", "plot.png"
EPISODES = 100  # of the evaluation of each final agent
COLORS = 64  # lines on white need no more, and the file shrinks to a third
SOURCE_KEY = "slm-lab-curves"  # PNG text: the digest of the numbers that are drawn


class ResultError(LabError):
    """A result that cannot be read or collected; the message names the folder and the reason."""


class Evaluated(Part):
    """Evaluation of the final agents; `sessions` are means over fresh episodes."""

    agent: str
    policy: str
    episodes: int
    seed: int
    mean: float
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
    started: str
    sittings: int
    seconds: float | None
    cpu_seconds: float | None


class Result(Part):
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
        result = Result.model_validate(json.loads(path.read_text()))
        path = folder / SPEC
        spec = read_saved_spec(path)
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
    kept = ((folder.name, read_result(folder)) for folder in result_folders(results_dir))
    return {name: found for name, found in kept if found is not None}


def result_folders(results_dir: Path) -> list[Path]:
    folders = sorted(results_dir.iterdir()) if results_dir.is_dir() else []
    return [f for f in folders if f.is_dir() and not f.name.startswith(".")]


# Plots


def plot_sessions(curve: pd.DataFrame, path: Path, *, title: str) -> None:
    """Draw the sessions of one row as thin lines under their mean."""
    figure, axes = _figure(title)
    for name in curve:
        axes.plot(curve.index, curve[name], color=SESSION_COLOR, linewidth=0.7, alpha=0.6)
    axes.plot(curve.index, curve.mean(axis=1), color=MEAN_COLOR, linewidth=2)
    _save(figure, path, curves_digest({title: curve}))


def plot_algorithms(curves: Mapping[str, pd.DataFrame], path: Path, *, title: str) -> None:
    """Draw the mean of each algorithm with a band of one standard deviation over its sessions.

    A file that shows these numbers already is not drawn again, because another version of
    matplotlib would draw other bytes.
    """
    digest = curves_digest(curves)
    if drawn_from(path) == digest:
        return
    figure, axes = _figure(title)
    styles = line_styles(list(curves))
    for (algorithm, curve), style in zip(curves.items(), styles, strict=True):
        mean, std = curve.mean(axis=1), curve.std(axis=1).fillna(0.0)
        draw_mean(axes, mean, std, style, label=algorithm, linewidth=1.8, markersize=4)
    axes.legend(loc="best", frameon=False, fontsize=8)
    _save(figure, path, digest)


def drawn_from(path: Path) -> str | None:
    """The digest in the metadata of a plot, or None where there is no such plot."""
    try:
        with Image.open(path) as image:
            found = image.info.get(SOURCE_KEY)
            return found if isinstance(found, str) else None
    except (OSError, SyntaxError):
        return None


def curves_digest(curves: Mapping[str, pd.DataFrame]) -> str:
    """Digest of the numbers of a plot."""
    text = "".join(f"{name}\n{curve.to_csv(float_format='%.6g')}" for name, curve in curves.items())
    return hashlib.sha256(text.encode()).hexdigest()


def _figure(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.4, 3.6), dpi=90, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("frames", fontsize=8)
    axes.set_ylabel(SMOOTH_LABEL, fontsize=7)
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    dress(axes)
    axes.margins(x=0.05)
    return figure, axes


def _save(figure: Figure, path: Path, digest: str) -> None:
    drawn = BytesIO()
    figure.savefig(drawn, format="png")
    text = PngInfo()
    text.add_text(SOURCE_KEY, digest)
    small = Image.open(drawn).convert("RGB").quantize(COLORS)
    path.parent.mkdir(parents=True, exist_ok=True)
    small.save(path, optimize=True, pnginfo=text)
