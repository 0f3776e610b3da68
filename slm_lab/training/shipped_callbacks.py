"""The callbacks that come with the package; `VideoEvery` is in `playback/video_callback.py`."""

from __future__ import annotations

import json
import math
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from loguru import logger

from slm_lab.spec.callback import (
    CommandAtEndSpec,
    CurriculumSpec,
    EarlyStoppingSpec,
    EvaluateEverySpec,
    PeriodicSpec,
    SaveEverySpec,
    StopAtScoreSpec,
    WebhookAtEndSpec,
)
from slm_lab.spec.trust import check_command
from slm_lab.training.callback import Callback, CallbackError, RunningSession


class Periodic(Callback):
    """Base of callbacks that do something at the first step at or after every so many frames."""

    spec_class = PeriodicSpec
    spec: PeriodicSpec
    _next = 0

    def on_training_start(self, session: RunningSession) -> None:
        self._plan(session)

    def on_step(self, session: RunningSession) -> None:
        if session.frame >= self._next:
            self._plan(session)
            self.on_due(session)

    def on_due(self, session: RunningSession) -> None:
        raise NotImplementedError

    def _plan(self, session: RunningSession) -> None:
        # By the frame alone: a resume comes to the same times.
        self._next = (session.frame // self.spec.every + 1) * self.spec.every


class SaveEvery(Periodic):
    spec_class = SaveEverySpec

    def on_due(self, session: RunningSession) -> None:
        session.save_agent(f"frame{session.frame}")


class EvaluateEvery(Periodic):
    spec_class = EvaluateEverySpec
    spec: EvaluateEverySpec

    def __init__(self, *args: Any, **keys: Any) -> None:
        super().__init__(*args, **keys)
        self.score = self.best = math.nan

    def on_due(self, session: RunningSession) -> None:
        self.score = fmean(session.play(self.spec.episodes).returns)
        if not self.score <= self.best:  # NaN before the first
            self.best = self.score
            session.save_agent("evaluated")
        session.report_evaluation(self.score)

    def on_row(self, session: RunningSession, row: Mapping[str, float]) -> Mapping[str, float]:
        return {"evaluated": self.score}

    def state_dict(self) -> dict[str, Any]:
        return {"score": self.score, "best": self.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.score, self.best = float(state["score"]), float(state["best"])


class StopAtScore(Callback):
    spec_class = StopAtScoreSpec
    spec: StopAtScoreSpec

    def on_row(self, session: RunningSession, row: Mapping[str, float]) -> None:
        score = _score_in(row, self.spec.column, "StopAtScore")
        if score >= self.spec.score:
            session.stop(f"{self.spec.column} {score:.4g} reached {self.spec.score:.4g}")


class EarlyStopping(Callback):
    spec_class = EarlyStoppingSpec
    spec: EarlyStoppingSpec

    def __init__(self, *args: Any, **keys: Any) -> None:
        super().__init__(*args, **keys)
        self._best, self._frame = math.nan, 0  # and when it was reached

    def on_row(self, session: RunningSession, row: Mapping[str, float]) -> None:
        score = _score_in(row, self.spec.column, "EarlyStopping")
        if math.isnan(score):
            return
        if not score <= self._best + self.spec.least:  # also where there is no best yet
            self._best, self._frame = score, session.frame
        elif (waited := session.frame - self._frame) >= self.spec.patience:
            best = f"{self.spec.column} is not above {self._best:.4g}"
            session.stop(f"{best} since frame {self._frame:,}, {waited:,} frames ago")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "frame": self._frame}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._best, self._frame = float(state["best"]), int(state["frame"])


def _score_in(row: Mapping[str, float], column: str, who: str) -> float:
    if column not in row:
        known = ", ".join(row)
        raise CallbackError(f"{who}.column: the curve has no `{column}`; it has {known}")
    return row[column]


class Curriculum(Callback):
    spec_class = CurriculumSpec
    spec: CurriculumSpec

    def __init__(self, *args: Any, **keys: Any) -> None:
        super().__init__(*args, **keys)
        self._at: int | None = None  # the stage in force

    def on_training_start(self, session: RunningSession) -> None:
        self._advance(session)

    def on_step(self, session: RunningSession) -> None:
        following = 0 if self._at is None else self._at + 1
        stages = self.spec.stages
        if following < len(stages) and session.frame >= stages[following].frame:
            self._advance(session)

    def _advance(self, session: RunningSession) -> None:
        begun = [n for n, stage in enumerate(self.spec.stages) if stage.frame <= session.frame]
        if begun and begun[-1] != self._at:
            self._at = begun[-1]
            options = dict(self.spec.stages[self._at].options)
            session.env.set_reset_options(options)
            logger.info(f"Curriculum: new episodes begin with {options} from {session.frame:,} on")


class CommandAtEnd(Callback):
    spec_class = CommandAtEndSpec
    spec: CommandAtEndSpec

    def on_end(self, session: RunningSession, reason: str) -> None:
        # Checked where it happens, too: a command of a stranger's spec must never run.
        check_command(self.spec.starts, "meta.callbacks", session.spec.origin)
        facts = {f"SLM_LAB_{key.upper()}": str(x) for key, x in _facts(session, reason).items()}
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", self.spec.command],
                env={**os.environ, **facts},
                timeout=self.spec.timeout,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
            )
        except (OSError, subprocess.SubprocessError) as error:
            logger.warning(f"CommandAtEnd: {error}")
            return
        if done.returncode:
            said = done.stderr.strip()[-300:]
            logger.warning(f"CommandAtEnd: the command ended with {done.returncode}: {said}")


class WebhookAtEnd(Callback):
    spec_class = WebhookAtEndSpec
    spec: WebhookAtEndSpec

    def on_end(self, session: RunningSession, reason: str) -> None:
        check_command(self.spec.starts, "meta.callbacks", session.spec.origin)
        request = urllib.request.Request(
            self.spec.url,
            data=json.dumps(_facts(session, reason)).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=self.spec.timeout):
                pass
        except (OSError, ValueError, urllib.error.URLError) as error:
            logger.warning(f"WebhookAtEnd: {self.spec.url} was not reached ({error})")


def _facts(session: RunningSession, reason: str) -> dict[str, Any]:
    """What a command or an address learns of a session that has ended."""
    score = session.last_row.get("total_reward_ma", math.nan)
    return {
        "session": session.name,
        "folder": session.folder.as_posix(),
        "reason": reason,
        "frame": session.frame,
        "score": None if math.isnan(score) else score,
    }
