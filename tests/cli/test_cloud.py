"""`slm-lab run-remote`: what it refuses, what it prints, and what a real dstack server gets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from slm_lab.spec import load_spec

REPOSITORY = Path(__file__).parents[2]
SPEC = ("benchmark/ppo/ppo_cartpole.json", "ppo_cartpole")
TOKEN = "hf_do_not_show_me"
SERVER_SECONDS = 180  # for a server to come up; 13 s on two idle cores


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    for name in ("HF_TOKEN", "HF_REPO", "HF_ENDPOINT", "PROF_SKIP", "PROF_ACTIVE"):
        monkeypatch.delenv(name, raising=False)


def test_a_mistake_in_the_spec_is_found_before_anything_else(slm_lab):
    code, _, err = slm_lab("run-remote", *SPEC, "-s", "agent.algorithm.gama=0.9", "--dry-run")
    assert code == 2
    assert err.startswith("SpecError: 1 problem in ppo_cartpole.json")


def test_a_search_without_a_search_block_is_refused(slm_lab, tmp_path):
    tree = load_spec(*SPEC).to_dict()
    del tree["search"]
    (tmp_path / "mine.json").write_text(json.dumps({"mine": tree}))
    code, _, err = slm_lab("run-remote", "mine.json", "mine", "search", "--dry-run")
    assert code == 2
    assert err.startswith("SpecError: 1 problem in ")
    assert "search" in err


def test_a_dry_run_prints_the_task_and_not_the_token(slm_lab, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    words = ("--gpu", "-s", "env.max_frame=1e5", "--max-duration", "2", "-n", "my-run", "--dry-run")
    code, out, err = slm_lab("run-remote", *SPEC, *words)
    assert (code, err) == (0, "")
    assert TOKEN not in out
    task = yaml.safe_load(out)
    assert task["name"] == "my-run"
    assert task["max_duration"] == "120m"
    assert task["resources"]["gpu"] == "16GB..:1"
    assert {"HF_TOKEN", "SPEC_VARS=-s env.max_frame=1e5", "LAB_MODE=train"} <= set(task["env"])


def test_the_name_of_the_run_is_that_of_the_spec_unless_given(slm_lab):
    code, out, err = slm_lab("run-remote", *SPEC, "--dry-run")
    assert yaml.safe_load(out)["name"] == "ppo-cartpole"
    assert err.startswith("HF_TOKEN: not set")  # said, though nothing is submitted
    assert code == 0


def test_without_a_token_nothing_is_submitted(slm_lab):
    code, _, err = slm_lab("run-remote", *SPEC)
    assert code == 2
    assert err.startswith("CloudError: HF_TOKEN: not set")


def test_without_dstack_two_commands_set_it_up(slm_lab, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    code, _, err = slm_lab("run-remote", *SPEC)
    assert code == 2
    assert err.splitlines() == [
        "CloudError: Dstack is not installed.",
        "  pip install 'slm-lab[remote]'",
        "  dstack project add --name PROJECT --url URL --token TOKEN",
    ]


@pytest.mark.slow
def test_it_works_where_there_is_no_torch():
    code = (
        "import sys\n"
        "for name in ('torch', 'gymnasium', 'ray', 'numpy'): sys.modules[name] = None\n"
        f"sys.argv = {['slm-lab', 'run-remote', *SPEC, '--dry-run']!r}\n"
        "from slm_lab.cli.main import main\nmain()\n"
    )
    path = {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "SPEC_NAME=ppo_cartpole" in done.stdout


# A real server on this machine


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[dict[str, str]]:
    """Variables with which the dstack command finds a server of its own, without any cloud."""
    pytest.importorskip("uvicorn")
    dstack = Path(sys.executable).with_name("dstack")
    if not dstack.is_file():
        pytest.skip("the extra `remote` is not installed")
    folder = tmp_path_factory.mktemp("dstack")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {
        "HOME": str(folder / "home"),
        "DSTACK_SERVER_DIR": str(folder / "server"),
        # Nothing that looks beyond this machine: offers of clouds, their credentials.
        "DSTACK_SERVER_BACKGROUND_PROCESSING_DISABLED": "1",
        "DSTACK_SERVER_SSH_POOL_DISABLED": "1",
        "DSTACK_DEFAULT_CREDS_DISABLED": "1",
    }
    log = folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [str(dstack), "server", "--port", str(port), "--token", "admin-token", "-y"],
            env=os.environ | variables,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/healthcheck", process, log)
        yield variables
    finally:
        process.kill()
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + SERVER_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if json.load(answer)["status"] == "running":
                    return
        except OSError:
            time.sleep(0.2)
        gave_up = process.poll() is not None or time.monotonic() > deadline
        assert not gave_up, f"the server did not start:\n{log.read_text()}"


@pytest.fixture
def remote(server, slm_lab, monkeypatch):
    """`slm-lab run-remote` of someone who has that server configured."""
    for name, value in (server | {"HF_TOKEN": TOKEN}).items():
        monkeypatch.setenv(name, value)

    def command(*words: str) -> tuple[int, str, str]:
        code, out, err = slm_lab("run-remote", *SPEC, *words)
        assert TOKEN not in out + err
        return code, out, err

    return command


def dstack(*arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("dstack")), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_run_from_the_first_message_to_the_submitted_task(remote, monkeypatch, tmp_path):
    with monkeypatch.context() as nobody:
        nobody.setenv("HOME", str(tmp_path))
        code, _, err = remote()
        assert code == 2
        assert err.startswith("CloudError: No dstack project answers (No default project")
        assert "\n  dstack project add --name PROJECT" in err

    code, _, err = remote("-n", "pole")
    assert code == 2
    fleet = REPOSITORY / ".dstack" / "fleet-cpu.dstack.yml"
    assert err.splitlines() == [
        "CloudError: The dstack project has no fleet, so no machine to run on.",
        f"  dstack apply -y -f - < {fleet}",
        f"  slm-lab run-remote {' '.join(SPEC)} -n pole",
    ]

    dstack("apply", "-y", "-f", "-", stdin=fleet.read_text())  # as the message says
    # The lab knows no env of this name before it is made: that is left to the machine.
    value = "env.name=my $HOME $(id) ${{ secrets.x }} 'env'"
    code, out, _ = remote("-n", "pole", "-s", value, "--max-duration", "1")
    assert code == 0
    assert "No machine fits at the moment; dstack looks for one for 24h." in out
    assert "  follow   dstack logs pole\n" in out

    submitted: Any = json.loads(dstack("run", "get", "pole", "--json"))
    assert submitted["status"] == "submitted"
    job = submitted["jobs"][0]["job_spec"]
    assert job["max_duration"] == 3600
    assert job["retry"]["on_events"] == ["no-capacity", "interruption"]
    assert job["env"]["HF_TOKEN"] == TOKEN  # found by its name
    folder = job["env"]["RUN_FOLDER"]
    assert f"  results  slm-lab pull {folder}" in out
    assert {entry["path"] for entry in job["file_archives"]} >= {"/slm-lab/start.sh"}

    code, _, err = remote("-n", "pole")
    assert code == 2
    assert err.startswith("CloudError: A run `pole` is submitted already.")
    assert "\n  dstack stop pole -y\n" in err
