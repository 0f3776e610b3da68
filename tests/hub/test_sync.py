"""Sharing while a run goes on: never in its way, and good for going on elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from slm_lab.analysis.tables import drop_clock, read_session
from slm_lab.api.run import run as train
from slm_lab.hub.directory import DirectoryRemote
from slm_lab.hub.huggingface import HuggingFaceRemote
from slm_lab.hub.sync import Sync, UploadFailed, run_synced
from slm_lab.runs.checkpoint_manifest import read_manifest
from slm_lab.spec import load_spec
from slm_lab.training.options import RunOptions

SESSION = "checkpoint/ppo_cartpole_t0_s0"
REPOSITORY = Path(__file__).parents[2]
SPEC = "slm_lab/spec/benchmark/ppo/ppo_cartpole.json"
TINY = [
    "env.num_envs=2",
    "meta.max_session=1",
    "meta.log_frequency=500",
    "meta.compile=off",
    "meta.random_seed=3",
    "meta.checkpoint_frequency=2000",
    "env.max_frame=40000",
    "agent.algorithm.time_horizon=128",
    "agent.algorithm.minibatch_size=128",
    "agent.algorithm.training_epoch=1",
]


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What the log says."""
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(str(message)), format="{level} {message}")
    yield lines
    logger.remove(sink)


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_a_new_checkpoint_is_sent_and_the_end_sends_the_rest(
    share: Path, run_dir: Path, kit: Any
) -> None:
    remote = DirectoryRemote(share)
    there = share / "data" / kit.FOLDER
    sync = Sync(remote, run_dir, every=0.0, look_every=0.01)
    sync.start()
    until(lambda: (there / SESSION / "last" / "manifest.json").exists())
    kit.write_checkpoint(run_dir / SESSION / "next", frame=200)
    (run_dir / SESSION / "last").rename(run_dir / SESSION / "last-1")
    (run_dir / SESSION / "next").rename(run_dir / SESSION / "last")
    until(lambda: read_manifest(there / SESSION / "last").frame == 200)
    (run_dir / "info" / "trial_metrics.json").write_text("{}")
    sync.finish()
    assert sync.error is None
    assert (there / "info" / "trial_metrics.json").exists()


def test_nothing_is_sent_while_there_is_nothing_new(hub: Any, run_dir: Path, kit: Any) -> None:
    sync = Sync(HuggingFaceRemote(kit.REPO), run_dir, every=0.0, look_every=0.01)
    sync.start()
    until(lambda: hub.count("POST", "/commit/") == 1)
    time.sleep(0.1)
    assert hub.count("POST", "/commit/") == 1
    sync.finish()
    assert hub.count("POST", "/commit/") == 1


def test_a_remote_that_fails_is_told_once_with_the_fix_and_the_run_goes_on(
    hub: Any, run_dir: Path, kit: Any, said: list[str]
) -> None:
    hub.errors["/api/"] = (403, 1_000_000)
    sync = Sync(HuggingFaceRemote(kit.REPO), run_dir, every=0.0, look_every=0.01)
    sync.start()
    until(lambda: len(hub.requests) > 8)  # it goes on trying
    failures = [line for line in said if "Upload failed" in line]
    assert len(failures) == 1
    assert "403" in failures[0]
    assert f"slm-lab push {run_dir}" in failures[0]
    hub.errors.clear()
    until(lambda: any("works again" in line for line in said))
    sync.finish()
    assert sync.error is None
    assert not any("hf_writer" in line for line in said)


def test_the_outcome_of_the_run_is_returned_or_comes_with_the_error(
    hub: Any, run_dir: Path, kit: Any
) -> None:
    remote = HuggingFaceRemote(kit.REPO)
    assert run_synced(remote, run_dir, lambda: "metrics") == "metrics"
    (run_dir / "info" / "more.json").write_text("{}")
    hub.errors["/commit/"] = (403, 1_000_000)
    with pytest.raises(UploadFailed, match="slm-lab push") as caught:
        run_synced(remote, run_dir, lambda: "metrics")
    assert caught.value.metrics == "metrics"
    assert run_synced(None, run_dir, lambda: "metrics") == "metrics"


def test_a_run_that_fails_is_uploaded_too_and_its_own_error_is_the_one_seen(
    share: Path, run_dir: Path, kit: Any
) -> None:
    def fail() -> None:
        raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        run_synced(DirectoryRemote(share), run_dir, fail)
    assert (share / "data" / kit.FOLDER).is_dir()


def test_a_second_signal_ends_at_once_without_an_upload(
    share: Path, run_dir: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, begun = Sync.start, list[Sync]()

    def remember(self: Sync) -> None:
        begun.append(self)
        start(self)

    monkeypatch.setattr(Sync, "start", remember)
    with pytest.raises(SystemExit):
        run_synced(DirectoryRemote(share), run_dir, lambda: sys.exit(143))
    assert not (share / "data").exists()
    begun[0].finish()  # or its thread would push during later tests; a process would have ended


def test_the_end_is_sent_again_where_that_may_help(
    hub: Any, run_dir: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slm_lab.hub.sync.RETRY_SECONDS", (0.0, 0.0))
    hub.errors["/commit/"] = (503, 2)
    assert run_synced(HuggingFaceRemote(kit.REPO), run_dir, lambda: "metrics") == "metrics"
    assert f"data/{kit.FOLDER}/manifest.json" in hub.datasets[kit.REPO].tree


def test_a_connection_that_hangs_does_not_keep_a_run_from_ending(
    share: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    remote = DirectoryRemote(share)
    monkeypatch.setattr(remote, "files", lambda folder: never.wait() and {})
    monkeypatch.setattr("slm_lab.hub.sync.FINISH_SECONDS", 0.05)
    with pytest.raises(UploadFailed, match="no end after"):
        run_synced(remote, run_dir, lambda: "metrics")
    never.set()


def test_a_search_is_sent_when_its_journal_grows(share: Path, run_dir: Path, kit: Any) -> None:
    journal = run_dir / "ray_tune" / "journal.jsonl"
    journal.parent.mkdir()
    journal.write_text("{}\n")
    sync = Sync(DirectoryRemote(share), run_dir, every=0.0, look_every=0.01)
    sync.start()
    there = share / "data" / kit.FOLDER / "ray_tune" / "journal.jsonl"
    until(there.exists)
    journal.write_text("{}\n{}\n")
    until(lambda: there.read_text() == "{}\n{}\n")
    sync.finish()


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "slm_lab.cli.main", *words]


@pytest.mark.slow
def test_a_killed_machine_is_continued_elsewhere_from_what_it_had_synced(
    hub: Any, tmp_path: Path, kit: Any
) -> None:
    """kill -9 in the middle; another machine pulls and goes on; the curve is that of one run."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "HF_HOME": str(tmp_path / "hf")}
    run = ["run", SPEC, "ppo_cartpole"]
    long_enough = [*TINY, "env.max_frame=60000"]  # not to end before it is halted
    sets = [word for item in long_enough for word in ("-s", item)]
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    victim = subprocess.Popen(
        command(*run, "train", *sets, "--upload-hf"),
        cwd=first,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until(lambda: _last_manifests(first.glob("data/*/checkpoint/*/*/*")))
        _halt_children(victim.pid)  # the session; what shares its folder goes on
        until(lambda: _last_manifests(hub.datasets[kit.REPO].tree) or victim.poll() is not None)
    finally:
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait()
    assert victim.returncode == -signal.SIGKILL, "it had ended before it was killed"
    (name,) = HuggingFaceRemote(kit.REPO).folders()
    subprocess.run(command("pull", "--if-exists", name), cwd=second, env=environment, check=True)
    folder = second / "data" / name
    (checkpoint,) = folder.glob("checkpoint/*/last")
    assert 0 < read_manifest(checkpoint).frame < 60000
    resume = command(*run, f"train@data/{name}", *sets, "--upload-hf")
    subprocess.run(resume, cwd=second, env=environment, check=True, capture_output=True)

    whole = train(
        load_spec(SPEC, sets=long_enough), "train", RunOptions(data_dir=str(tmp_path / "whole"))
    )
    csv = "info/ppo_cartpole_t0_s0_session_df_train.csv"
    tables = [drop_clock(read_session(path / csv)) for path in (folder, whole.predir)]
    assert len(tables[0]) == 120
    assert tables[0].equals(tables[1])
    # The end was uploaded as well, from the second machine.
    metrics = f"data/{name}/info/ppo_cartpole_t0_trial_metrics.json"
    assert metrics in hub.datasets[kit.REPO].tree


def _last_manifests(files: Iterable[str | Path]) -> list[str]:
    return [str(path) for path in files if str(path).endswith("/last/manifest.json")]


def _halt_children(pid: int) -> None:
    """However fast the machine, the session does not come to its end before it is killed."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True)
    for child in found.stdout.split():
        os.kill(int(child), signal.SIGSTOP)
