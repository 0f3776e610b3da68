"""Starting the local Ray of a search, where it fails or is interrupted; no Ray is started here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ray", reason="the extra `search` is not installed")

from slm_lab.search.processes import FILE, clear_remains
from slm_lab.search.ray_setup import RayNotStarted, ray, ray_ready


def test_a_ray_that_does_not_start_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", fail)
    with (
        pytest.raises(RayNotStarted, match=r"timed out during startup.*search@latest") as caught,
        ray_ready(None, tmp_path / "ray_tune"),
    ):
        pass
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)


def test_sigterm_while_ray_starts_ends_the_search_with_the_code_of_that_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def init(**_: Any) -> None:  # as Ray's does, until it returns
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(SystemExit) as caught, ray_ready(None, tmp_path / "ray_tune"):
        pass
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


# A Ray of one process with an agent, which outlives it.
RAYLET = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("starts", [True, False])
def test_the_agents_of_a_local_ray_end_with_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: bool
) -> None:
    def init(**_: Any) -> None:
        command = [sys.executable, "-S", "-c", RAYLET]
        raylet = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(raylet)
        assert raylet.stdout is not None
        raylet.stdout.readline()
        agents.extend(psutil.Process(raylet.pid).children())
        if not starts:
            raise RuntimeError("no")

    def shutdown() -> None:
        for raylet in started:
            raylet.kill()
            raylet.wait()

    started: list[subprocess.Popen[str]] = []
    agents: list[psutil.Process] = []
    ours = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", shutdown)
    with suppress(RayNotStarted), ray_ready(None, tmp_path / "ray_tune"):
        assert agents[0].is_running()
    assert len(agents) == 1
    psutil.wait_procs(agents, timeout=5)
    assert not agents[0].is_running()
    assert ours.poll() is None, "not started by Ray"
    ours.kill()
    ours.wait()
    for raylet in started:
        assert raylet.stdout is not None
        raylet.stdout.close()


def test_what_a_search_left_that_was_killed_while_ray_started_is_ended_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = subprocess.Popen([sys.executable, "-S", "-c", ""])
    dead.wait()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    session = tmp_path / "ray" / f"session_2026-01-01_{dead.pid}"
    session.mkdir(parents=True)
    search_dir = tmp_path / "run" / "ray_tune"
    search_dir.mkdir(parents=True)
    search = {"pid": dead.pid, "started": 0.0}
    (search_dir / FILE).write_text(json.dumps({"search": search, "ray": []}))
    with (session / "agent.log").open("w") as log:
        command = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
        agent, ours = subprocess.Popen(command, stdout=log), subprocess.Popen(command)
    clear_remains(search_dir)
    assert agent.poll() is not None
    assert ours.poll() is None
    assert not session.exists()
    ours.kill()
    ours.wait()
