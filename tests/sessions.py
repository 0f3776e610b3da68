"""Tiny specs, and an env that misbehaves on demand, for runs of a fraction of a second."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from slm_lab.analysis.tables import drop_clock, read_session
from slm_lab.env.vector import spawn_streams
from slm_lab.runs.layout import RunLayout
from slm_lab.spec import Spec, spec_from_dict
from slm_lab.spec.algorithm import ALGORITHMS as RECORDS
from slm_lab.training.checkpoint import read_checkpoint
from slm_lab.training.options import RunOptions
from slm_lab.training.seeding import session_seeds
from slm_lab.training.session import Session

CONSTANT = {"name": "no_decay", "start_val": 0.01}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "PPO": {
        "lam": 0.9,
        "clip_eps_spec": {"name": "no_decay", "start_val": 0.2},
        "entropy_coef_spec": CONSTANT,
        "time_horizon": 16,
        "minibatch_size": 16,
        "training_epoch": 1,
    },
    "ActorCritic": {
        "lam": 0.9,
        "num_step_returns": None,
        "training_frequency": 16,
        "entropy_coef_spec": CONSTANT,
    },
    "Reinforce": {"training_frequency": 16, "entropy_coef_spec": CONSTANT},
    "SARSA": {"training_frequency": 16, "explore_var_spec": CONSTANT},
    "DQN": {
        "training_frequency": 8,
        "training_iter": 1,
        "training_batch_iter": 1,
        "explore_var_spec": CONSTANT,
    },
    "SoftActorCritic": {"training_frequency": 8, "training_iter": 1, "training_start_step": 32},
    "CrossQ": {"training_frequency": 8, "training_iter": 1, "training_start_step": 32},
    "TD3": {"training_frequency": 8, "training_iter": 1, "training_start_step": 32},
    "TQC": {"training_frequency": 8, "training_iter": 1, "training_start_step": 32},
}
IMITATION = {
    "sil_policy_loss_coef": 0.1,
    "sil_val_loss_coef": 0.1,
    "training_iter": 1,
    "training_batch_iter": 1,
}
ALGORITHMS["SIL"] = ALGORITHMS["ActorCritic"] | IMITATION
ALGORITHMS["PPOSIL"] = ALGORITHMS["PPO"] | IMITATION
ALGORITHMS["Rainbow"] = ALGORITHMS["DQN"] | {"num_atoms": 5, "v_min": 0, "v_max": 20}
REPLAY = {"name": "Replay", "batch_size": 16, "max_size": 200}
MEMORIES = {
    "DQN": REPLAY,
    "SoftActorCritic": REPLAY,
    "CrossQ": REPLAY,
    "TD3": REPLAY,
    "TQC": REPLAY,
    "Rainbow": {**REPLAY, "name": "PrioritizedReplay"},
    "SIL": {**REPLAY, "name": "OnPolicyBatchReplay", "sil_replay_name": "Replay"},
}
MEMORIES["PPOSIL"] = MEMORIES["SIL"]
for keys in ALGORITHMS.values():
    keys["gamma"] = 0.9
ALGORITHMS["Random"] = {}

FAULTY_ENV = '''
import os
import signal

import gymnasium as gym
import numpy as np


class Faulty(gym.Env):
    """Reward 1 each step; after `after` steps it does what `fault` says, or what `victims` says
    for the seed that it was first reset with."""

    def __init__(self, fault="none", after=60, victims=None):
        self.observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.fault, self.after, self.victims = fault, after, victims or {}
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.fault = self.victims.get(str(seed), self.fault)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        reward = 1.0
        if self.steps > self.after:
            if self.fault == "raise":
                raise RuntimeError("the pole broke")
            if self.fault in ("SIGKILL", "SIGINT", "SIGTERM"):
                os.kill(os.getpid(), getattr(signal, self.fault))
                self.after = float("inf")
            if self.fault == "reward":
                reward = float("inf")
        return np.zeros(1, np.float32), reward, True, False, {}


gym.register("Faulty-v0", entry_point=Faulty)
'''

MakeSpec = Callable[..., Spec]
RunSession = Callable[..., RunLayout]


@pytest.fixture(scope="session")
def make_spec() -> MakeSpec:
    def make(algorithm: str = "PPO", **values: Any) -> Spec:
        """`values` are dotted keys with __ for the dot: env__max_frame=100."""
        tree = {
            "agent": {
                "name": "Tiny",
                "algorithm": {"name": algorithm, **ALGORITHMS[algorithm]},
                "memory": dict(MEMORIES.get(algorithm, {"name": "OnPolicyBatchReplay"})),
                "net": {
                    "type": "MLPNet",
                    "shared": False,
                    "hid_layers": [4],
                    "hid_layers_activation": "tanh",
                    "optim_spec": {"name": "Adam", "lr": 0.01},
                    **({"batch_norm": True} if algorithm == "CrossQ" else {}),
                },
            },
            "env": {"name": "probe/ActionMatters-v0", "num_envs": 2, "max_frame": 200},
            "meta": {
                "max_session": 1,
                "log_frequency": 50,
                "eval_frequency": 100,
                "compile": "off",
                "random_seed": 1,
            },
        }
        spec = spec_from_dict(tree, "tiny")
        return spec.with_values({key.replace("__", "."): value for key, value in values.items()})

    return make


@pytest.fixture(scope="session")
def faulty_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """To stand in, so that `faulty_env:Faulty-v0` is found, in this process and in others."""
    folder = tmp_path_factory.mktemp("faulty")
    (folder / "faulty_env.py").write_text(FAULTY_ENV)
    return folder


@pytest.fixture
def faulty(faulty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(faulty_folder)
    return "faulty_env:Faulty-v0"


@pytest.fixture(scope="session")
def env_seed() -> Callable[..., int]:
    """The seed that the first env of a session is reset with."""

    def seed_of(spec: Spec, session: int) -> int:
        assert spec.meta.random_seed is not None
        seeds = session_seeds(spec.meta.random_seed, 0, session)
        return spawn_streams(seeds.env, spec.env.num_envs)[0][0]

    return seed_of


@pytest.fixture
def run_session(tmp_path: Path) -> RunSession:
    """Train one session in this process, without analysis."""

    def run(
        spec: Spec,
        session: int = 0,
        *,
        stop_after: int | None = None,
        rounds: Iterable[int] = (),
        **options: Any,
    ) -> Any:
        """`rounds` are frames to pause at."""
        layout = RunLayout.create(spec.name, "now", tmp_path)
        asked = 0

        def should_stop() -> bool:
            nonlocal asked
            asked += 1
            return stop_after is not None and asked > stop_after

        run.layout = layout  # type: ignore[attr-defined]  # also for a session that raises
        unit = Session(
            spec,
            layout,
            0,
            session,
            RunOptions(**options),
            should_stop=should_stop,
        )
        for until in rounds:
            assert not unit.advance(until)
        run.completed = unit.run()  # type: ignore[attr-defined]
        return layout

    return run


@pytest.fixture
def train_folder(run_session: RunSession) -> Callable[..., Path]:
    """The folder of a run whose sessions were trained one after the other, spec included."""

    def train(spec: Spec, *, sessions: int = 1, **options: Any) -> Path:
        layout = run_session(spec, **options)
        layout.trial_spec_path(0).write_text(json.dumps(spec.to_dict() | {"name": spec.name}))
        for session in range(1, sessions):
            other = run_session(spec, session, **options)
            for path in [*(other.predir / "model").iterdir(), *(other.predir / "info").iterdir()]:
                path.rename(layout.predir / path.parent.name / path.name)
        return layout.predir

    return train


@pytest.fixture
def pendulum(make_spec: MakeSpec) -> Spec:
    """PPO where everything between obs and action is at work: statistics, bounds, a scaled box."""
    return make_spec(
        "PPO",
        env__name="Pendulum-v1",
        env__max_t=20,
        env__normalize_obs=True,
        env__normalize_reward=True,
    )


# Resuming: every algorithm, small, with schedules that depend on the frame

FRAMES = 320

DECAY = {"name": "linear_decay", "start_val": 0.3, "end_val": 0.01, "end_step": FRAMES}
TO_ZERO = {"name": "LinearToZero", "frame": FRAMES}
NET: dict[str, Any] = {
    "type": "MLPNet",
    "shared": False,
    "hid_layers": [8],
    "hid_layers_activation": "tanh",
    "optim_spec": {"name": "Adam", "lr": 0.01},
    "lr_scheduler_spec": TO_ZERO,
}
POLYAK = {"update_type": "polyak", "polyak_coef": 0.05}
COPIED = {"update_type": "replace", "update_frequency": 100}
ROLLOUT: dict[str, Any] = {"name": "OnPolicyBatchReplay"}
EPISODES: dict[str, Any] = {"name": "OnPolicyReplay"}
PAST = ROLLOUT | {"batch_size": 8, "max_size": 100}
SMALL_REPLAY: dict[str, Any] = {"name": "Replay", "batch_size": 8, "max_size": 150}  # wraps around
PRIORITIES = SMALL_REPLAY | {"name": "PrioritizedReplay", "alpha": 0.6, "epsilon": 1e-3}
PPO: dict[str, Any] = {
    "name": "PPO",
    "gamma": 0.99,
    "lam": 0.9,
    "clip_eps_spec": DECAY,
    "entropy_coef_spec": DECAY,
    "time_horizon": 12,
    "minibatch_size": 8,
    "training_epoch": 2,
}
A2C: dict[str, Any] = {
    "name": "ActorCritic",
    "gamma": 0.99,
    "lam": 0.9,
    "training_frequency": 10,
    "entropy_coef_spec": DECAY,
}
IMITATION = {"sil_policy_loss_coef": 0.5, "sil_val_loss_coef": 0.1, "training_iter": 2}
Q: dict[str, Any] = {
    "gamma": 0.99,
    "action_pdtype": "Argmax",
    "action_policy": "epsilon_greedy",
    "explore_var_spec": DECAY,
}
OFF_POLICY = {"training_frequency": 4, "training_start_step": 40, "training_iter": 2}
BATCH_NORM = {k: v for k, v in NET.items() if not k.startswith("hid_layers")} | {
    "type": "TorchArcNet",
    "arc": {
        "modules": {
            "body": {
                "Sequential": [
                    {"LazyLinear": {"out_features": 8}},
                    {"LazyBatchRenorm1d": {"momentum": 0.1, "warmup_steps": 20}},
                    {"ReLU": {}},
                ]
            }
        },
        "graph": {"input": "x", "modules": {"body": ["x"]}, "output": "body"},
    },
}

RECURRENT = {k: v for k, v in NET.items() if k != "hid_layers"} | {
    "type": "RecurrentNet",
    "cell_type": "GRU",
    "fc_hid_layers": [],
    "rnn_hidden_size": 6,
    "seq_len": 4,
}

# name -> algorithm, memory, net
EVERY_ALGORITHM: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "Random": ({"name": "Random"}, ROLLOUT, NET),
    "REINFORCE": (
        {"name": "Reinforce", "gamma": 0.99, "training_frequency": 3, "entropy_coef_spec": DECAY},
        EPISODES,
        NET,
    ),
    "SARSA": (Q | {"name": "SARSA", "training_frequency": 10}, ROLLOUT, NET),
    "A2C": (A2C | {"normalize_v_targets": True}, ROLLOUT, NET),
    "PPO": (PPO, ROLLOUT, NET),
    "SIL": (A2C | IMITATION | {"name": "SIL"}, PAST | {"sil_replay_name": "Replay"}, NET),
    "PPO-SIL": (
        PPO | IMITATION | {"name": "PPOSIL"},
        PAST | {"sil_replay_name": "PrioritizedReplay", "alpha": 0.6, "epsilon": 1e-3},
        NET,
    ),
    "DQN": (
        Q | OFF_POLICY | {"name": "DQN", "training_batch_iter": 1},
        SMALL_REPLAY | {"use_cer": True},
        NET | COPIED,
    ),
    "DDQN+PER": (
        Q | OFF_POLICY | {"name": "DoubleDQN", "training_batch_iter": 1, "n_step": 3},
        PRIORITIES,
        NET | POLYAK,
    ),
    "SAC": (
        OFF_POLICY | {"name": "SoftActorCritic", "gamma": 0.99, "policy_delay": 2},
        SMALL_REPLAY,
        NET | POLYAK,
    ),
    "CrossQ": (OFF_POLICY | {"name": "CrossQ", "gamma": 0.99}, SMALL_REPLAY, BATCH_NORM),
    "TD3": (OFF_POLICY | {"name": "TD3", "gamma": 0.99}, PRIORITIES, NET | POLYAK),
    "TQC": (
        OFF_POLICY | {"name": "TQC", "gamma": 0.99, "num_critics": 3},
        SMALL_REPLAY,
        NET | POLYAK,
    ),
    "recurrent PPO": (PPO, ROLLOUT, RECURRENT),
    "recurrent DDQN+PER": (
        Q | OFF_POLICY | {"name": "DoubleDQN", "training_batch_iter": 1},
        PRIORITIES,
        RECURRENT | POLYAK,
    ),
}


def small_spec(algorithm: str, env: str = "", **values: Any) -> Spec:
    """small_spec("DDQN+PER", "CartPole-v1", meta__log_frequency=10)"""
    learner, memory, net = copy.deepcopy(EVERY_ALGORITHM[algorithm])
    is_discrete = "discrete" in RECORDS[learner["name"]].actions
    env = env or ("CartPole-v1" if is_discrete else "Pendulum-v1")
    tree = {
        "agent": {"name": "Tiny", "algorithm": learner, "memory": memory, "net": net},
        "env": {"name": env, "num_envs": 2, "max_frame": FRAMES, "max_t": 60},
        "meta": {"log_frequency": 50, "compile": "off", "random_seed": 4},
    }
    spec = spec_from_dict(tree, "tiny")
    return spec.with_values({key.replace("__", "."): value for key, value in values.items()})


@pytest.fixture(scope="session")
def every_spec() -> MakeSpec:
    return small_spec


def final_state(layout: RunLayout) -> dict[str, Any]:
    """Everything that the agent is at the end, and at its best."""
    manifest, state = read_checkpoint(layout.checkpoint_dir(0, 0) / "last", max_bytes=10**9)
    assert manifest.finished
    # Loop and recorder know the clock; the tables are compared by themselves.
    return {"counters": dict(manifest.counters), "agent": state["agent"], "best": state["best"]}


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    if isinstance(tree, Mapping):
        return {k: v for key in tree for k, v in leaves(tree[key], f"{path}/{key}").items()}
    if isinstance(tree, list):
        return {k: v for i, x in enumerate(tree) for k, v in leaves(x, f"{path}/{i}").items()}
    return {path: tree}


def assert_same_run(ours: RunLayout, theirs: RunLayout) -> None:
    mine, other = leaves(final_state(ours)), leaves(final_state(theirs))
    assert mine.keys() == other.keys()
    for path, value in mine.items():
        same = (
            torch.equal(value, other[path]) if isinstance(value, Tensor) else value == other[path]
        )
        assert same, path
    tables = [read_session(layout.session_csv(0, 0, "train")) for layout in (ours, theirs)]
    texts = [drop_clock(table).to_csv() for table in tables]
    assert texts[0] == texts[1]
    assert len(tables[0])
    models = [sorted((layout.predir / "model").iterdir()) for layout in (ours, theirs)]
    assert [path.name for path in models[0]] == [path.name for path in models[1]]
    for mine_path, other_path in zip(*models, strict=True):
        one, two = (torch.load(path, weights_only=True) for path in (mine_path, other_path))
        assert leaves(one).keys() == leaves(two).keys()
        assert all(torch.equal(one[key], two[key]) for key in one), mine_path.name


@pytest.fixture(scope="session")
def same_run() -> Callable[[RunLayout, RunLayout], None]:
    """Assert that two finished sessions agree in weights, streams, curves and models."""
    return assert_same_run
