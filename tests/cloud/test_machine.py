"""The way of an interrupted run: two machines, one after the other, and a hub between them.

`start.sh` runs in a real shell with the real `slm-lab`; only the installation is left out. The hub
is a folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from slm_lab.analysis.tables import drop_clock, read_session
from slm_lab.cloud import Code, RemoteRun, build_task

REPOSITORY = Path(__file__).parents[2]
FOLDER = "tiny_2026_01_31_235959"
SECONDS = 300  # for a machine to come as far as it must; seconds, where nothing else runs
SPEC = """
tiny:
  agent:
    name: Tiny
    algorithm:
      name: PPO
      gamma: 0.9
      lam: 0.9
      clip_eps_spec: {name: no_decay, start_val: 0.2}
      entropy_coef_spec: {name: no_decay, start_val: 0.01}
      time_horizon: 16
      minibatch_size: 16
      training_epoch: 1
    memory: {name: OnPolicyBatchReplay}
    net:
      type: MLPNet
      shared: false
      hid_layers: [4]
      hid_layers_activation: tanh
      optim_spec: {name: Adam, lr: 0.01}
  env: {name: "patient_env:Patient-v0", num_envs: 2, max_frame: "${max_frame}", until: "${until}"}
  meta: {max_session: 1, log_frequency: 500, checkpoint_frequency: 200, compile: "off"}
"""
PATIENT_ENV = """
import os, time
import gymnasium as gym
import numpy as np


class Patient(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, until, **_):
        self.until, self.steps = until, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return self.np_random.random(2, dtype=np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps > 300 and not os.path.exists(self.until):
            time.sleep(0.02)  # slow, until a file exists
        self.left -= 1
        obs = self.np_random.random(2, dtype=np.float32)
        return obs, float(action), self.left == 0, False, {}


gym.register("Patient-v0", entry_point=Patient)
"""


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """What dstack hands to a machine, and a PATH on which nothing needs to be installed."""
    (tmp_path / "bin").mkdir()
    commands = {
        "uv": "exit 0",
        "c++": "exit 1",
        "slm-lab": f'exec {sys.executable} -m slm_lab.cli.main "$@"',
    }
    for name, line in commands.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "spec.yaml").write_text(SPEC)
    for name in ("hub", "another_hub"):
        (tmp_path / name).mkdir()
    sets = ("max_frame=4000", f"until={tmp_path}/go go", "meta.random_seed=3")  # with a space
    run = RemoteRun("tiny", "tiny", "tiny", "train", "2026_01_31_235959", sets)
    task = build_task(run, Code("nothing", str(tmp_path / "spec.yaml")), {})
    described = dict(entry.split("=", 1) for entry in task["env"] if "=" in entry)
    return {
        **os.environ,
        **{name: value.replace("$$", "$") for name, value in described.items()},
        "PATH": f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "HF_REPO": f"file:{tmp_path}/hub",
    }


def start_machine(folder: Path, variables: dict[str, str]) -> subprocess.Popen[str]:
    folder.mkdir()
    (folder / "patient_env.py").write_text(PATIENT_ENV)
    return subprocess.Popen(
        ["bash", str(REPOSITORY / ".dstack" / "start.sh")],
        cwd=folder,
        env=variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def curve(folder: Path) -> str:
    path = folder / "data" / FOLDER / "info" / "tiny_t0_s0_session_df_train.csv"
    text: str = drop_clock(read_session(path)).to_csv()
    return text


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_a_run_whose_machine_is_taken_away_goes_on_on_the_next(variables, tmp_path, how):
    first = start_machine(tmp_path / "first", variables)
    deadline = time.monotonic() + SECONDS
    on_hub = tmp_path / "hub" / "data" / FOLDER / "checkpoint" / "tiny_t0_s0" / "last"
    while not (on_hub / "manifest.json").exists():
        if first.poll() is not None or time.monotonic() > deadline:
            first.kill()
            pytest.fail(f"nothing has arrived:\n{first.communicate()[0]}")
        time.sleep(0.05)
    os.killpg(first.pid, signal.Signals[how])
    output, _ = first.communicate(timeout=SECONDS)
    assert first.returncode != 0
    if how == "SIGTERM":  # dstack's way to say that time is up
        assert "Stopped early by SIGTERM" in output

    (tmp_path / "go go").touch()
    second = start_machine(tmp_path / "second", variables)
    output, _ = second.communicate(timeout=SECONDS)
    assert second.returncode == 0, output
    assert "Resuming trial 0 of tiny" in output
    assert "trial_metrics: frame:4.00e+03" in output
    log = (tmp_path / "second" / "data" / FOLDER / "log" / "tiny_t0_s0.log").read_text()
    assert "goes on from frame" in log

    # As if nothing had happened, on the hub as well.
    elsewhere = variables | {"HF_REPO": f"file:{tmp_path}/another_hub"}
    whole = start_machine(tmp_path / "whole", elsewhere)
    output, _ = whole.communicate(timeout=SECONDS)
    assert whole.returncode == 0, output
    assert curve(tmp_path / "second") == curve(tmp_path / "whole")
    shared: Any = tmp_path / "hub" / "data" / FOLDER / "tiny_t0_trial_metrics_scalar.json"
    assert yaml.safe_load(shared.read_text())
