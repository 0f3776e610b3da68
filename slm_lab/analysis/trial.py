"""From the session tables on disk to everything a trial has to show for itself."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import pandas as pd
from loguru import logger

from slm_lab.analysis.metrics import (
    TRIAL_SCALARS,
    Series,
    SessionMetrics,
    TrialStatistics,
    moving_average,
    random_baseline,
    session_metrics,
    trial_metrics,
)
from slm_lab.analysis.plot import plot_curves, plot_session, plot_trial, plot_trial_html
from slm_lab.analysis.tables import read_session

Mode = Literal["train", "eval"]

OPTIONAL_GRAPHS = ("loss", "explore_var", "entropy")  # drawn where the column exists
EXTRA_GRAPHS = {  # local series, and what each is drawn against
    "strengths": "frames",
    "sample_efficiencies": "frames",
    "stabilities": "frames",
    "training_efficiencies": "opt_steps",
}


class RunPaths(Protocol):
    """The paths that analysis reads and writes; `experiment.layout.RunLayout` provides them.

    Stated here because analysis sits beside the experiment room and does not import it.
    """

    @property
    def predir(self) -> Path: ...
    @property
    def name(self) -> str: ...
    def sessions(self, trial: int) -> tuple[int, ...]: ...
    def trial_name(self, trial: int) -> str: ...
    def session_name(self, trial: int, session: int) -> str: ...
    def trial_spec_path(self, trial: int) -> Path: ...
    def session_csv(self, trial: int, session: int, mode: Mode) -> Path: ...
    def session_metrics(self, trial: int, session: int, mode: Mode) -> Path: ...
    def session_metrics_scalar(self, trial: int, session: int, mode: Mode) -> Path: ...
    def session_graph(self, trial: int, session: int, mode: Mode, y: str, x: str) -> Path: ...
    def trial_metrics(self, trial: int) -> Path: ...
    def trial_metrics_scalar(self, trial: int) -> Path: ...
    def trial_metrics_scalar_copy(self, trial: int) -> Path: ...
    def trial_graph(self, trial: int, y: str, x: str = "frames") -> Path: ...
    def trial_graph_copy(self, trial: int, y: str) -> Path: ...
    def trial_graph_html(self, trial: int) -> Path: ...


@dataclass(frozen=True, slots=True)
class TrialMetrics:
    """The result of a trial: its headline numbers, its sessions' numbers, and where to look.

    Numbers are means over sessions. `diverged` maps a session to how it broke down; one such
    session makes the means NaN. `failed` maps a session that crashed to its error; what it measured
    before still counts.
    """

    frame: float
    total_reward_ma: float
    strength: float
    max_strength: float
    final_strength: float
    sample_efficiency: float
    training_efficiency: float
    stability: float
    consistency: float
    sessions: Mapping[int, Mapping[str, float]] = field(repr=False)
    diverged: Mapping[int, str]
    failed: Mapping[int, str]
    predir: Path
    graph_png: Path
    graph_html: Path | None

    @property
    def scalars(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in TRIAL_SCALARS}

    def summary_line(self) -> str:
        """The line that tools grep for."""
        cells = (f"{name}:{_format_value(name, value)}" for name, value in self.scalars.items())
        return f"trial_metrics: {' | '.join(cells)}"


@dataclass(frozen=True, slots=True)
class _Session:
    index: int
    tables: Mapping[Mode, pd.DataFrame]
    metrics: Mapping[Mode, SessionMetrics]


def analyze_trial(
    paths: RunPaths,
    trial: int,
    *,
    log_extra: bool = False,
    html: bool = True,
    write: bool = True,
    failed: Mapping[int, str] | None = None,
) -> TrialMetrics:
    """Read the trial's session tables, write its metrics and graphs, and return its metrics.

    Reads only files, so it serves a run that just ended as well as one from long ago. A search of
    many trials may do without the interactive graphs: `html` costs over 4 MB each. Without `write`
    the folder stays as it is.
    """
    random_mean = _random_mean(paths.trial_spec_path(trial), measured_baselines(paths.predir))
    sessions = [_read(paths, trial, session, random_mean) for session in paths.sessions(trial)]
    if not sessions:
        raise FileNotFoundError(
            f"{paths.predir / 'info'}: no session table of trial {trial}, expected files such as "
            f"{paths.session_csv(trial, 0, 'train').name}. Did its sessions stop before the first "
            "checkpoint (`meta.log_frequency`)? See the log folder."
        )
    diverged = {
        session.index: reason
        for session in sessions
        if (reason := session.metrics["eval"].diverged) is not None
    }
    for index, reason in diverged.items():
        logger.warning(f"Trial {trial} session {index} diverged: {reason}. Its metrics are NaN.")

    statistics = trial_metrics([session.metrics["eval"] for session in sessions])
    if write:
        for session in sessions:
            _write_session(paths, trial, session, log_extra=log_extra)
        _write_trial(paths, trial, sessions, statistics, log_extra=log_extra, html=html)
    return TrialMetrics(
        **statistics.scalar,
        sessions={session.index: session.metrics["eval"].scalar for session in sessions},
        diverged=diverged,
        failed=dict(failed or {}),
        predir=paths.predir,
        graph_png=paths.trial_graph_copy(trial, "mean_returns_ma"),
        graph_html=paths.trial_graph_html(trial) if html else None,
    )


def measured_baselines(predir: Path) -> Path:
    """Random-policy scores measured here, beside the run folders they serve."""
    return predir.parent / "random_baseline.json"


def _random_mean(trial_spec_path: Path, measured: Path) -> float:
    env_name = json.loads(trial_spec_path.read_text())["env"]["name"]
    random_mean = random_baseline(env_name, measured)
    if random_mean is None:
        logger.warning(
            f"env.name: no random-policy baseline is known for {env_name}, so strength counts "
            f"from a return of 0. Measure it with: slm-lab env baseline {env_name}"
        )
        return 0.0
    return random_mean


def _read(paths: RunPaths, trial: int, session: int, random_mean: float) -> _Session:
    train = read_session(paths.session_csv(trial, session, "train"))
    eval_path = paths.session_csv(trial, session, "eval")
    # The eval table is written last: a session that was killed has none, and its training table
    # stands in.
    tables: dict[Mode, pd.DataFrame] = {
        "train": train,
        "eval": read_session(eval_path) if eval_path.exists() else train,
    }
    metrics = {mode: session_metrics(table, random_mean) for mode, table in tables.items()}
    return _Session(session, tables, metrics)


def _write_session(paths: RunPaths, trial: int, session: _Session, *, log_extra: bool) -> None:
    for mode in session.tables:
        metrics = session.metrics[mode]
        _write_json(paths.session_metrics(trial, session.index, mode), metrics.to_json())
        _write_json(paths.session_metrics_scalar(trial, session.index, mode), dict(metrics.scalar))
    names = list(_draw_session(paths, trial, session, "train", log_extra=log_extra))
    if session.tables["train"].equals(session.tables["eval"]):
        for y, x in names:  # drawing is slow, copying is not
            shutil.copyfile(
                paths.session_graph(trial, session.index, "train", y, x),
                paths.session_graph(trial, session.index, "eval", y, x),
            )
    else:
        list(_draw_session(paths, trial, session, "eval", log_extra=log_extra))


def _draw_session(
    paths: RunPaths, trial: int, session: _Session, mode: Mode, *, log_extra: bool
) -> Iterator[tuple[str, str]]:
    """Draw the session's graphs, yielding what each shows: y and x as its file name has them."""
    table, local = session.tables[mode], session.metrics[mode].local
    title = f"{paths.session_name(trial, session.index)} {mode}"

    def path(y: str, x: str) -> Path:
        return paths.session_graph(trial, session.index, mode, y, x)

    for y, smooth in (("mean_returns", False), ("mean_returns_ma", True)):
        plot_session(table, "total_reward", path(y, "frames"), title=title, smooth=smooth)
        yield y, "frames"
    for y in OPTIONAL_GRAPHS:
        if y in table and table[y].notna().any():
            plot_session(table, y, path(y, "frame"), title=title)
            yield y, "frame"
    if log_extra:
        for name, x in EXTRA_GRAPHS.items():
            for y, smooth in ((name, False), (f"{name}_ma", True)):
                line = _local_curve(local, name, x, smooth=smooth)
                plot_curves([line], path(y, x), title=title, y_label=y, x_label=x)
                yield y, x


def _write_trial(
    paths: RunPaths,
    trial: int,
    sessions: Sequence[_Session],
    statistics: TrialStatistics,
    *,
    log_extra: bool,
    html: bool,
) -> None:
    _write_json(paths.trial_metrics(trial), statistics.to_json())
    _write_json(paths.trial_metrics_scalar(trial), dict(statistics.scalar))
    shutil.copyfile(paths.trial_metrics_scalar(trial), paths.trial_metrics_scalar_copy(trial))

    tables = [session.tables["eval"] for session in sessions]
    title = paths.trial_name(trial)
    for y, smooth in (("mean_returns", False), ("mean_returns_ma", True)):
        plot_trial(tables, paths.trial_graph(trial, y), title=title, smooth=smooth)
        shutil.copyfile(paths.trial_graph(trial, y), paths.trial_graph_copy(trial, y))
    if html:
        plot_trial_html(tables, paths.trial_graph_html(trial), title=title)

    if log_extra:
        locals_ = [session.metrics["eval"].local for session in sessions]
        for name, x in EXTRA_GRAPHS.items():
            for y, smooth in ((name, False), (f"{name}_ma", True)):
                lines = [_local_curve(local, name, x, smooth=smooth) for local in locals_]
                path = paths.trial_graph(trial, y, x)
                plot_curves(lines, path, title=title, y_label=y, x_label=x)
        consistencies = statistics.local["consistencies"]
        frames = statistics.local["frames"][: len(consistencies)]
        line = pd.Series(consistencies[: len(frames)], index=frames)
        path = paths.trial_graph(trial, "consistencies")
        plot_curves([line], path, title=title, y_label="consistencies")


def _local_curve(local: Mapping[str, Series], name: str, x: str, *, smooth: bool) -> pd.Series:
    values = moving_average(local[name]) if smooth else local[name]
    # A series of differences (stabilities) has no entry for the first checkpoint.
    return pd.Series(values, index=local[x][len(local[x]) - len(values) :])


def _write_json(path: Path, content: object) -> None:
    # NaN becomes the bare token NaN, which is not strict JSON but what readers of these files know.
    path.write_text(json.dumps(content) + "\n")


def _format_value(key: str, value: float) -> str:
    """As the console of the experiment room prints it; the two may not import each other."""
    if math.isnan(value):
        return "nan"
    if key == "frame":
        return f"{value:.2e}"
    if key == "total_reward_ma":
        return f"{value:.2f}"
    return f"{value:g}" if value.is_integer() else f"{value:.4g}"
