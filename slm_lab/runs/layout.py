"""Paths of a run's files; no other module spells their names.

    data/{name}_{ts}/          predir: specs, the trial's graphs and headline numbers
        info/  graph/  model/  log/  checkpoint/

A file name has parts for its owner: `{name}` the run, `_t0` a trial, `_s0` a session of the trial.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Literal

from slm_lab.runs.files import make_folder
from slm_lab.spec.run_folder import (
    FOLDERS as FOLDERS,
    TIMESTAMP as TIMESTAMP,
    RunFolderError,
    listed,
    spec_files,
)

Mode = Literal["train", "eval"]


def new_timestamp() -> str:
    return datetime.now().strftime("%Y_%m_%d_%H%M%S")


@dataclass(frozen=True, slots=True)
class RunLayout:
    predir: Path
    name: str

    @classmethod
    def create(cls, name: str, ts: str, root: str | Path = "data") -> RunLayout:
        """Claim a fresh run folder; a second run in the same second gets the suffix `_02`."""
        root = Path(root)
        try:
            root.mkdir(parents=True, exist_ok=True)
            for attempt in count(1):
                predir = root / (f"{name}_{ts}" if attempt == 1 else f"{name}_{ts}_{attempt:02d}")
                try:
                    predir.mkdir()  # exclusive: of two processes that race, one gets the error
                except FileExistsError:
                    continue
                break
            for folder in FOLDERS:
                (predir / folder).mkdir()
        except OSError as error:
            raise RunFolderError(
                f"{error.filename or root}: cannot be made ({error.strerror}). Start the run in a "
                "folder that can be written to, on a disk with space."
            ) from None
        return cls(predir, name)

    @classmethod
    def open(cls, predir: str | Path) -> RunLayout:
        """Layout of an existing run folder, to resume it; missing folders are created."""
        predir = Path(predir)
        name, _ = spec_files(predir)
        for folder in FOLDERS:
            make_folder(predir, predir / folder)
        return cls(predir, name)

    def trials(self) -> tuple[int, ...]:
        """Indices of the trials that have a session table on disk."""
        return self._indices(rf"{re.escape(self.name)}_t(\d+)_s\d+_session_df_train\.csv")

    def sessions(self, trial: int) -> tuple[int, ...]:
        """Indices of the trial's sessions that have a table on disk."""
        return self._indices(rf"{re.escape(self.name)}_t{trial}_s(\d+)_session_df_train\.csv")

    def _indices(self, pattern: str) -> tuple[int, ...]:
        matches = (re.fullmatch(pattern, path.name) for path in listed(self.predir / "info"))
        return tuple(sorted({int(match[1]) for match in matches if match}))

    def trial_name(self, trial: int) -> str:
        return f"{self.name}_t{trial}"

    def session_name(self, trial: int, session: int) -> str:
        return f"{self.name}_t{trial}_s{session}"

    # Specs

    def spec_path(self) -> Path:
        return self.predir / f"{self.name}_spec.json"

    def trial_spec_path(self, trial: int) -> Path:
        """The spec of a trial; beside it lies a copy as YAML if the author's file was in YAML."""
        return self.predir / f"{self.trial_name(trial)}_spec.json"

    # Session results

    def session_csv(self, trial: int, session: int, mode: Mode) -> Path:
        return self._info(f"{self.session_name(trial, session)}_session_df_{mode}.csv")

    def session_metrics(self, trial: int, session: int, mode: Mode) -> Path:
        return self._info(f"{self.session_name(trial, session)}_session_metrics_{mode}.json")

    def session_metrics_scalar(self, trial: int, session: int, mode: Mode) -> Path:
        return self._info(f"{self.session_name(trial, session)}_session_metrics_scalar_{mode}.json")

    def session_graph(self, trial: int, session: int, mode: Mode, y: str, x: str) -> Path:
        return self._graph(f"{self.session_name(trial, session)}_session_graph_{mode}_{y}_vs_{x}")

    def session_graph_html(self, trial: int, session: int, mode: Mode) -> Path:
        """The page of a session: every curve, against every axis."""
        path = self.session_graph(trial, session, mode, "mean_returns", "frames")
        return path.with_suffix(".html")

    # Trial results

    def trial_metrics(self, trial: int) -> Path:
        return self._info(f"{self.trial_name(trial)}_trial_metrics.json")

    def trial_provenance(self, trial: int) -> Path:
        """Records of the processes that worked on the trial."""
        return self._info(f"{self.trial_name(trial)}_provenance.json")

    def trial_metrics_scalar(self, trial: int) -> Path:
        return self._info(f"{self.trial_name(trial)}_trial_metrics_scalar.json")

    def trial_metrics_scalar_copy(self, trial: int) -> Path:
        """The headline numbers, beside the spec where a person looks first."""
        return self.predir / self.trial_metrics_scalar(trial).name

    def trial_evaluation(
        self, trial: int, *, best: bool, sampled: bool, checkpoint: str = ""
    ) -> Path:
        agent = checkpoint or ("best" if best else "last")
        policy = "sampled" if sampled else "deterministic"
        return self._info(f"{self.trial_name(trial)}_evaluation_{agent}_{policy}.json")

    def trial_graph(self, trial: int, y: str, x: str = "frames") -> Path:
        return self._graph(f"{self.trial_name(trial)}_trial_graph_{y}_vs_{x}")

    def trial_graph_copy(self, trial: int, y: str) -> Path:
        return self.predir / self.trial_graph(trial, y).name

    def trial_graph_html(self, trial: int) -> Path:
        """The page of a trial: raw or smooth, against every axis."""
        return self.trial_graph_copy(trial, "mean_returns").with_suffix(".html")

    # Search results

    def experiment_csv(self) -> Path:
        return self._info(f"{self.name}_experiment_df.csv")

    def experiment_csv_copy(self) -> Path:
        return self.predir / self.experiment_csv().name

    def trial_data_dict(self) -> Path:
        return self._info(f"{self.name}_trial_data_dict.json")

    def experiment_graph(self, kind: str = "") -> Path:
        """The score against each key; kind "parallel" or "importance" are further graphs."""
        return self._graph("_".join(filter(None, (self.name, "experiment_graph", kind))))

    def experiment_graph_copy(self, kind: str = "") -> Path:
        return self.predir / self.experiment_graph(kind).name

    def experiment_graph_html(self) -> Path:
        return self.experiment_graph_copy().with_suffix(".html")

    def multi_trial_graph(self, y: str) -> Path:
        return self._graph(f"{self.name}_multi_trial_graph_{y}_vs_frames")

    def multi_trial_graph_copy(self, y: str) -> Path:
        return self.predir / self.multi_trial_graph(y).name

    def best_spec_path(self) -> Path:
        """The complete spec of the best trial, to be run as it is."""
        return self.predir / f"{self.name}_best_spec.json"

    def search_dir(self) -> Path:
        return self.predir / "ray_tune"

    def journal_path(self) -> Path:
        return self.search_dir() / "journal.jsonl"

    def validation_path(self) -> Path:
        """Scores of the best trials when trained again."""
        return self._info(f"{self.name}_validation.json")

    def validation_dir(self) -> Path:
        """Run folders of the best trials, trained again with fresh seeds."""
        return self.predir / "validation"

    # Models, what is made of them, and logs

    def model_path(
        self,
        trial: int,
        session: int,
        net: str,
        kind: Literal["model", "optim"],
        *,
        best: bool = False,
        checkpoint: str = "",
    ) -> Path:
        """Path of a net, of the last agent, the best, or one that was saved under a name."""
        checkpoint = checkpoint or ("best" if best else "")
        mark = f"_ckpt-{checkpoint}" if checkpoint else ""
        stem = f"{self.session_name(trial, session)}{mark}_{net}_{kind}"
        return self.predir / "model" / f"{stem}.pt"

    # Checkpoints: what a run needs to be resumed

    def checkpoint_dir(self, trial: int, session: int) -> Path:
        """Folder of a session's checkpoints: `last`, `best` and their fallbacks."""
        return self.predir / "checkpoint" / self.session_name(trial, session)

    def divergence_report(self, trial: int, session: int) -> Path:
        """Exists once the session has diverged."""
        return self.checkpoint_dir(trial, session) / "diverged.json"

    def run_lock(self) -> Path:
        return self.predir / "checkpoint" / "run.lock"

    def session_lock(self, trial: int, session: int) -> Path:
        return self.checkpoint_dir(trial, session) / "session.lock"

    def video_path(
        self, trial: int, session: int, suffix: str, *, best: bool, checkpoint: str = ""
    ) -> Path:
        agent = checkpoint or ("best" if best else "last")
        name = f"{self.session_name(trial, session)}_{agent}{suffix}"
        return self.predir / "video" / name

    def policy_path(
        self, trial: int, session: int, suffix: str, *, best: bool, checkpoint: str = ""
    ) -> Path:
        agent = checkpoint or ("best" if best else "last")
        return self.predir / "model" / f"{self.session_name(trial, session)}_{agent}_policy{suffix}"

    def log_dir(self) -> Path:
        return self.predir / "log"

    def log_path(self, trial: int | None = None, session: int | None = None) -> Path:
        """The log file of a session, of a trial, or without arguments of the whole search."""
        if trial is None:
            return self.log_dir() / f"{self.name}.log"
        if session is None:
            return self.log_dir() / f"{self.trial_name(trial)}.log"
        return self.log_dir() / f"{self.session_name(trial, session)}.log"

    def _info(self, file_name: str) -> Path:
        return self.predir / "info" / file_name

    def _graph(self, stem: str) -> Path:
        return self.predir / "graph" / f"{stem}.png"
