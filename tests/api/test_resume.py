"""`train@latest` and `train@FOLDER`: which run, the same experiment, what is left of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from loguru import logger
from matplotlib.figure import Figure

from slm_lab.analysis.plot import save
from slm_lab.analysis.tables import drop_clock, read_session
from slm_lab.api.run import RunStopped, run
from slm_lab.runs.checkpoint_manifest import read_manifest
from slm_lab.runs.find import find_run
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.lock import LockedError, locked
from slm_lab.spec import Spec, SpecError, load_spec
from slm_lab.training.options import RunOptions
from tests.killing import killed_at
from tests.tiny import tiny

ROOT = Path(__file__).parents[2]
SIGNALLING = """
import os, signal
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

class Signalling(CartPoleEnv):
    '''Sends a signal at a step, in the first life of a run only.'''

    def __init__(self, at=40, name="SIGINT", mark="lived"):
        super().__init__()
        self.at, self.name, self.mark, self.steps = at, name, mark, 0

    def step(self, action):
        self.steps += 1
        if self.steps == self.at and not os.path.exists(self.mark):
            open(self.mark, "w").close()
            os.kill(os.getpid(), getattr(signal, self.name))
        return super().step(action)

gym.register("Signalling-v0", entry_point=Signalling, max_episode_steps=50)
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    (tmp_path / "signalling.py").write_text(SIGNALLING)
    monkeypatch.chdir(tmp_path)
    yield
    logger.remove()


def signalling(**values: Any) -> Spec:
    return tiny(**{"env__name": "signalling:Signalling-v0", **values})


def curve(predir: Path, session: int = 0) -> str:
    path = RunLayout.open(predir).session_csv(0, session, "train")
    text: str = drop_clock(read_session(path)).to_csv()
    return text


def stopped(spec: Spec) -> RunStopped:
    with pytest.raises(RunStopped) as caught:
        run(spec, "train", RunOptions(log_level="ERROR"))
    return caught.value


@pytest.fixture
def half() -> RunStopped:
    """A run stopped at frame 80 of 200 by Ctrl-C, with a seed that it drew for itself."""
    return stopped(signalling())


def snapshot_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_what_it_would_have_been(half, capsys):
    assert half.predir.name in half.resume
    assert read_manifest(half.predir / "checkpoint/tiny_t0_s0/last").frame == 80
    seed = load_spec(half.predir / "tiny_spec.json").meta.random_seed
    metrics = run(signalling(), "train@latest")
    assert metrics.predir == half.predir
    assert metrics.frame == 200
    assert "goes on from frame 80" in capsys.readouterr().err
    whole = run(signalling(meta__random_seed=seed), "train")
    assert whole.predir != half.predir
    assert curve(half.predir) == curve(whole.predir)
    assert metrics.scalars == whole.scalars

    # Finished: a further resume says so and touches nothing but the log.
    before = snapshot_of(half.predir)
    again = run(signalling(), f"train@{half.predir}")
    assert "Trial 0 is finished, there is nothing to resume" in capsys.readouterr().err
    assert again.scalars == metrics.scalars
    after = snapshot_of(half.predir)
    assert {name for name in after if after[name] != before.get(name)} <= {
        "log/tiny_t0.log",
        "checkpoint/run.lock",
    }


@pytest.mark.slow
def test_the_printed_command_resumes_whatever_was_set(half):
    words = half.resume.split()
    assert words[:2] == ["slm-lab", "run"]
    spec = load_spec(words[2], words[3])
    metrics = run(spec, words[4], RunOptions(log_level="ERROR"))
    assert (metrics.predir, metrics.frame) == (Path(half.predir), 200)


def test_a_changed_spec_is_refused_with_the_difference(half):
    changed = signalling(env__max_frame=100, agent__algorithm__gamma=0.95, meta__random_seed=1)
    before = snapshot_of(half.predir)
    with pytest.raises(SpecError) as caught:
        run(changed, "train@latest")
    message = str(caught.value)
    assert "agent.algorithm.gamma: found 0.95, but the run has 0.9" in message
    assert "env.max_frame: found 100, but the run has 200" in message
    assert "meta.random_seed: found 1" in message
    assert half.resume in message
    assert snapshot_of(half.predir) == before


@pytest.mark.slow
def test_what_does_not_shape_a_session_may_change(half):
    metrics = run(signalling(meta__checkpoint_frequency=10), "train@latest")
    assert metrics.frame == 200


@pytest.mark.slow
def test_every_session_goes_on_from_where_it_was_and_the_others_start():
    """Session 0 is done, session 1 was killed half-way, session 2 never started."""
    spec = signalling(meta__max_session=3, meta__random_seed=5, env__name="CartPole-v1")
    options = RunOptions(log_level="ERROR")
    whole = run(spec, "train", options)
    layout = RunLayout.open(whole.predir)
    expected = [curve(whole.predir, session) for session in range(3)]
    for session in (1, 2):
        shutil.rmtree(layout.checkpoint_dir(0, session))
        layout.session_csv(0, session, "train").unlink()
    half_way(spec, layout, session=1)
    resumed = run(spec, "train@latest", options)
    assert [curve(whole.predir, session) for session in range(3)] == expected
    assert resumed.scalars == whole.scalars
    log = layout.log_path(0, 1).read_text()
    assert "goes on from frame 60" in log
    assert "starts from frame 0" in layout.log_path(0, 2).read_text()


def half_way(spec: Spec, layout: RunLayout, session: int) -> None:
    from slm_lab.training.session import Session

    unit = Session(spec, layout, 0, session, RunOptions(mode="train"))
    unit.advance(60)
    unit.close()


def test_a_run_in_use_is_refused(half):
    lock = RunLayout.open(half.predir).run_lock()
    with locked(lock, "it"), pytest.raises(LockedError, match=f"in use by process {os.getpid()}"):
        run(signalling(), "train@latest")


@pytest.mark.slow
def test_a_damaged_checkpoint_costs_the_work_since_the_one_before(half, capsys):
    session = half.predir / "checkpoint/tiny_t0_s0"
    shutil.copytree(session / "last", session / "last-1")
    path = session / "last" / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert run(signalling(), "train@latest").frame == 200
    assert "tensors.safetensors: has" in capsys.readouterr().err


@pytest.mark.slow
def test_without_a_good_checkpoint_the_session_fails_and_says_which_file(half):
    path = half.predir / "checkpoint/tiny_t0_s0/last/state.json"
    path.write_text("{}")
    before = curve(half.predir)
    metrics = run(signalling(), "train@latest")
    assert "state.json" in metrics.failed[0]
    assert curve(half.predir) == before  # nothing was overwritten


@pytest.mark.slow
def test_analysis_that_was_cut_short_is_made_up_for(half):
    run(signalling(), "train@latest")
    layout = RunLayout.open(half.predir)
    layout.trial_metrics(0).unlink()
    run(signalling(), "train@latest")
    assert layout.trial_metrics(0).exists()


# Which run


def test_latest_is_the_last_of_that_very_name(tmp_path):
    def make(folder: str, name: str) -> None:
        (tmp_path / "data" / folder).mkdir(parents=True)
        (tmp_path / "data" / folder / f"{name}_t0_spec.json").write_text("{}")

    make("ppo_2026_01_01_000000", "ppo")
    make("ppo_2026_01_02_000000", "ppo")
    make("ppo_2026_01_02_000000_02", "ppo")
    make("ppo_large_2026_01_03_000000", "ppo_large")
    (tmp_path / "data" / "ppo_2026_01_04_000000").mkdir()  # not a run
    found = find_run("ppo", "latest", tmp_path / "data").predir
    assert found.name == "ppo_2026_01_02_000000_02"


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("train@latest", "no run of tiny in data"),
        ("train@data/nowhere", "not a run folder"),
        ("train@", "expected dev, train, train@latest, train@FOLDER"),
        ("dev@latest", "expected dev, train, train@latest, train@FOLDER"),
    ],
)
def test_a_run_that_is_not_there_is_refused(mode, message):
    with pytest.raises(SpecError, match=message):
        run(signalling(), mode)
    assert not Path("data").exists()


# The command line


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM"])  # SIGINT: tests/training/test_trial.py
def test_a_signalled_command_ends_with_the_command_that_resumes_it(tmp_path, name):
    tree = {"tiny": signalling().to_dict()}
    tree["tiny"]["env"]["kwargs"] = {"name": name}
    (tmp_path / "mine.json").write_text(json.dumps(tree))
    command = [sys.executable, "-m", "slm_lab.cli.main"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def slm_lab(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *words], capture_output=True, text=True, env=environment, timeout=300
        )

    first = slm_lab("run", "mine.json", "tiny", "train")
    assert first.returncode == 128 + getattr(signal, name)
    last_line = first.stderr.strip().splitlines()[-1]
    assert last_line.startswith("Resume with: slm-lab run ")
    second = slm_lab(*last_line.removeprefix("Resume with: slm-lab ").split())
    assert second.returncode == 0, second.stderr
    assert "goes on from frame 80" in second.stderr
    third = slm_lab("run", "mine.json", "tiny", "train@latest")
    assert third.returncode == 0
    assert "nothing to resume" in third.stderr
    refused = slm_lab("run", "mine.json", "tiny", "train@latest", "-s", "env.max_frame=100")
    assert refused.returncode == 2
    assert "env.max_frame: found 100, but the run has 200" in refused.stderr
    assert "Traceback" not in refused.stderr


# Kills


def run_killed_at(spec: Spec, mode: str, at: int) -> bool:
    """Run in a copy of this process, killed at its `at`-th step; False if it has fewer steps."""
    child = os.fork()
    if child == 0:
        try:
            with killed_at(at):
                run(spec, mode, RunOptions(log_level="ERROR"))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def results_of(folder: Path) -> dict[str, bytes]:
    """The files of a trial but for logs, locks, clocks and who worked on it."""
    apart = ("log/", "checkpoint/", "model/")
    return {
        name: content
        for name, content in snapshot_of(folder).items()
        if not name.startswith(apart) and not name.endswith(("provenance.json", ".csv"))
    }


@pytest.mark.slow
def test_a_kill_at_any_step_of_the_end_of_a_trial_is_made_up_for(monkeypatch, capsys):
    """Its session is finished; metrics, graphs and the record of the trial are left to write."""

    def draw_one(paths: RunLayout, trial: int, *_: Any, **__: Any) -> None:
        """One graph stands for all: each is drawn beside and renamed."""
        figure = Figure()
        save(figure, paths.trial_graph(trial, "mean_returns"))

    monkeypatch.setattr("slm_lab.analysis.trial_graphs.draw_trial", draw_one)
    monkeypatch.setattr("slm_lab.api.run.live_graphs", lambda *_, **__: nullcontext())
    for name in ("git_sha", "git_dirty"):
        monkeypatch.setattr(f"slm_lab.runs.provenance.{name}", lambda: None)
    spec = tiny(env__max_frame=40, meta__random_seed=3, meta__log_frequency=20)
    layout = RunLayout.open(run(spec, "train", RunOptions(log_level="ERROR")).predir)
    whole = results_of(layout.predir)
    for path in (*layout.predir.glob("info/*.json"), *layout.predir.rglob("*_trial_*")):
        path.unlink(missing_ok=True)
    before = shutil.copytree(layout.predir, Path("before").absolute())

    mode, at, finished_at = f"train@{layout.predir}", 0, []
    while run_killed_at(spec, mode, at := at + 1):
        capsys.readouterr()
        run(spec, mode)
        if "nothing to resume" in capsys.readouterr().err:
            finished_at.append(at)
        assert results_of(layout.predir) == whole, f"after a kill at step {at}"
        shutil.rmtree(layout.predir)
        shutil.copytree(before, layout.predir)
    assert at > 25
    assert all(step > at - 4 for step in finished_at), (finished_at, at)
