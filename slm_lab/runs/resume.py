"""Resume a run: whether a spec is the same experiment, and which sessions are unfinished."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from slm_lab.runs.checkpoint_manifest import CheckpointError, CheckpointManifest, read_manifest
from slm_lab.runs.files import check_no_links
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.provenance import read_run_records
from slm_lab.spec import Problem, Spec, SpecError, load_saved_spec
from slm_lab.spec.trust import trusted_modules

# Keys that no session depends on; they may differ between the first start and a resume.
FREE_KEYS = (
    "search",
    "meta.max_trial",
    "meta.search_resources",
    "meta.search_scheduler",
    "meta.search_sampler",
    "meta.checkpoint_frequency",
    "meta.extended",
)

# Keys of later versions, which count where they are used: runs without them stay resumable.
LATER_KEYS = ("meta.callbacks", "meta.init_from", "agent.memory.anneal_frames")


def check_same_experiment(spec: Spec, layout: RunLayout, trial: int | None) -> Spec:
    """Load the spec that a run was started with, or raise a SpecError if `spec` differs from it.

    A folder with a link in it is refused first: the run would write through it. Without a seed in
    `spec`, the seed that the run drew counts. Without a trial the spec of the whole run is loaded,
    which is a search. Only modules that `spec` may import are imported.
    """
    check_no_links(layout.predir)
    path = layout.spec_path() if trial is None else layout.trial_spec_path(trial)
    saved = load_saved_spec(path, layout.name, trust=trusted_modules(spec))
    if is_extension(spec, saved):
        if trial is None or layout.search_dir().exists():
            problem = Problem("env.max_frame", _no_longer_search(layout))
            raise SpecError([problem], str(layout.predir))
        # Keys that follow from the budget are compared under the budget of both.
        spec = spec.with_values({"env.max_frame": saved.env.max_frame})
    if spec.meta.random_seed is None:
        spec = spec.with_values({"meta.random_seed": saved.meta.random_seed})
    if spec.meta.init_from is not None and saved.meta.init_from is not None:
        # The run has the folder that `latest` or a name meant when it began.
        begun_from = saved.to_dict()["meta"]["init_from"]
        spec = spec.with_values({"meta.init_from": begun_from})
    problems = spec_differences(spec, saved)
    if problems and saved.meta.extended and spec.env.max_frame == saved.env.max_frame:
        first = before_extensions(saved)  # which the user's file may still describe
        budget = {"env.max_frame": first.env.max_frame}
        problems = problems if spec_differences(spec.with_values(budget), first) else []
    if spec.name != layout.name:
        found = f"found {json.dumps(spec.name)}, but the run has {json.dumps(layout.name)}"
        problems.append(Problem("name", found))
    if problems:
        mode = "train" if trial is not None else "search"
        fix = f"To go on with the run as it was: {resume_command(layout, mode)}"
        raise SpecError([*problems, Problem("MODE", fix)], f"resuming {layout.predir}")
    return saved


def before_extensions(saved: Spec) -> Spec:
    """The spec that a run was begun with, before it was given more frames."""
    values: dict[str, Any] = {"meta.extended": []}
    for each in reversed(saved.meta.extended):
        values |= {**each.values, "env.max_frame": each.max_frame}
    return saved.with_values(values)


def is_extension(spec: Spec, saved: Spec) -> bool:
    """Whether a spec asks for more frames than the run has."""
    return spec.env.max_frame > saved.env.max_frame


def _no_longer_search(layout: RunLayout) -> str:
    return (
        "a search cannot be extended: its trials are compared at the same budget. Train its best "
        f"spec with more frames: {layout.best_spec_path()}"
    )


def spec_differences(spec: Spec, ran: Spec) -> list[Problem]:
    """Training-relevant keys in which a spec differs from the spec of a run."""
    ours, theirs = dict(spec_keys(_shaping(spec))), dict(spec_keys(_shaping(ran)))
    return [
        Problem(key, f"found {_shown(ours, key)}, but the run has {_shown(theirs, key)}")
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key, "absent") != theirs.get(key, "absent")
    ]


def spec_sha256(spec: Spec) -> str:
    """Fingerprint of the training-relevant keys."""
    return hashlib.sha256(json.dumps(_shaping(spec), sort_keys=True).encode()).hexdigest()


def unfinished_sessions(spec: Spec, layout: RunLayout, trial: int) -> list[int]:
    """Sessions that are neither finished nor diverged; a diverged one would diverge again."""
    return [
        session
        for session in range(spec.meta.max_session)
        if not is_finished(layout, trial, session, earlier_specs(spec))
        and not layout.divergence_report(trial, session).exists()
    ]


def was_killed(layout: RunLayout, trial: int) -> bool:
    """Whether the last process of the trial died, perhaps before it wrote metrics and graphs: its
    record is completed last of all."""
    records = read_run_records(layout.trial_provenance(trial), folder=layout.predir)
    return bool(records) and records[-1].end == "died"


def resume_command(layout: RunLayout, mode: str = "train") -> str:
    """Command that resumes a run by its saved spec, in which `-s` changes are kept."""
    path = layout.trial_spec_path(0) if mode == "train" else layout.spec_path()
    words = ["slm-lab", "run", path.as_posix(), layout.name, f"{mode}@{layout.predir.as_posix()}"]
    return shlex.join(words)


def earlier_specs(spec: Spec) -> frozenset[str]:
    """Fingerprints of the specs that an extended run had before."""
    return frozenset(each.spec_sha256 for each in spec.meta.extended)


def is_finished(layout: RunLayout, trial: int, session: int, earlier: Collection[str] = ()) -> bool:
    """Whether the budget was used up or a callback ended the session, by its last checkpoint.

    It was not where that was a budget of `earlier_specs`.
    """
    manifest = last_manifest(layout, trial, session)
    return manifest is not None and manifest.finished and manifest.spec_sha256 not in earlier


def stop_reasons(layout: RunLayout, trial: int, sessions: Iterable[int]) -> dict[int, str]:
    """Why callbacks ended sessions of a trial before their budget was used up, by session."""
    manifests = {session: last_manifest(layout, trial, session) for session in sessions}
    return {s: m.stop_reason for s, m in manifests.items() if m and m.finished and m.stop_reason}


def has_checkpoint(layout: RunLayout, trial: int, session: int) -> bool:
    """Whether a resume finds the session's own agent."""
    folder = layout.checkpoint_dir(trial, session)
    return any((folder / name).exists() for name in ("last", "last-1"))


def last_manifest(layout: RunLayout, trial: int, session: int) -> CheckpointManifest | None:
    """The manifest of a session's last good checkpoint."""
    folder = layout.checkpoint_dir(trial, session)
    for checkpoint in (folder / "last", folder / "last-1"):
        try:
            if checkpoint.exists():
                return read_manifest(checkpoint, run_dir=layout.predir)
        except CheckpointError:  # the session says so when it falls back
            continue
    return None


def _shaping(spec: Spec) -> dict[str, Any]:
    tree = spec.model_dump(mode="json", exclude={"name", "search"})
    for key in FREE_KEYS:
        block, _, name = key.partition(".")
        tree.get(block, {}).pop(name, None)
    for key in LATER_KEYS:
        *blocks, name = key.split(".")
        below: dict[str, Any] = tree
        for part in blocks:
            below = below[part]
        if not below.get(name):
            below.pop(name, None)
    return tree


def spec_keys(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys of a spec and their values."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from spec_keys(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _shown(leaves: Mapping[str, Any], key: str) -> str:
    return json.dumps(leaves[key]) if key in leaves else "no such key"
