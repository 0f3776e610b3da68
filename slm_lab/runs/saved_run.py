"""One trial of a run folder, ours or the original's: its saved agents and scores."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from slm_lab.runs.files import MAX_METRICS_BYTES, read_json_or_empty
from slm_lab.runs.layout import RunLayout
from slm_lab.spec import Spec
from slm_lab.spec.run_folder import RunFolderError, listed


@dataclass(frozen=True, slots=True)
class SavedRun:
    """One trial of a run folder."""

    layout: RunLayout
    trial: int
    spec: Spec

    def sessions(self, *, best: bool = True) -> tuple[int, ...]:
        """Sessions with a saved agent, best or last."""
        if not self.spec.agent.algorithm_info.learns:  # it has no net to save
            return self.layout.sessions(self.trial)
        saved = _saved_agents(self.layout)
        return tuple(
            sorted(s for trial, s, is_best in saved if (trial, is_best) == (self.trial, best))
        )

    def best_session(self, *, best: bool = True) -> int:
        """The session with the highest training score, among those with a saved agent."""
        sessions = self.sessions(best=best)
        if not sessions:
            raise RunFolderError(
                f"{self.layout.predir / 'model'}: no {'best' if best else 'last'} agent of trial "
                f"{self.trial}, expected {self.model_path(0, 'net', best=best).name} or that of "
                "another session. See the folder's log; --trial and --last choose others."
            )
        return max(sessions, key=lambda session: _or_worst(self._score(session)))

    @property
    def score(self) -> float:
        """The trial's `total_reward_ma`; NaN if it has none."""
        return _read_score(self.layout.predir, self.layout.trial_metrics_scalar(self.trial))

    def model_path(self, session: int, net: str, *, best: bool) -> Path:
        return self.layout.model_path(self.trial, session, net, "model", best=best)

    def _score(self, session: int) -> float:
        path = self.layout.session_metrics_scalar(self.trial, session, "train")
        return _read_score(self.layout.predir, path)


def best_trial(layout: RunLayout) -> int:
    """The trial with the highest score, among those with a saved agent; 0 if there is none."""
    trials = sorted({trial for trial, _, _ in _saved_agents(layout)}) or [0]
    paths = {trial: layout.trial_metrics_scalar(trial) for trial in trials}
    return max(trials, key=lambda trial: _or_worst(_read_score(layout.predir, paths[trial])))


def _saved_agents(layout: RunLayout) -> set[tuple[int, int, bool]]:
    """(trial, session, whether it is the best) of every acting net on disk."""
    name = re.escape(layout.name)
    pattern = re.compile(rf"{name}_t(\d{{1,6}})_s(\d{{1,6}})(_ckpt-best)?_net_model\.pt")
    matches = (pattern.fullmatch(path.name) for path in listed(layout.predir / "model"))
    return {(int(m[1]), int(m[2]), m[3] is not None) for m in matches if m}


def _read_score(folder: Path, path: Path) -> float:
    """`total_reward_ma` of a metrics file; NaN if it has none."""
    try:
        return float(read_json_or_empty(folder, path, MAX_METRICS_BYTES)["total_reward_ma"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return math.nan


def _or_worst(score: float) -> float:
    return -math.inf if math.isnan(score) else score
