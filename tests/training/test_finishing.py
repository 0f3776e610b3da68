"""A kill at any step of a session's end: a resume leaves what an uninterrupted session leaves."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slm_lab.runs.checkpoint_manifest import read_manifest
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.resume import unfinished_sessions
from slm_lab.spec import Spec
from slm_lab.training.options import RunOptions
from slm_lab.training.session import Session
from slm_lab.training.trial import run_sessions
from tests.killing import killed_at

SLOTS = ("last", "last-1", "best", "best-1")


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: syncing is not what is tested here."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    yield folder
    shutil.rmtree(folder)


def trained(spec: Spec, layout: RunLayout) -> Session:
    """A session at the end of its budget, which has not begun to finish."""
    session = Session(spec, layout, 0, 0, RunOptions(mode="train"))
    assert session.advance()
    return session


def files(layout: RunLayout) -> list[str]:
    """What a run folder holds, but for locks and for logs, which tell of every life of a run."""
    found = (path.relative_to(layout.predir) for path in layout.predir.rglob("*"))
    return sorted(
        path.as_posix() for path in found if path.parts[0] != "log" and path.suffix != ".lock"
    )


def frames(layout: RunLayout) -> dict[str, int]:
    """The frame of each checkpoint there is."""
    folder = layout.checkpoint_dir(0, 0)
    return {slot: read_manifest(folder / slot).frame for slot in SLOTS if (folder / slot).exists()}


def kill_while_finishing(session: Session, at: int) -> bool:
    """Let a copy of this process finish the session, and kill it at its `at`-th step.

    Returns whether there was such a step.
    """
    child = os.fork()
    if child == 0:
        try:
            with killed_at(at):
                session.close()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def resume(spec: Spec, layout: RunLayout) -> None:
    assert not run_sessions(spec, layout, 0, RunOptions(mode="train", resume=True)).failed


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["DDQN+PER"])  # a replay has most to write
def test_a_kill_at_any_step_of_finishing_is_made_up_for_by_a_resume(
    every_spec: Callable[..., Spec],
    same_run: Callable[[RunLayout, RunLayout], None],
    folder: Path,
    algorithm: str,
) -> None:
    spec = every_spec(
        algorithm,
        env__max_frame=100,
        env__normalize_obs=True,
        meta__log_frequency=20,
        meta__checkpoint_frequency=60,
    )
    whole = RunLayout.create(spec.name, "whole", folder)
    trained(spec, whole).close()

    killed = RunLayout.create(spec.name, "killed", folder)
    session = trained(spec, killed)
    before = shutil.copytree(killed.predir, folder / "before")
    at, finished_at = 1, []
    while kill_while_finishing(session, at):
        if not unfinished_sessions(spec, killed, 0):
            finished_at.append(at)
        resume(spec, killed)
        same_run(killed, whole)
        assert files(killed) == files(whole), f"after a kill at step {at}"
        assert frames(killed) == frames(whole), f"after a kill at step {at}"
        shutil.rmtree(killed.predir)
        shutil.copytree(before, killed.predir)
        at += 1
    assert at > 30
    # "Finished" was said at the very end: only the folder's own sync could come after it.
    assert all(step >= at - 2 for step in finished_at)
