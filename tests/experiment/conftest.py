"""Tiny specs, and an env that misbehaves on demand, for runs of a fraction of a second."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from slm_lab.env.vector import spawn_streams
from slm_lab.experiment.layout import RunLayout
from slm_lab.experiment.options import RunOptions
from slm_lab.experiment.seeding import session_seeds
from slm_lab.experiment.session import Session
from slm_lab.spec import Spec, spec_from_dict

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
}
IMITATION = {
    "sil_policy_loss_coef": 0.1,
    "sil_val_loss_coef": 0.1,
    "training_iter": 1,
    "training_batch_iter": 1,
}
ALGORITHMS["SIL"] = ALGORITHMS["ActorCritic"] | IMITATION
ALGORITHMS["PPOSIL"] = ALGORITHMS["PPO"] | IMITATION
REPLAY = {"name": "Replay", "batch_size": 16, "max_size": 200}
MEMORIES = {
    "DQN": REPLAY,
    "SoftActorCritic": REPLAY,
    "CrossQ": REPLAY,
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
            report=lambda _: None,
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
