"""Metrics and graphs of a trial, from the session tables in its run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from loguru import logger

from slm_lab.analysis.metrics import TRIAL_SCALARS, Metrics, trial_metrics
from slm_lab.analysis.tables import SessionResult, read_sessions
from slm_lab.runs.files import write_atomic
from slm_lab.runs.glossary import format_value
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.resume import stop_reasons


@dataclass(frozen=True, slots=True)
class TrialMetrics:
    """The result of a trial: its metrics, those of its sessions, and its files.

    Numbers are means over sessions. `diverged` maps a session to how it broke down; one such
    session makes the means NaN. `failed` maps a session that crashed to its error; what it measured
    before still counts. `last_100_return` is that of training and NaN in a run of an earlier
    version. `stopped` maps a session that a callback ended to the reason.
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
    last_100_return: float
    sessions: Mapping[int, Mapping[str, float]] = field(repr=False)
    diverged: Mapping[int, str]
    failed: Mapping[int, str]
    predir: Path
    graph_png: Path
    graph_html: Path | None
    stopped: Mapping[int, str] = field(default_factory=dict)

    @property
    def scalars(self) -> dict[str, float]:
        """The metrics by their names."""
        return {name: getattr(self, name) for name in TRIAL_SCALARS}

    def summary_line(self) -> str:
        """All metrics in one line, which tools search the output for."""
        cells = (f"{name}:{format_value(name, value)}" for name, value in self.scalars.items())
        return f"trial_metrics: {' | '.join(cells)}"


def analyze_trial(
    paths: RunLayout,
    trial: int,
    *,
    log_extra: bool = False,
    html: bool = True,
    write: bool = True,
    failed: Mapping[int, str] | None = None,
) -> TrialMetrics:
    """Read the trial's session tables, write its metrics and graphs, and return its metrics.

    Only files are read, so the run may have ended just now or long ago. Without `html` there are no
    pages and no axes other than frames, as for the trials of a search. Without `write` the folder
    stays as it is.
    """
    sessions = read_sessions(paths, trial)
    if not sessions:
        raise FileNotFoundError(
            f"{paths.predir / 'info'}: no session table of trial {trial}, expected files such as "
            f"{paths.session_csv(trial, 0, 'train').name}. Did its sessions stop before the first "
            "checkpoint (`meta.log_frequency`)? See the log folder."
        )
    reasons = {session.index: session.scored.diverged for session in sessions}
    diverged = {index: reason for index, reason in reasons.items() if reason is not None}
    for index, reason in diverged.items():
        logger.warning(f"Trial {trial} session {index} diverged: {reason}. Its metrics are NaN.")

    stopped = stop_reasons(paths, trial, [session.index for session in sessions])
    statistics = trial_metrics([session.scored for session in sessions])
    if write:
        # matplotlib is imported here, where something is drawn: a run starts at once without it.
        from slm_lab.analysis.trial_graphs import draw_trial

        _write_metrics(paths, trial, sessions, statistics, stopped)
        draw_trial(paths, trial, sessions, log_extra=log_extra, html=html)
        # Written last: where this file is, all others are complete.
        _write_json(paths, paths.trial_metrics_scalar_copy(trial), statistics.scalar)
    return TrialMetrics(
        **statistics.scalar,
        sessions={session.index: session.scored.scalar for session in sessions},
        diverged=diverged,
        failed=dict(failed or {}),
        predir=paths.predir,
        graph_png=paths.trial_graph_copy(trial, "mean_returns_ma"),
        graph_html=paths.trial_graph_html(trial) if html else None,
        stopped=stopped,
    )


def analyze_ended_trial(
    paths: RunLayout,
    trial: int,
    *,
    log_extra: bool = False,
    html: bool = True,
    failed: Mapping[int, str] | None = None,
) -> TrialMetrics:
    """`analyze_trial` of a trial that has just ended, whose score survives a full disk."""
    try:
        return analyze_trial(paths, trial, log_extra=log_extra, html=html, failed=failed)
    except FileNotFoundError:
        raise
    except OSError as error:
        logger.warning(
            f"{error.filename or paths.predir}: not written ({error.strerror or error}). Metrics "
            f"and graphs of trial {trial} are incomplete; once there is space: "
            f"slm-lab retro {paths.predir}"
        )
        return analyze_trial(paths, trial, html=html, write=False, failed=failed)


def _write_metrics(
    paths: RunLayout,
    trial: int,
    sessions: Sequence[SessionResult],
    statistics: Metrics,
    stopped: Mapping[int, str],
) -> None:
    for session in sessions:
        for mode, metrics in session.metrics.items():
            place = (trial, session.index, mode)
            _write_json(paths, paths.session_metrics(*place), metrics.to_json())
            _write_json(paths, paths.session_metrics_scalar(*place), metrics.scalar)
    reasons = {"stopped": stopped} if stopped else {}
    _write_json(paths, paths.trial_metrics(trial), statistics.to_json() | reasons)
    _write_json(paths, paths.trial_metrics_scalar(trial), statistics.scalar)


def _write_json(paths: RunLayout, path: Path, content: object) -> None:
    # NaN becomes the bare token NaN, which is not strict JSON but what readers of these files know.
    write_atomic(paths.predir, path, json.dumps(content, default=np.ndarray.tolist) + "\n")
