"""A trial in its Ray process: Tune asks for one round after the other."""

from __future__ import annotations

import traceback
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from loguru import logger

from slm_lab.runs.layout import RunLayout
from slm_lab.search.ray_setup import ray, tune
from slm_lab.search.rounds import Round, StopFile, TrialRounds
from slm_lab.spec import Spec, SpecError
from slm_lab.training.console import setup_logging
from slm_lab.training.lifetime import end_with_parent
from slm_lab.training.options import RunOptions
from slm_lab.training.threads import set_threads


@dataclass(frozen=True, slots=True)
class SearchJob:
    """Settings that all trials of a search share; sent to every process once."""

    spec: Spec
    predir: str
    stop_file: str
    options: RunOptions
    rounds: tuple[int, ...]
    rungs: tuple[int, ...]
    floor: float


class TrialWorker(tune.Trainable):  # type: ignore[misc]  # ray publishes no types
    """Trains one trial after the other; Tune calls `setup`, `step`, `reset_config` and `cleanup`.

    A mistake or a crash of a trial becomes a result with its reason in plain text. Only the death
    of the process is left to Tune.
    """

    def setup(self, config: dict[str, Any], job: SearchJob) -> None:
        # The trial begins at the first step: Tune may start a process for it and then give it to
        # one that has become free, and two must not write the same files.
        end_with_parent()
        self._job = job
        self._rounds: TrialRounds | None = None
        self._trial_config: dict[str, Any] | None = config
        self._error = ""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self._trial_config, self._error = new_config, ""
        return True

    def step(self) -> dict[str, Any]:
        try:
            if self._trial_config is not None:
                config, self._trial_config = self._trial_config, None
                self._rounds = self._begin(config)
            if self._rounds is not None:
                return asdict(self._rounds.advance()) | {"failed": "", "node": _node()}
        except Exception as error:
            logger.error(f"Trial failed\n{traceback.format_exc().rstrip()}")
            is_ours = isinstance(error, SpecError | FileNotFoundError)
            self._error = str(error) if is_ours else f"{type(error).__name__}: {error}"
        failed = Round(frame=0, score=self._job.floor, seconds=0.0, done=True)
        return asdict(failed) | {"failed": self._error, "node": _node()}

    def cleanup(self) -> None:
        if self._rounds is not None:
            self._rounds.close()
            self._rounds = None

    def _begin(self, config: dict[str, Any]) -> TrialRounds:
        job, trial = self._job, config["trial"]
        layout = RunLayout(Path(job.predir), job.spec.name)
        if not layout.predir.is_dir():
            raise FileNotFoundError(
                f"{layout.predir}: not found on this machine. The nodes of a cluster share the "
                "disk that the run folder is on; start the search in such a folder."
            )
        log_path = layout.log_path(trial)
        setup_logging(log_path, "INFO", stderr_level="ERROR", folder=layout.predir)
        spec = job.spec.with_values(config["values"])
        set_threads(spec, job.options)
        return TrialRounds(
            spec,
            layout,
            trial,
            replace(job.options, resume=True),  # from where a killed search left it, if it did
            rounds=job.rounds,
            rungs=job.rungs,
            floor=job.floor,
            should_stop=StopFile(Path(job.stop_file)),
            seconds=config["seconds"],
        )


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())
