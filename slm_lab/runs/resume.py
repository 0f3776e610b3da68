"""Which run `train@...` means, whether it is the same experiment, and what is left of it to do."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slm_lab.runs.checkpoint_manifest import CheckpointError, read_manifest
from slm_lab.runs.files import check_no_links
from slm_lab.runs.layout import TIMESTAMP, RunLayout
from slm_lab.runs.provenance import read_sittings
from slm_lab.spec import Problem, Spec, SpecError, load_saved_spec
from slm_lab.spec.trust import trusted_modules

# What a session does not depend on, and may differ between the first start and a resume.
FREE_KEYS = (
    "search",
    "meta.max_trial",
    "meta.search_resources",
    "meta.search_scheduler",
    "meta.search_sampler",
    "meta.checkpoint_frequency",
)


def find_run(spec_name: str, where: str, data_dir: Path) -> RunLayout:
    """The run folder that `train@{where}` means: `latest`, or the path of one."""
    if where != "latest":
        try:
            return RunLayout.open(where)
        except OSError as error:
            found = f"found `train@{where}`; {error}"
            raise SpecError([Problem("MODE", found)], "the command") from None
    # The time in the name tells the runs of `ppo` from those of `ppo_large`.
    pattern = rf"{re.escape(spec_name)}_{TIMESTAMP}(_\d+)?"
    folders = data_dir.iterdir() if data_dir.is_dir() else ()
    runs = sorted(
        folder
        for folder in folders
        if re.fullmatch(pattern, folder.name)
        and (folder / f"{spec_name}_t0_spec.json").is_file()
        and not (folder / "ray_tune").exists()  # a search, which has a trial 0 as well
    )
    if not runs:
        found = f"no run of {spec_name} in {data_dir}. Start one with `train`, or give its folder"
        raise SpecError([Problem("MODE", f"found `train@latest`; {found}.")], "the command")
    return RunLayout.open(runs[-1])


def train_mode(spec_name: str, data_dir: Path) -> str:
    """The mode to train a spec in: `train@FOLDER` where a run of it was begun, else `train`."""
    try:
        return f"train@{find_run(spec_name, 'latest', data_dir).predir}"
    except SpecError:
        return "train"


def check_same_experiment(spec: Spec, layout: RunLayout, trial: int | None) -> Spec:
    """The spec that the folder's run was started with, which `spec` must not differ from.

    A folder with a link in it is refused first: the run would write through it. A seed that the run
    drew for itself counts as the one that was meant. Without a trial the whole run is meant: a
    search. It has no modules imported but those that `spec` may.
    """
    check_no_links(layout.predir)
    path = layout.spec_path() if trial is None else layout.trial_spec_path(trial)
    saved = load_saved_spec(path, layout.name, trust=trusted_modules(spec))
    if spec.meta.random_seed is None:
        spec = spec.with_values({"meta.random_seed": saved.meta.random_seed})
    problems = spec_differences(spec, saved)
    if spec.name != layout.name:
        found = f"found {json.dumps(spec.name)}, but the run has {json.dumps(layout.name)}"
        problems.append(Problem("name", found))
    if problems:
        mode = "train" if trial is not None else "search"
        fix = f"To go on with the run as it was: {resume_command(layout, mode)}"
        raise SpecError([*problems, Problem("MODE", fix)], f"resuming {layout.predir}")
    return saved


def spec_differences(spec: Spec, ran: Spec) -> list[Problem]:
    """Where a spec shapes its sessions otherwise than the spec of a run did, by key."""
    ours, theirs = dict(_leaves(_shaping(spec))), dict(_leaves(_shaping(ran)))
    return [
        Problem(key, f"found {_shown(ours, key)}, but the run has {_shown(theirs, key)}")
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key, "absent") != theirs.get(key, "absent")
    ]


def spec_sha256(spec: Spec) -> str:
    """A fingerprint of all that a session depends on."""
    return hashlib.sha256(json.dumps(_shaping(spec), sort_keys=True).encode()).hexdigest()


def unfinished_sessions(spec: Spec, layout: RunLayout, trial: int) -> list[int]:
    """The sessions that have something left to do; one that diverged would only do so again."""
    return [
        session
        for session in range(spec.meta.max_session)
        if not is_finished(layout, trial, session)
        and not layout.divergence_report(trial, session).exists()
    ]


def was_killed(layout: RunLayout, trial: int) -> bool:
    """Whether the last work on the trial was cut short, perhaps before its metrics and graphs.

    Its record says how that work ended, and is completed last of all.
    """
    sittings = read_sittings(layout.trial_provenance(trial), folder=layout.predir)
    return bool(sittings) and sittings[-1].end == "died"


def resume_command(layout: RunLayout, mode: str = "train") -> str:
    """With the saved spec, which is right whatever the first command had changed in the file."""
    path = layout.trial_spec_path(0) if mode == "train" else layout.spec_path()
    words = ["slm-lab", "run", path.as_posix(), layout.name, f"{mode}@{layout.predir.as_posix()}"]
    return shlex.join(words)


def is_finished(layout: RunLayout, trial: int, session: int) -> bool:
    """Whether the session's last good checkpoint says that its budget was used up."""
    folder = layout.checkpoint_dir(trial, session)
    for checkpoint in (folder / "last", folder / "last-1"):
        try:
            if checkpoint.exists():
                return read_manifest(checkpoint, run_dir=layout.predir).finished
        except CheckpointError:  # the session says so when it falls back
            continue
    return False


def _shaping(spec: Spec) -> dict[str, Any]:
    tree = spec.model_dump(mode="json", exclude={"name", "search"})
    for key in FREE_KEYS:
        block, _, name = key.partition(".")
        tree.get(block, {}).pop(name, None)
    return tree


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _shown(leaves: Mapping[str, Any], key: str) -> str:
    return json.dumps(leaves[key]) if key in leaves else "no such key"
