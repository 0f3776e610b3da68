"""Find runs on disk: what `latest`, a folder, a spec file or a name in a command refers to.

A folder may come from anywhere. Names are read off its files and never off their content, so no
spec can point outside; what is read is bounded; nothing in it is executed.
"""

from __future__ import annotations

import glob
import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from slm_lab.runs import files
from slm_lab.runs.layout import TIMESTAMP, RunLayout
from slm_lab.spec import Problem, Spec, SpecError, load_saved_spec
from slm_lab.spec.error import nearest
from slm_lab.spec.run_folder import SPEC_FILE, RunFolderError, listed, spec_files

CHECKPOINT_NAME = r"[A-Za-z0-9.-]{1,60}"
SAFETENSORS = ".safetensors"  # of final policies that were kept alone, as `results/` does
STAMP = re.compile(rf"_{TIMESTAMP}(_\d+)?$")  # ends the name of a run folder
SPEC_SUFFIXES = (".json", ".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class SavedRun:
    """One trial of a run folder; `checkpoint` names agents other than the best and the last."""

    layout: RunLayout
    trial: int
    spec: Spec
    checkpoint: str = ""

    def sessions(self, *, best: bool = True) -> tuple[int, ...]:
        """Sessions with a saved agent: that of `checkpoint`, else the best or the last."""
        if not self.spec.agent.algorithm_info.learns:  # it has no net to save
            return self.layout.sessions(self.trial)
        return saved_sessions(self.layout, self.trial, self._mark(best=best))

    def best_session(self, *, best: bool = True) -> int:
        """The session with the highest training score, among those with a saved agent."""
        sessions = self.sessions(best=best)
        if not sessions:
            raise RunFolderError(
                f"{self.layout.predir / 'model'}: no {self.kind(best=best)} agent of trial "
                f"{self.trial}, expected {self.model_path(0, 'net', best=best).name} or that of "
                f"another session. See the folder's log; {self._others()} choose others."
            )
        return best_of(self.layout, self.trial, sessions)

    def kind(self, *, best: bool) -> str:
        """What the agents are called: `best`, `last`, or their name."""
        return self._mark(best=best) or "last"

    @property
    def score(self) -> float:
        """The trial's `total_reward_ma`; NaN if it has none."""
        return _read_score(self.layout.predir, self.layout.trial_metrics_scalar(self.trial))

    def model_path(self, session: int, net: str, *, best: bool) -> Path:
        mark = self._mark(best=best)
        path = self.layout.model_path(self.trial, session, net, "model", checkpoint=mark)
        kept = path.with_suffix(SAFETENSORS)
        return kept if kept.exists() and not path.exists() else path

    def _mark(self, *, best: bool) -> str:
        return self.checkpoint or agent_mark(self.layout, best=best)

    def _others(self) -> str:
        """How to choose another agent, with the names of those that were saved under one."""
        names = {mark for _, _, mark in _saved_agents(self.layout)} - {"", "best"}
        if not names:
            return "--trial and --last"
        return f"--trial, --last and --checkpoint ({', '.join(sorted(names)[:20])})"


def agent_mark(layout: RunLayout, *, best: bool) -> str:
    """What the files of the best agents bear, or of the last, which bear nothing.

    Where final policies were kept alone they stand for the best too.
    """
    kept = any(path.suffix == SAFETENSORS for path in listed(layout.predir / "model"))
    return "best" if best and not kept else ""


def saved_sessions(layout: RunLayout, trial: int, checkpoint: str) -> tuple[int, ...]:
    """Sessions that have an agent of that name; `best` is the best one, and empty the last."""
    kind = (trial, checkpoint)
    return tuple(sorted(s for t, s, mark in _saved_agents(layout) if (t, mark) == kind))


def best_of(layout: RunLayout, trial: int, sessions: Collection[int]) -> int:
    """The session with the highest training score."""
    paths = {s: layout.session_metrics_scalar(trial, s, "train") for s in sessions}
    return max(sessions, key=lambda s: _or_worst(_read_score(layout.predir, paths[s])))


def best_trial(layout: RunLayout) -> int:
    """The trial with the highest score, among those with a saved agent; 0 if there is none."""
    trials = sorted({trial for trial, _, _ in _saved_agents(layout)}) or [0]
    paths = {trial: layout.trial_metrics_scalar(trial) for trial in trials}
    return max(trials, key=lambda trial: _or_worst(_read_score(layout.predir, paths[trial])))


def _saved_agents(layout: RunLayout) -> set[tuple[int, int, str]]:
    """(trial, session, name) of every acting net on disk; the last agent has no name."""
    name = re.escape(layout.name)
    mark = rf"(?:_ckpt-({CHECKPOINT_NAME}))?"
    pattern = re.compile(rf"{name}_t(\d{{1,6}})_s(\d{{1,6}}){mark}_net_model\.(?:pt|safetensors)")
    matches = (pattern.fullmatch(path.name) for path in listed(layout.predir / "model"))
    return {(int(m[1]), int(m[2]), m[3] or "") for m in matches if m}


def _read_score(folder: Path, path: Path) -> float:
    """`total_reward_ma` of a metrics file; NaN if it has none."""
    try:
        return float(files.read_json_or_empty(folder, path)["total_reward_ma"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return math.nan


def _or_worst(score: float) -> float:
    return -math.inf if math.isnan(score) else score


def stamped_folders(data_dir: Path) -> dict[Path, str]:
    """Folders whose name ends with a time, the newest first, and the name before the time."""
    matches = {path: match for path in listed(data_dir) if (match := STAMP.search(path.name))}
    folders = [path for path in matches if path.is_dir()]
    folders.sort(key=lambda path: matches[path].group(), reverse=True)
    return {path: path.name[: matches[path].start()] for path in folders}


def find_run(spec_name: str, where: str, data_dir: Path) -> RunLayout:
    """The run folder that `train@{where}` refers to: `latest`, or the path of one."""
    if where == "latest":
        for run in _runs_of(spec_name, data_dir):
            # A search has a trial 0 too.
            if run.trial_spec_path(0).is_file() and not run.search_dir().exists():
                return RunLayout.open(run.predir)
        reason = f"no run of {spec_name} in {data_dir}. Start one with `train`, or give its folder."
        raise _mode_error("train@latest", reason)
    folder = located(where, data_dir)
    try:
        spec_files(folder)
    except RunFolderError as error:
        raise _mode_error(f"train@{where}", str(error)) from None
    try:
        return RunLayout.open(folder)
    except OSError as error:
        raise _mode_error(f"train@{where}", str(error)) from None


def train_mode(spec_name: str, data_dir: Path) -> str:
    """The mode to train a spec in: `train@FOLDER` where a run of it was begun, else `train`."""
    try:
        return f"train@{find_run(spec_name, 'latest', data_dir).predir}"
    except SpecError:
        return "train"


def find_search(spec_name: str, where: str, data_dir: Path) -> RunLayout:
    """The folder that `search@{where}` refers to: `latest`, or the path of one."""
    if where == "latest":
        for run in _runs_of(spec_name, data_dir):
            if run.journal_path().is_file() and run.spec_path().is_file():
                return run
        reason = f"no search of {spec_name} in {data_dir}. Start one with `search`."
        raise _mode_error("search@latest", reason)
    folder = located(where, data_dir)
    is_run = any(SPEC_FILE.fullmatch(path.name) for path in listed(folder))
    if is_run and (layout := RunLayout.open(folder)).journal_path().is_file():
        return layout
    reason = f"{where} holds no search. Give a folder such as data/NAME_TIMESTAMP."
    raise _mode_error(f"search@{where}", reason)


def open_run(
    where: str | Path,
    *,
    trial: int | None = None,
    spec_name: str | None = None,
    data_dir: str | Path = "data",
    trust: Collection[str] = (),
    checkpoint: str = "",
) -> SavedRun:
    """Open the run that `where` refers to: its folder, a spec file in it, or `latest`.

    A spec file is found under either extension and may name a trial; a path with `*` means the
    last match. `latest` is the newest folder in `data_dir`, of the runs of `spec_name` if given.
    Without `trial` it is the best one that has a saved agent. Modules that the spec names are
    imported only if they are in `trust` or were trained with here: see `load_spec`. `checkpoint`
    names the agents that a callback saved, instead of the best and the last ones.
    """
    folder, named_trial = _folder_and_trial(str(where), spec_name, Path(data_dir))
    name, by_trial = spec_files(folder)
    layout = RunLayout(folder, name)
    if trial is None:
        trial = named_trial if named_trial is not None else best_trial(layout)
    spec_path = by_trial.get(trial) or by_trial.get(None)
    if spec_path is None:
        known = ", ".join(str(key) for key in sorted(key for key in by_trial if key is not None))
        raise RunFolderError(f"{folder}: no spec of trial {trial}; there is one of trial {known}.")
    with files.open_for_reading(folder, spec_path, files.MAX_SPEC_BYTES):
        pass  # refuses all but a plain file
    return SavedRun(layout, trial, load_saved_spec(spec_path, trust=trust), checkpoint)


def located(word: str, data_dir: Path) -> Path:
    """The path that a FOLDER in a command refers to: `latest`, a path, or a name in `data_dir`."""
    if word == "latest":
        return _latest_of_any(None, data_dir)
    path, below = Path(word), data_dir / word
    return below if below.exists() and not path.exists() else path


def find_folder(word: str, data_dir: Path) -> Path:
    """The folder that a FOLDER in a command refers to; it must be there."""
    path = located(word, data_dir)
    if path.is_dir():
        return path
    close = nearest(word, (path.name for path in listed(data_dir)))
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    raise RunFolderError(
        f"{word}: no such run folder, neither here nor in {data_dir}/.{hint} "
        "`slm-lab list` lists those there; --data names another data folder."
    )


def find_folder_of(where: str, data_dir: Path) -> Path:
    """The run folder that is meant: a path of one or of a spec file in it, `latest`, or the name
    of a spec for its newest run. Nothing but names of files is read."""
    path = Path(where)
    if not path.exists() and (runs := [r for r in _runs_of(where, data_dir) if _is_trained(r)]):
        return runs[0].predir
    return _folder_and_trial(where, None, data_dir)[0]


def _is_trained(layout: RunLayout) -> bool:
    return bool(_saved_agents(layout))


def _runs_of(spec_name: str, data_dir: Path) -> list[RunLayout]:
    """Folders of exactly that name, the newest first: `ppo_large` is no run of `ppo`."""
    folders = stamped_folders(data_dir).items()
    return [RunLayout(folder, spec_name) for folder, name in folders if name == spec_name]


def _mode_error(mode: str, reason: str) -> SpecError:
    return SpecError([Problem("MODE", f"found `{mode}`; {reason}")], "the command")


def _folder_and_trial(where: str, spec_name: str | None, data_dir: Path) -> tuple[Path, int | None]:
    """(run folder, trial that the name of a spec file states)."""
    if where == "latest":
        return _latest_of_any(spec_name, data_dir), None
    path = located(where, data_dir)
    if glob.has_magic(where) and not path.exists():
        matches = [found for name in _either_extension(path) for found in glob.glob(str(name))]
        path = Path(max(matches, default=where))
    if path.is_dir():
        return path, None
    match = SPEC_FILE.fullmatch(path.name)
    if match and any(name.is_file() for name in _either_extension(path)):
        return path.parent, None if match["trial"] is None else int(match["trial"])
    parent = path.parent if len(path.parts) > 1 and path.parent.is_dir() else data_dir
    close = nearest(path.name, (found.name for found in listed(parent)))
    hint = f"Did you mean {' or '.join(str(parent / name) for name in close)}?" if close else ""
    raise RunFolderError(
        f"{where}: no such run. Expected a run folder, or the *_spec.json or *_spec.yaml in one. "
        f"{hint}".rstrip()
    )


def _either_extension(path: Path) -> list[Path]:
    if path.suffix not in SPEC_SUFFIXES:
        return [path]
    return [path.with_suffix(suffix) for suffix in SPEC_SUFFIXES]


def _latest_of_any(spec_name: str | None, data_dir: Path) -> Path:
    runs = stamped_folders(data_dir)
    if spec_name is not None:
        # `-s env=…` adds to the name; a run of exactly this name comes before such a one.
        runs = {path: name for path, name in runs.items() if name == spec_name} or {
            path: name for path, name in runs.items() if name.startswith(f"{spec_name}_")
        }
    if not runs:
        of = f" of {spec_name}" if spec_name else ""
        raise RunFolderError(f"latest: no run{of} in {data_dir}/. Train one, or give its folder.")
    return next(iter(runs))
