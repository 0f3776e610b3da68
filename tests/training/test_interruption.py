"""Kills, full disks and divergence: what was good stays good, and the rest is said."""

from __future__ import annotations

import json
import math
import os
import random
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from loguru import logger

from slm_lab.agent.learning.learner import DivergenceError, check_parameters
from slm_lab.analysis.tables import read_session
from slm_lab.runs.checkpoint_manifest import read_manifest
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.resume import unfinished_sessions
from slm_lab.spec import Spec
from slm_lab.training.checkpoint import read_checkpoint
from slm_lab.training.options import RunOptions
from slm_lab.training.session import Session
from slm_lab.training.trial import run_sessions
from tests.killing import killed_at

KILLS = 10  # of each algorithm below: 40 in all
MOST_STEPS = 250  # changes of files until the next kill; every 20 frames a save makes many


@pytest.fixture
def said() -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logger.add(lambda message: lines.append(str(message)), level="INFO")
    yield lines
    logger.remove(handler)


# Kills


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: syncing is not what is tested here."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(dir=memory))
    yield folder
    shutil.rmtree(folder)


def start_trainer(spec: Spec, layout: RunLayout, *, kill_at: int = 0) -> int:
    """A training process, forked from this one, which has torch loaded: it starts at once.

    It is killed at its `kill_at`-th change of a file; 0 is never.
    """
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        logger.remove()
        with killed_at(kill_at):
            end = run_sessions(spec, layout, 0, RunOptions(mode="train", resume=True))
        code = 1 if end.failed else 0
    finally:
        os._exit(code)


def saved_frame(layout: RunLayout) -> int:
    """Frame of the newest checkpoint there is."""
    folders = [layout.checkpoint_dir(0, 0) / name for name in ("last", "last-1")]
    return next((read_manifest(folder).frame for folder in folders if folder.exists()), 0)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["PPO", "DDQN+PER", "SAC", "PPO-SIL"])
def test_a_run_killed_again_and_again_is_the_uninterrupted_run(
    every_spec, same_run, quick_folder, algorithm
):
    spec = every_spec(algorithm, env__max_frame=500, meta__checkpoint_frequency=20)
    whole = RunLayout.create(spec.name, "whole", quick_folder)
    _, status = os.waitpid(start_trainer(spec, whole), 0)
    assert status == 0

    killed = RunLayout.create(spec.name, "killed", quick_folder)
    steps = random.Random(algorithm)
    frame = 0
    for _ in range(KILLS):
        child = start_trainer(spec, killed, kill_at=steps.randint(1, MOST_STEPS))
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "it ended before it could be killed"
        assert saved_frame(killed) >= frame, "a kill lost a checkpoint"
        frame = saved_frame(killed)
    assert frame > 0, "nothing was saved between the kills"
    _, status = os.waitpid(start_trainer(spec, killed), 0)
    assert status == 0
    same_run(killed, whole)


@pytest.mark.slow
def test_a_session_in_use_is_refused_and_an_orphan_is_waited_for(every_spec, tmp_path, monkeypatch):
    monkeypatch.setattr("slm_lab.training.executors.local.ORPHAN_PATIENCE_SECONDS", 0.1)
    spec = every_spec("PPO", env__max_frame=10**6)
    layout = RunLayout.create(spec.name, "now", tmp_path)
    child = start_trainer(spec, layout)
    lock = layout.session_lock(0, 0)
    while not lock.exists() or str(child) not in lock.read_text():
        time.sleep(0.01)
    end = run_sessions(spec, layout, 0, RunOptions(mode="train", resume=True))
    assert f"tiny_t0_s0 is in use by process {child}" in end.failed[0]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    short = every_spec("PPO", env__max_frame=20)
    assert not run_sessions(short, layout, 0, RunOptions(mode="train")).failed


def test_a_session_that_was_finished_while_its_lock_was_waited_for_is_left_alone(
    every_spec, tmp_path, monkeypatch
):
    """The trial was asked before: an orphan of the one that was killed has finished it since."""
    spec = every_spec("DQN", env__max_frame=60)
    layout = RunLayout.create(spec.name, "now", tmp_path)
    monkeypatch.setattr("slm_lab.training.trial.unfinished_sessions", lambda *_: [0])
    options = RunOptions(mode="train", resume=True)
    assert not run_sessions(spec, layout, 0, options).failed
    before = (layout.checkpoint_dir(0, 0) / "last").stat().st_ino
    assert not run_sessions(spec, layout, 0, options).failed
    assert (layout.checkpoint_dir(0, 0) / "last").stat().st_ino == before


# Full disks


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """Files cannot grow beyond `limit` bytes; the system refuses, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def make_session(spec: Spec, layout: RunLayout, **options: Any) -> Session:
    return Session(spec, layout, 0, 0, RunOptions(mode="train", **options))


@pytest.mark.slow
# TensorBoard's own thread says that it cannot write, and dies of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("limit", [0, 2000])  # not even a row of the curve; only small files
def test_training_goes_on_while_the_disk_is_full_and_loses_nothing(
    every_spec, same_run, tmp_path, said, limit
):
    spec = every_spec("DDQN+PER", meta__checkpoint_frequency=40)
    whole = RunLayout.create(spec.name, "whole", tmp_path)
    assert make_session(spec, whole).run()

    layout = RunLayout.create(spec.name, "full", tmp_path)
    session = make_session(spec, layout)
    session.advance(130)
    assert saved_frame(layout) == 120
    with full_disk(limit):
        session.advance(210)
    assert saved_frame(layout) == 120
    assert any("checkpoint not written" in line and str(layout.predir) in line for line in said)
    assert session.run()
    same_run(layout, whole)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_run_stopped_while_the_disk_is_full_resumes_from_the_last_good_checkpoint(
    every_spec, same_run, tmp_path
):
    spec = every_spec("PPO", meta__checkpoint_frequency=40)
    whole = RunLayout.create(spec.name, "whole", tmp_path)
    assert make_session(spec, whole).run()
    layout = RunLayout.create(spec.name, "full", tmp_path)
    session = make_session(spec, layout)
    session.advance(130)
    with full_disk(2000):
        session.advance(210)
        session.close()
    resumed = make_session(spec, layout, resume=True)
    assert read_session(layout.session_csv(0, 0, "train"))["frame"].tolist() == [50, 100]
    assert resumed.run()
    same_run(layout, whole)


# Divergence


def nan_after(session: Session, frame: int) -> None:
    """Let the net break between two updates, before any loss can show it."""
    session.advance(frame)
    session._agent.algorithm.learner.state["net"][0] = math.nan


@pytest.mark.parametrize("algorithm", ["PPO", "SAC", "DQN"])
def test_a_parameter_that_is_no_number_never_reaches_a_checkpoint(
    every_spec, tmp_path, said, algorithm
):
    spec = every_spec(algorithm, meta__checkpoint_frequency=40)
    layout = RunLayout.create(spec.name, "now", tmp_path)
    session = make_session(spec, layout)
    nan_after(session, 122)
    with pytest.raises(DivergenceError, match="diverged at frame"):
        session.run()
    manifest, state = read_checkpoint(layout.checkpoint_dir(0, 0) / "last", max_bytes=10**9)
    assert manifest.frame == 120
    assert state["agent"]["algorithm"]["learner"]["net"].isfinite().all()
    for model in (layout.predir / "model").iterdir():
        values = torch.load(model, weights_only=True).values()
        assert all(value.isfinite().all() for value in values), model.name

    note = json.loads(layout.divergence_report(0, 0).read_text())
    assert 122 <= note["frame"] <= 160
    assert note["terms"]
    assert all(math.isfinite(value) for value in note["last_finite"].values())
    assert "loss" in note["last_finite"]
    assert any("Last finite metrics: loss = " in line for line in said)
    assert math.isinf(read_session(layout.session_csv(0, 0, "train"))["loss"].iloc[-1])
    assert unfinished_sessions(spec, layout, 0) == []  # it would only diverge again


def test_parameters_are_named():
    state = {"net": torch.tensor([1.0, math.inf]), "step": torch.tensor(3), "lr": torch.tensor(0.1)}
    with pytest.raises(DivergenceError, match=r"diverged at frame 9: net = nan"):
        check_parameters(state, 9)
    check_parameters({"lr": state["lr"], "step": state["step"]}, 9)
