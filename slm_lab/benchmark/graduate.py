"""Publish runs of the development hub on the public one, after checking their settings."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from slm_lab.benchmark.manifest import SETTINGS_KEYS, Row, load_manifest
from slm_lab.hub.remote import RemoteError, open_remote
from slm_lab.hub.transfer import Progress, matching, pull, push
from slm_lab.runs.find import SavedRun, open_run
from slm_lab.runs.layout import RunLayout
from slm_lab.spec import Spec
from slm_lab.spec.catalog import listed_env

SEARCH_TRACES = ("ray_tune", "*_experiment_df.csv", "info/*_trial_data_dict.json", "validation")


@dataclass(frozen=True, slots=True)
class Graduation:
    """The outcome, and notes for readers of the public table."""

    summary: str
    notes: tuple[str, ...] = ()


def graduate(
    run: str,
    source: str | None,
    target: str,
    *,
    only_check: bool = False,
    progress: Progress | None = None,
) -> Graduation:
    """Publish a run: a local folder, or a folder of the remote `source`, by its name.

    Refused with every reason at once if it came from a search, if its spec has other Settings than
    the benchmark's table of its env and algorithm, or if not all of its sessions are finished.
    """
    if source is None and Path(run).is_dir():
        return _publish(Path(run), target, only_check, progress)
    remote = open_remote(source)
    names = matching(remote.folders(), run)
    if len(names) != 1:
        found = f"found {', '.join(names[:5])}" if names else "found none"
        raise RemoteError(f"NAME: `{run}` should mean one folder in {remote.label}; {found}.")
    with tempfile.TemporaryDirectory(prefix="slm-lab-") as data:
        pull(remote, names[0], Path(data), progress=progress)
        return _publish(Path(data) / names[0], target, only_check, progress)


def _publish(folder: Path, target: str, only_check: bool, progress: Progress | None) -> Graduation:
    saved = open_run(folder, trial=0)
    row = _row(saved.spec)
    if problems := _problems(folder, saved, row):
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise RemoteError(f"{folder.name} cannot graduate:{listed}")
    notes = _notes(saved, row)
    if only_check:
        return Graduation(f"{folder.name} can graduate", notes)
    remote = open_remote(target)
    transfer = push(remote, folder, progress=progress)
    return Graduation(f"Graduated {folder.name} to {remote.label}: {transfer}", notes)


def _row(spec: Spec) -> Row | None:
    env, algorithm = listed_env(spec.env.name, spec.env.kwargs), spec.agent.label
    rows = load_manifest().rows
    return next((row for row in rows if (row.env, row.algorithm) == (env, algorithm)), None)


def _problems(folder: Path, saved: SavedRun, row: Row | None) -> list[str]:
    traces = [path for pattern in SEARCH_TRACES for path in folder.glob(pattern)]
    if traces or saved.layout.trials() not in ((0,), ()):
        trace = traces[0].relative_to(folder).as_posix() if traces else "several trials"
        return [
            f"it came from a search ({trace}), whose score is the best of many draws. Train its "
            "best spec with `train` and graduate that run."
        ]
    spec = saved.spec
    if row is None:
        return [
            f"no benchmark table lists {spec.agent.label} on {spec.env.name}, so there are no "
            "Settings that it could match. `slm-lab benchmark status` shows what they list."
        ]
    claims = {key: row.fact(key.rpartition(".")[2]) for key in SETTINGS_KEYS}
    problems = [
        f"{key}: found {actual:,}, the Settings of {row.id} are {claimed:,}."
        for key, claimed in claims.items()
        if (actual := attrgetter(key)(spec)) != claimed
    ]
    return problems or _unfinished(saved.layout, row)


def _unfinished(layout: RunLayout, row: Row) -> list[str]:
    from slm_lab.analysis.tables import read_session  # pandas

    settings, problems = row.settings, []
    for session in range(settings.max_session):
        try:
            table = read_session(layout.session_csv(0, session, "train"), folder=layout.predir)
            frame = int(table["frame"].max())
        except (OSError, ValueError, KeyError):  # no such table, or one without rows
            frame = 0
        # The last row lies within one row of the budget.
        if frame + settings.log_frequency < settings.max_frame:
            problems.append(
                f"session {session}: ended at frame {frame:,} of {settings.max_frame:,}. Resume "
                "the run, or run it again."
            )
    if not problems and not (path := layout.trial_metrics_scalar(0)).is_file():
        problems.append(f"{path.name}: is missing. Resume the run.")
    return problems


def _notes(saved: SavedRun, row: Row | None) -> tuple[str, ...]:
    target = row.target if row else None
    if target is None or math.isnan(saved.score):
        return ()
    verdict = "reaches" if saved.score >= target else "does not reach"
    env = saved.spec.env.name
    return (f"total_reward_ma {saved.score:.2f} {verdict} the target {target:g} of {env}",)
