"""What `run-remote` submits: read by dstack's own models, and run by a real shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from slm_lab.cloud import (
    EXTRAS,
    CloudError,
    Code,
    RemoteRun,
    build_task,
    find_configuration,
    missing_token,
    pack,
    to_yaml,
)
from slm_lab.spec import load_spec

REPOSITORY = Path(__file__).parents[2]
CARTPOLE = "slm_lab/spec/benchmark/ppo/ppo_cartpole.json"
CODE = Code("slm-lab[remote]==1", "benchmark/ppo/ppo_cartpole.json")
TOKEN = "hf_do_not_show_me"
HOSTILE = [
    "env.name=my env",
    "env.name=it's",
    'env.name="quoted" \\ back',
    "env.name=$HOME ${HOME} $(touch pwned) `touch pwned`",
    "env.name=$$ and ${{ secrets.TOKEN }} and $",
    "env.name=; touch pwned; # !! * ? [a] {b,c} ~ <x >y & |",
    "env.name=line\nbreak\ttab",
    "env.name=größe 温度",
    "env.name=",
]


def a_run(**changes: Any) -> RemoteRun:
    values: dict[str, Any] = {
        "name": "pole",
        "spec_name": "ppo_cartpole",
        "run_name": "ppo_cartpole",
        "mode": "train",
        "timestamp": "2026_01_31_235959",
    }
    return RemoteRun(**values | changes)


def as_dstack_reads(text: str) -> Any:
    models = pytest.importorskip("dstack._internal.core.models.configurations")
    return models.parse_apply_configuration(yaml.safe_load(text))


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(REPOSITORY)


@pytest.mark.parametrize(
    "file", sorted((REPOSITORY / ".dstack").glob("*.yml")), ids=lambda f: f.name
)
def test_every_shipped_file_is_valid_for_dstack(file):
    configuration = as_dstack_reads(file.read_text())
    if file.name.startswith("fleet"):
        assert configuration.type == "fleet"
        assert configuration.nodes.min == 0  # it costs nothing while nothing runs
        return
    assert configuration.type == "task"
    assert [event.value for event in configuration.retry.on_events] == [
        "no-capacity",
        "interruption",
    ]
    assert configuration.max_duration > 0
    gpus = configuration.resources.gpu.count
    assert (gpus.min, gpus.max) == ((1, 1) if "-gpu-" in file.name else (0, 0))


def test_there_is_a_file_for_each_machine_and_mode_and_a_fleet_for_each_machine():
    names = {path.name for path in (REPOSITORY / ".dstack").glob("*.yml")}
    runs = {a_run(gpu=gpu, mode=mode).file_name for gpu in (0, 1) for mode in ("train", "search")}
    assert names == runs | {"fleet-cpu.dstack.yml", "fleet-gpu.dstack.yml"}
    assert len(runs) == 4


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("mode", ["train", "search"])
def test_the_task_of_a_run_is_valid_for_dstack_and_says_all_about_the_run(gpu, mode):
    run = a_run(gpu=gpu, mode=mode, sets=["env.max_frame=1e5"], max_hours=1.5)
    task = as_dstack_reads(
        to_yaml(build_task(run, CODE, {"HF_TOKEN": TOKEN, "HF_REPO": "me/runs"}))
    )
    assert task.name == "pole"
    assert task.max_duration == 90 * 60
    assert task.env["SPEC_FILE"] == "benchmark/ppo/ppo_cartpole.json"
    assert task.env["SPEC_NAME"] == "ppo_cartpole"
    assert task.env["LAB_MODE"] == mode
    assert task.env["SPEC_VARS"] == "-s env.max_frame=1e5"
    assert task.env["RUN_FOLDER"] == "ppo_cartpole_2026_01_31_235959"
    assert Path(task.files[0].local_path) == REPOSITORY / ".dstack" / "start.sh"
    # By name: dstack finds the value when it submits.
    for name in ("HF_TOKEN", "HF_REPO"):
        assert str(task.env[name]) == f"EnvSentinel({name})"
    assert "HF_ENDPOINT" not in task.env  # not set here, so that dstack would stop at it


def test_the_token_is_nowhere_in_the_task():
    assert TOKEN not in to_yaml(build_task(a_run(), CODE, {"HF_TOKEN": TOKEN}))


def test_without_a_token_or_a_folder_as_hub_the_results_would_be_lost():
    task = build_task(a_run(), CODE, {})
    assert missing_token(task, {}).startswith("HF_TOKEN: not set")
    assert missing_token(task, {"HF_TOKEN": TOKEN}) == ""
    assert missing_token(task, {"HF_REPO": "file:/mnt/share"}) == ""


def test_profiling_travels_as_variables_of_a_dev_run():
    env = build_task(a_run(profile=True), CODE, {"PROF_SKIP": "5", "HF_TOKEN": TOKEN})["env"]
    assert "PROFILE=true" in env
    assert "LAB_MODE=dev" in env
    assert "PROF_SKIP" in env
    assert not any(entry.startswith("PROFILE") for entry in build_task(a_run(), CODE, {})["env"])


def test_a_dstack_folder_of_ones_own_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_configuration("run-cpu-train.yml") == REPOSITORY / ".dstack" / "run-cpu-train.yml"
    (tmp_path / ".dstack").mkdir()
    env = "[MINE=1, 'HF_TOKEN=${{ secrets.hf }}']"
    (tmp_path / ".dstack" / "run-cpu-train.yml").write_text(
        f"type: task\ncommands: [bash go.sh]\nfiles: [go.sh]\nenv: {env}\n"
    )
    task = build_task(a_run(), CODE, {})
    assert task["files"] == [str(tmp_path / ".dstack" / "go.sh")]
    assert task["env"][:2] == ["MINE=1", "HF_TOKEN=${{ secrets.hf }}"]
    assert "SPEC_NAME=ppo_cartpole" in task["env"]  # ours are there though it does not list them
    assert missing_token(task, {}) == ""


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": "My_Run"}, "--name: found `My_Run`; expected small letters"),
        ({"name": "x"}, "--name: found `x`"),
        ({"mode": "train@latest"}, "MODE: found `train@latest`; expected train, search, dev"),
        ({"max_hours": 0.0}, "--max-duration: found 0 hours"),
    ],
)
def test_what_dstack_would_refuse_is_refused_here(changes, text):
    with pytest.raises(CloudError) as refused:
        a_run(**changes)
    assert text in str(refused.value)


# The code


def test_a_checkout_without_a_remote_branch_travels_as_files(monkeypatch):
    monkeypatch.setattr("slm_lab.cloud._has_remote_branch", lambda root: False)
    code = pack(CARTPOLE, load_spec(CARTPOLE, "ppo_cartpole"))
    assert code.package == f"/slm-lab/code[{','.join(EXTRAS)}]"
    assert code.spec_file == "benchmark/ppo/ppo_cartpole.json"  # ships with the package
    there = set(code.files.values())
    assert {"/slm-lab/code/pyproject.toml", "/slm-lab/code/slm_lab/runs"} <= there
    assert all(Path(here).exists() for here in code.files)
    assert not any("__pycache__" in path for path in there)
    task = as_dstack_reads(to_yaml(build_task(a_run(), code, {})))
    assert len(task.files) == 1 + len(code.files)


def test_a_checkout_with_a_remote_branch_is_cloned_with_its_changes(tmp_path, monkeypatch):
    monkeypatch.setattr("slm_lab.cloud._has_remote_branch", lambda root: True)
    code = pack(CARTPOLE, load_spec(CARTPOLE, "ppo_cartpole"))
    assert (code.repo, code.files) == (str(REPOSITORY), {})
    task = as_dstack_reads(to_yaml(build_task(a_run(), code, {})))
    assert task.repos[0].local_path == str(REPOSITORY)
    assert task.env["SLM_LAB_PACKAGE"] == f".[{','.join(EXTRAS)}]"


def test_a_remote_branch_is_one_that_git_tracks_on_a_server(tmp_path):
    from slm_lab.cloud import _has_remote_branch

    def git(folder: Path, *arguments: str) -> None:
        identity = ("-c", "user.name=me", "-c", "user.email=me@here", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)

    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    assert not _has_remote_branch(there)
    git(there, "init", "-b", "main")
    git(there, "commit", "--allow-empty", "-m", "first")
    assert not _has_remote_branch(there)
    git(tmp_path, "clone", "there", "here")
    assert not _has_remote_branch(here)  # a folder of this machine: nobody else can clone it
    for address in ("https://host.example/me/lab.git", "git@host.example:me/lab.git"):
        git(here, "remote", "set-url", "origin", address)
        assert _has_remote_branch(here)
    (here / "inside").mkdir()
    assert not _has_remote_branch(here / "inside")  # somebody else's repository around it
    git(here, "checkout", "--detach")
    assert not _has_remote_branch(here)


def test_a_spec_file_and_an_env_of_ones_own_travel_beside_the_code(tmp_path, monkeypatch):
    tree = load_spec(CARTPOLE, "ppo_cartpole").to_dict()
    tree["env"]["name"] = "my_envs.pole:Pole-v0"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").write_text(json.dumps({"mine": tree}))
    (tmp_path / "my_envs").mkdir()
    code = pack("mine.json", load_spec("mine.json", "mine"))
    assert code.spec_file == "/slm-lab/own/mine.json"
    assert code.files[str(tmp_path / "mine.json")] == "/slm-lab/own/mine.json"
    assert code.files[str(tmp_path / "my_envs")] == "/slm-lab/own/my_envs"


def test_an_env_of_playground_brings_its_extra():
    sets = ["env=playground/CartpoleBalance", "max_frame=1e5"]
    file = "benchmark_arc/ppo/ppo_playground.yaml"
    code = pack(file, load_spec(file, "ppo_playground", sets=sets))
    assert "playground]" in code.package


# The script, in a real shell, with stand-ins that write down how they were called


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Run start.sh as a remote machine would; returns the calls of `uv` and `slm-lab`."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name in ("uv", "slm-lab", "c++"):  # without a compiler it would install one
        stand_in = bin_ / name
        stand_in.write_text(
            f"#!{sys.executable}\nimport json, os, sys\n"
            f"with open({str(tmp_path / 'calls')!r}, 'a') as file:\n"
            f"    file.write(json.dumps([{name!r}, *sys.argv[1:]]) + '\\n')\n"
        )
        stand_in.chmod(0o755)

    def start(run: RemoteRun) -> list[list[str]]:
        task = build_task(run, CODE, {})
        interpolate = pytest.importorskip("dstack._internal.utils.interpolator")
        server = interpolate.VariablesInterpolator({"secrets": {"TOKEN": TOKEN}})
        env = as_dstack_reads(to_yaml(task)).env
        values = {
            name: server.interpolate_or_error(value)
            for name, value in env.items()
            if isinstance(value, str)
        }
        subprocess.run(
            ["bash", str(REPOSITORY / ".dstack" / "start.sh")],
            cwd=tmp_path,
            check=True,
            env=values | {"PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}"},
        )
        lines = (tmp_path / "calls").read_text().splitlines()
        (tmp_path / "calls").unlink()
        return [json.loads(line) for line in lines]

    return start


def test_the_machine_installs_pulls_and_runs(machine):
    install, pull, run = machine(a_run())
    assert install == [
        "uv", "pip", "install", "--quiet", "--torch-backend", "auto", "slm-lab[remote]==1",
    ]  # fmt: skip
    assert pull == ["slm-lab", "pull", "--if-exists", "ppo_cartpole_2026_01_31_235959"]
    assert run == [
        "slm-lab", "run", "benchmark/ppo/ppo_cartpole.json", "ppo_cartpole", "train",
        "--timestamp", "2026_01_31_235959", "--upload-hf",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "file"), [("train", "ppo_cartpole_t0_spec.json"), ("search", "ray_tune/journal.jsonl")]
)
def test_what_an_interrupted_machine_has_synced_goes_on(machine, tmp_path, mode, file):
    folder = "data/ppo_cartpole_2026_01_31_235959"
    path = tmp_path / folder / file
    path.parent.mkdir(parents=True)
    path.touch()
    run = machine(a_run(mode=mode, sets=["env.max_frame=1e5"]))[-1]
    assert run[4:] == [f"{mode}@{folder}", "-s", "env.max_frame=1e5", "--upload-hf"]


@pytest.mark.parametrize("mode", ["train", "search"])
def test_a_folder_with_nothing_to_go_on_with_stays_and_the_run_begins_anew(machine, tmp_path, mode):
    folder = tmp_path / "data" / "ppo_cartpole_2026_01_31_235959"
    (folder / "info").mkdir(parents=True)
    run = machine(a_run(mode=mode))[-1]
    assert run[4:] == [mode, "--timestamp", "2026_01_31_235959", "--upload-hf"]
    assert folder.exists()  # it belongs to the hub, which takes no other in its place


def test_hostile_values_reach_the_remote_command_as_they_were_typed(machine, tmp_path):
    run = machine(a_run(sets=HOSTILE))[-1]
    flags = [word for value in HOSTILE for word in ("-s", value)]
    assert run[5 : 5 + len(flags)] == flags
    assert not list(tmp_path.rglob("pwned"))
