"""Which run, trial and session on disk is meant, for folders written here or by the original.

A folder may come from anywhere. Names are read off its files and never off what the files say, so
no spec can point outside; what is read is bounded; nothing in it is executed.
"""

from __future__ import annotations

import glob
import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from slm_lab.runs.files import open_for_reading, read_json
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.saved_spec import MAX_SPEC_BYTES
from slm_lab.spec import Spec, load_saved_spec
from slm_lab.spec.error import nearest
from slm_lab.spec.run_folder import SPEC_FILE, listed, spec_files
from slm_lab.spec.run_folder import RunFolderError as RunFolderError

TIMESTAMP = re.compile(r"_\d{4}_\d{2}_\d{2}_\d{6}(_\d+)?$")
MAX_METRICS_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class SavedRun:
    """One trial of a run folder."""

    layout: RunLayout
    trial: int
    spec: Spec

    def sessions(self, *, best: bool = True) -> tuple[int, ...]:
        """Sessions with a saved agent, best or last."""
        if not self.spec.agent.algorithm_info.learns:  # it has no net to save
            has_tables = (self.layout.predir / "info").is_dir()
            return self.layout.sessions(self.trial) if has_tables else ()
        saved = _saved_agents(self.layout)
        return tuple(
            sorted(s for trial, s, is_best in saved if (trial, is_best) == (self.trial, best))
        )

    def best_session(self, *, best: bool = True) -> int:
        """The session whose training score is highest, among those with a saved agent."""
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


def open_run(
    where: str | Path,
    *,
    trial: int | None = None,
    spec_name: str | None = None,
    data_dir: str | Path = "data",
    trust: Collection[str] = (),
) -> SavedRun:
    """The run that `where` means: its folder, a spec file in it, or `latest`.

    A spec file is found under either extension and may name a trial; a path with `*` means the
    last match. `latest` is the newest folder in `data_dir`, of the runs of `spec_name` if given.
    Without `trial` it is the best one that has a saved agent. Modules that the spec names are
    imported only if they are in `trust` or were trained with here: see `load_spec`.
    """
    folder, named_trial = _find(str(where), spec_name, Path(data_dir))
    name, by_trial = spec_files(folder)
    layout = RunLayout(folder, name)
    if trial is None:
        trial = named_trial if named_trial is not None else _best_trial(layout)
    spec_path = by_trial.get(trial) or by_trial.get(None)
    if spec_path is None:
        known = ", ".join(str(key) for key in sorted(key for key in by_trial if key is not None))
        raise RunFolderError(f"{folder}: no spec of trial {trial}; there is one of trial {known}.")
    return SavedRun(layout, trial, load_saved_spec(_plain(folder, spec_path), trust=trust))


def _find(where: str, spec_name: str | None, data_dir: Path) -> tuple[Path, int | None]:
    """(run folder, trial that a spec file's name says)."""
    if where == "latest":
        return _latest(spec_name, data_dir), None
    path = Path(where)
    if glob.has_magic(where) and not path.exists():
        matches = [found for name in _either_extension(path) for found in glob.glob(str(name))]
        path = Path(max(matches, default=where))
    if path.is_dir():
        return path, None
    match = SPEC_FILE.fullmatch(path.name)
    if match and any(name.is_file() for name in _either_extension(path)):
        return path.parent, None if match["trial"] is None else int(match["trial"])
    parent = path.parent if path.parent.is_dir() else data_dir
    close = nearest(path.name, (found.name for found in listed(parent)))
    hint = f"Did you mean {' or '.join(str(parent / name) for name in close)}?" if close else ""
    raise RunFolderError(
        f"{where}: no such run. Expected a run folder, or the *_spec.json or *_spec.yaml in one. "
        f"{hint}".rstrip()
    )


def _either_extension(path: Path) -> list[Path]:
    if path.suffix not in (".json", ".yaml", ".yml"):
        return [path]
    return [path.with_suffix(suffix) for suffix in (".json", ".yaml", ".yml")]


def _latest(spec_name: str | None, data_dir: Path) -> Path:
    stamps = {path: match for path in listed(data_dir) if (match := TIMESTAMP.search(path.name))}
    runs = {path: path.name[: match.start()] for path, match in stamps.items() if path.is_dir()}
    if spec_name is not None:
        # `-s env=…` adds to the name; a run of exactly this name comes before such a one.
        runs = {p: n for p, n in runs.items() if n == spec_name} or {
            p: n for p, n in runs.items() if n.startswith(f"{spec_name}_")
        }
    if not runs:
        of = f" of {spec_name}" if spec_name else ""
        raise RunFolderError(f"latest: no run{of} in {data_dir}/. Train one, or give its folder.")
    return max(runs, key=lambda path: stamps[path].group())


def _best_trial(layout: RunLayout) -> int:
    trials = sorted({trial for trial, _, _ in _saved_agents(layout)}) or [0]
    scores = {
        trial: _read_score(layout.predir, layout.trial_metrics_scalar(trial)) for trial in trials
    }
    return max(trials, key=lambda trial: _or_worst(scores[trial]))


def _saved_agents(layout: RunLayout) -> set[tuple[int, int, bool]]:
    """(trial, session, whether it is the best) of every acting net on disk."""
    name = re.escape(layout.name)
    pattern = re.compile(rf"{name}_t(\d{{1,6}})_s(\d{{1,6}})(_ckpt-best)?_net_model\.pt")
    matches = (pattern.fullmatch(path.name) for path in listed(layout.predir / "model"))
    return {(int(m[1]), int(m[2]), m[3] is not None) for m in matches if m}


def _read_score(folder: Path, path: Path) -> float:
    """`total_reward_ma` of a metrics file; NaN where there is none to read."""
    try:
        return float(read_json(folder, path, MAX_METRICS_BYTES)["total_reward_ma"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return math.nan


def _plain(folder: Path, spec_path: Path) -> Path:
    """The path of a spec, of which nothing but a plain file is there."""
    with open_for_reading(folder, spec_path, MAX_SPEC_BYTES):
        return spec_path


def _or_worst(score: float) -> float:
    return -math.inf if math.isnan(score) else score
