"""Fine-tuning: which agent of another run a session begins with.

Names are read off the files of that run, and its spec is not read at all: none of its code runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loguru import logger

from slm_lab.runs.files import open_for_reading
from slm_lab.runs.find import (
    SAFETENSORS,
    agent_mark,
    best_of,
    best_trial,
    find_folder_of,
    saved_sessions,
)
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.provenance import read_run_records
from slm_lab.runs.resume import has_checkpoint
from slm_lab.spec import Problem, Spec, SpecError
from slm_lab.spec.run_folder import RunFolderError, listed, spec_files
from slm_lab.spec.schema import InitFrom


@dataclass(frozen=True, slots=True)
class SourceAgent:
    """A saved agent of another run."""

    layout: RunLayout
    trial: int
    session: int
    checkpoint: str  # "best", or empty for the last

    @property
    def name(self) -> str:
        kind = self.checkpoint or "last"
        return f"{self.layout.session_name(self.trial, self.session)} ({kind} agent)"

    def files(self) -> Mapping[str, Path]:
        """Its state dicts by the name of the net, target net or statistics."""
        place = self.trial, self.session
        sample = self.layout.model_path(*place, "NET", "model", checkpoint=self.checkpoint)
        start, _, end = sample.stem.partition("NET")
        paths = [p for p in listed(sample.parent) if p.suffix in (sample.suffix, SAFETENSORS)]
        found = {p.stem: p for p in paths if p.stem.startswith(start) and p.stem.endswith(end)}
        named = {name[len(start) : -len(end)]: path for name, path in found.items()}
        # Without a mark the names of all other agents begin the same way.
        return {name: path for name, path in named.items() if not name.startswith("ckpt-")}

    def sha256(self) -> str:
        """One fingerprint of all its files."""
        digest = hashlib.sha256()
        for name, path in sorted(self.files().items()):
            with open_for_reading(self.layout.predir, path) as file:
                digest.update(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}".encode())
        return digest.hexdigest()


def source_agent(source: InitFrom, session: int) -> SourceAgent:
    """The agent that a session begins with: of the best trial, that of its own number or the best.
    RunFolderError if there is none."""
    folder = Path(source.folder)
    layout = RunLayout(folder, spec_files(folder)[0])
    trial, checkpoint = best_trial(layout), agent_mark(layout, best=source.agent == "best")
    sessions = saved_sessions(layout, trial, checkpoint)
    if not sessions:
        raise RunFolderError(
            f"meta.init_from: {folder / 'model'} holds no {source.agent} agent of trial {trial}. "
            "Give the folder of a run that has saved one."
        )
    if source.session == "best" or session not in sessions:
        session = best_of(layout, trial, sessions)
    return SourceAgent(layout, trial, session, checkpoint)


def with_source(spec: Spec, data_dir: Path) -> Spec:
    """Replace `latest` or a name in `meta.init_from` by the folder that it means now."""
    source = spec.meta.init_from
    if source is None:
        return spec
    try:
        folder = find_folder_of(source.folder, data_dir)
        source_agent(source.model_copy(update={"folder": str(folder)}), 0)
    except RunFolderError as error:
        raise SpecError([Problem("meta.init_from", str(error))], spec.name) from None
    return spec.with_values({"meta.init_from": {**dict(source), "folder": folder.as_posix()}})


def describe_source(spec: Spec, layout: RunLayout) -> dict[str, Any] | None:
    """The agents that the sessions of a run begin with, for its provenance.

    A resumed run has them on record. If they have changed since, a session that has its own
    checkpoint does not mind, and one that would begin now is refused by a SpecError.
    """
    source = spec.meta.init_from
    if source is None:
        return None
    records = read_run_records(layout.trial_provenance(0), folder=layout.predir)
    known = next((each.init_from for each in records if each.init_from), None)
    then = _by_session(known)
    taken, problems, changed = {}, list[Problem](), False
    for session in range(spec.meta.max_session):
        try:
            agent = source_agent(source, session)
            now = {"agent": agent.name, "sha256": agent.sha256()}
        except RunFolderError:  # gone since the run began
            continue
        taken[str(session)] = now
        before = then.get(str(session), now)
        if before["sha256"] == now["sha256"]:
            continue
        changed = True
        if not has_checkpoint(layout, 0, session):
            was, found = (f"{e['agent']}, sha256 {e['sha256'][:16]}" for e in (before, now))
            message = (
                f"{source.folder} has changed since this run began: session {session}, which has "
                f"no checkpoint yet, was to begin with {was}; found {found}. Put the files back, "
                "or begin a new run."
            )
            problems.append(Problem("meta.init_from", message))
    if problems:
        raise SpecError(problems, f"resuming {layout.predir}")
    if changed:
        fix = "the sessions go on from their own checkpoints, which do not need it"
        logger.warning(f"meta.init_from: {source.folder} has changed since this run began; {fix}.")
    return {"folder": source.folder, "sessions": taken | then}


def _by_session(known: object) -> dict[str, dict[str, str]]:
    """The agents of an earlier record, by session; of a damaged one nothing."""
    sessions = known.get("sessions") if isinstance(known, dict) else None
    found = sessions.items() if isinstance(sessions, dict) else ()
    keys = {"agent", "sha256"}
    return {
        session: {key: str(entry[key]) for key in keys}
        for session, entry in found
        if isinstance(entry, dict) and keys <= entry.keys()
    }
