"""Small specs to change one thing of, and a way to write them to a file."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PPO_SPEC: dict[str, Any] = {
    "agent": {
        "name": "PPO",
        "algorithm": {
            "name": "PPO",
            "gamma": 0.99,
            "lam": 0.95,
            "clip_eps_spec": {"name": "no_decay", "start_val": 0.2},
            "time_horizon": 32,
            "minibatch_size": 64,
            "training_epoch": 4,
        },
        "memory": {"name": "OnPolicyBatchReplay"},
        "net": {"type": "MLPNet", "hid_layers": [64, 64], "hid_layers_activation": "tanh"},
    },
    "env": {"name": "CartPole-v1", "num_envs": 4, "max_frame": 20000},
    "meta": {"max_session": 1, "log_frequency": 500},
}

DQN_SPEC: dict[str, Any] = {
    "agent": {
        "name": "DQN",
        "algorithm": {
            "name": "DQN",
            "action_pdtype": "Argmax",
            "action_policy": "epsilon_greedy",
            "explore_var_spec": {
                "name": "linear_decay",
                "start_val": 1.0,
                "end_val": 0.05,
                "end_step": 1000,
            },
            "gamma": 0.99,
            "training_frequency": 4,
            "training_iter": 1,
            "training_batch_iter": 1,
        },
        "memory": {"name": "Replay", "batch_size": 32, "max_size": 10000},
        "net": {"type": "MLPNet", "hid_layers": [64], "hid_layers_activation": "relu"},
    },
    "env": {"name": "CartPole-v1", "max_frame": 20000},
    "meta": {"max_session": 1, "log_frequency": 500},
}


@pytest.fixture
def ppo() -> dict[str, Any]:
    return copy.deepcopy(PPO_SPEC)


@pytest.fixture
def dqn() -> dict[str, Any]:
    return copy.deepcopy(DQN_SPEC)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """write("a.json", data or text) -> the file's path."""

    def write_file(name: str, content: Any) -> Path:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write_file
