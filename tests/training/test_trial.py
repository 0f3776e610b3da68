"""The sessions of a trial: processes of their own, their files, their ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from slm_lab.analysis.tables import drop_clock, read_session
from slm_lab.env.error import EnvError
from slm_lab.runs.layout import RunLayout
from slm_lab.spec import Spec
from slm_lab.training.executors.local import concurrency
from slm_lab.training.options import RunOptions
from slm_lab.training.trial import run_sessions


def run_trial(spec: Spec, folder: Path, **options):
    layout = RunLayout.create(spec.name, "now", folder)
    return run_sessions(spec, layout, 0, RunOptions(mode="train", **options)), layout


def curve(layout: RunLayout, session: int) -> str:
    text: str = drop_clock(read_session(layout.session_csv(0, session, "train"))).to_csv()
    return text


def test_as_many_sessions_run_at_once_as_the_cores_allow(make_spec, monkeypatch):
    monkeypatch.setattr("slm_lab.training.executors.local.available_cores", lambda: 8)
    assert concurrency(make_spec(meta__max_session=4)) == 4
    assert concurrency(make_spec(meta__max_session=20)) == 8
    assert concurrency(make_spec(meta__max_session=20, meta__threads=3)) == 2
    assert concurrency(make_spec(meta__max_session=20, meta__threads=16)) == 1


# Three sessions in processes of their own, started once for the tests below.


@pytest.fixture(scope="module")
def broken(make_spec, faulty_folder, env_seed, tmp_path_factory) -> Iterator[Any]:
    """At its 61st step the env raises in session 1, and kills the process of session 2."""
    spec = make_spec(meta__max_session=3, env__name="faulty_env:Faulty-v0")
    victims = {str(env_seed(spec, 1)): "raise", str(env_seed(spec, 2)): "SIGKILL"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(faulty_folder)
        folder = tmp_path_factory.mktemp("broken")
        yield run_trial(spec.with_values({"env.victims": victims}), folder)


def test_a_session_that_breaks_leaves_the_others_alone(broken):
    end, layout = broken
    assert list(end.failed) == [1, 2]
    assert end.stopped_by is None
    last = {s: read_session(layout.session_csv(0, s, "train"))["frame"].iloc[-1] for s in range(3)}
    assert last == {0: 200, 1: 100, 2: 100}


def test_a_killed_session_is_reported_with_its_exit_code(broken):
    end, _ = broken
    assert end.failed[2] == "its process died with exit code -9 (SIGKILL)"


def test_the_traceback_of_a_crash_is_in_the_log_of_its_session(broken):
    end, layout = broken
    assert end.failed[1].endswith("RuntimeError: the pole broke")
    log = layout.log_path(0, 1).read_text()
    assert "Session 1 failed\nTraceback (most recent call last):" in log
    assert 'raise RuntimeError("the pole broke")' in log
    assert "Traceback" not in layout.log_path(0, 0).read_text()
    assert "Session 0 done" in layout.log_path(0, 0).read_text()


def test_a_session_gives_the_same_curve_in_a_process_and_here(
    broken, make_spec, faulty, run_session
):
    _, layout = broken
    spec = make_spec(meta__max_session=3, env__name=faulty)
    assert curve(layout, 0) == curve(run_session(spec, 0, mode="train"), 0)


# In this process


def test_a_single_session_runs_here_and_has_a_log_of_its_own(make_spec, tmp_path):
    end, layout = run_trial(make_spec(), tmp_path)
    assert (end.failed, end.stopped_by) == ({}, None)
    log = layout.log_path(0, 0).read_text()
    assert f"PID:{os.getpid()}" in log
    assert "Trial 0 session 0 tiny_t0_s0 [train]\n" in log
    assert "Session 0 done" in log


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_a_session_after_its_step(make_spec, faulty, tmp_path, name):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    spec = make_spec(env__name=faulty, env__num_envs=1, env__fault=name, env__after=120)
    end, layout = run_trial(spec, tmp_path)
    assert end.stopped_by == signal.Signals[name]
    assert end.failed == {}
    assert "stopped early, at frame 121 of 200" in layout.log_path(0, 0).read_text()
    assert read_session(layout.session_csv(0, 0, "train"))["frame"].tolist() == [50, 100]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_signal_after_the_last_frame_stops_nothing(make_spec, faulty, tmp_path):
    spec = make_spec(env__name=faulty, env__num_envs=1, env__fault="SIGINT", env__after=199)
    end, _ = run_trial(spec, tmp_path)
    assert end.stopped_by is None


def test_a_mistake_that_shows_when_the_env_is_made_is_raised(make_spec, tmp_path):
    with pytest.raises(EnvError, match=r"env\.name: `CartPol-v1` is not registered"):
        run_trial(make_spec(env__name="CartPol-v1"), tmp_path)


def test_a_trial_runs_in_a_thread_too(make_spec, tmp_path):
    with ThreadPoolExecutor(1) as pool:
        end, _ = pool.submit(run_trial, make_spec(), tmp_path).result()
    assert end.failed == {}


# Signals to a whole command


def start_run(
    spec: Spec, folder: Path, mode: str, *, log_frequency: int = 200
) -> subprocess.Popen[str]:
    """`slm-lab run`, far from its end, once every session has its first row or, where that would
    take for ever, has begun."""
    (folder / "tiny.json").write_text(json.dumps({"tiny": spec.to_dict()}))
    command = [sys.executable, "-m", "slm_lab.cli.main", "run", "tiny.json", "tiny", mode]
    process = subprocess.Popen(
        [*command, "-s", "env.max_frame=1e8", "-s", f"meta.log_frequency={log_frequency}"],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # a group of its own, as a terminal gives a command
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    wanted = spec.meta.max_session if mode == "train" else 1
    deadline = time.monotonic() + 60
    signs = ("info/*_train.csv", "") if log_frequency < 10**6 else ("log/*_s?.log", "PPO on")
    while sum(signs[1] in path.read_text() for path in folder.glob(f"data/*/{signs[0]}")) < wanted:
        assert time.monotonic() < deadline, "no first row"
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    return process


def living(group: int) -> list[int]:
    """Processes of a group that still run; a zombie does not."""
    found = []
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError):  # it ended meanwhile
            is_dead = process.info["status"] == psutil.STATUS_ZOMBIE
            if os.getpgid(process.pid) == group and not is_dead:
                found.append(process.pid)
    return found


def wait_until_gone(group: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while living(group):
        assert time.monotonic() < deadline, f"still running: {living(group)}"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode", "to_group"),
    [
        ("SIGINT", "train", True),  # Ctrl-C in a terminal reaches every process
        ("SIGTERM", "train", True),
        ("SIGTERM", "train", False),
        ("SIGINT", "dev", True),
    ],
)
def test_a_run_that_is_stopped_keeps_what_it_has_and_says_so(
    make_spec, tmp_path, name, mode, to_group
):
    signum = signal.Signals[name]
    process = start_run(make_spec(meta__max_session=2), tmp_path, mode)
    (os.killpg if to_group else os.kill)(process.pid, signum)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + signum
    wait_until_gone(process.pid, seconds=5)

    assert f"Stopped early by {name}" in output
    assert "trial_metrics: " in output
    assert "Traceback" not in output
    assert "Trial 0 done" not in output
    assert "failed" not in output
    (predir,) = (tmp_path / "data").iterdir()
    for session in range(2 if mode == "train" else 1):
        assert f"Session {session} stopped early" in output
        unit = f"tiny_t0_s{session}"
        assert (predir / "info" / f"{unit}_session_metrics_scalar_train.json").exists()
        assert (predir / "model" / f"{unit}_net_model.pt").exists()
        assert (predir / "model" / f"{unit}_ckpt-best_net_model.pt").exists()
    assert (predir / "tiny_t0_trial_graph_mean_returns_vs_frames.png").exists()
    assert (predir / "tiny_t0_trial_metrics_scalar.json").exists()


@pytest.mark.slow
def test_a_second_signal_ends_everything_at_once(make_spec, tmp_path):
    process = start_run(make_spec(meta__max_session=2), tmp_path, "train")
    os.killpg(process.pid, signal.SIGINT)
    os.killpg(process.pid, signal.SIGTERM)  # of two alike the system would deliver one
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "trial_metrics: " not in output
    wait_until_gone(process.pid, seconds=5)


@pytest.mark.slow
def test_sessions_do_not_outlive_a_trial_that_was_killed(make_spec, tmp_path):
    """They do not wait for their next report, which here would be hours away."""
    spec = make_spec(meta__max_session=2)
    process = start_run(spec, tmp_path, "train", log_frequency=10**8)
    process.kill()
    process.communicate(timeout=30)
    wait_until_gone(process.pid, seconds=2)
