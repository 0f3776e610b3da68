"""What ends with a process that is killed, and what is cleared away after it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from slm_lab.search import processes
from slm_lab.training.executors.local import end_with, end_with_parent, scratch_folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def dead_process() -> int:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child


def test_a_process_ends_when_the_other_end_of_its_pipe_does():
    lives, lifeline = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(lifeline)
        end_with(lambda: os.read(lives, 1))
        while True:  # busy, as with training
            pass
    os.close(lives)
    assert os.waitpid(child, os.WNOHANG) == (0, 0)
    os.close(lifeline)  # as the kernel does when this process dies
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for it")
def test_a_process_without_a_pipe_ends_with_its_parent():
    """A grandchild holds a pipe open, as long as it lives."""
    lives, held = os.pipe()
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            end_with_parent()
            os.write(tell, b"!")
        signal.pause()
    os.close(held)
    assert os.read(ready, 1) == b"!"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert os.read(lives, 1) == b""
    os.close(lives)


def test_a_scratch_folder_stays_while_its_process_lives_and_goes_with_the_next(temporary):
    mine = scratch_folder()
    dead = mine.rename(mine.with_name(mine.name.replace(f"_{os.getpid()}_", f"_{dead_process()}_")))
    (dead / "rows").write_text("1")
    others = temporary / "slm_lab_elsewhere_1_x"
    others.mkdir()
    second = scratch_folder()
    third = scratch_folder()
    assert sorted(temporary.iterdir()) == sorted([second, third, others])


def test_what_a_killed_search_left_running_is_ended_by_the_next_start(temporary):
    pid = dead_process()
    session = temporary / "ray" / f"session_2026-01-01_00-00-00_000000_{pid}"
    session.mkdir(parents=True)
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as left:
        name = processes.identity(psutil.Process(left.pid))
        content = {"search": {"pid": pid, "started": 1.0}, "ray": [name]}
        (temporary / processes.FILE).write_text(json.dumps(content))
        processes.clear_remains(temporary)
        assert left.poll() is not None
    assert not session.exists()
    assert not (temporary / processes.FILE).exists()
