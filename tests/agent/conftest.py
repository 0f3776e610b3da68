"""Small specs of every algorithm, hand-made rollouts and batches, and training on a probe env."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from slm_lab.agent.agent import Agent, make_agent
from slm_lab.env.make import make_env
from slm_lab.env.probe import PROBES, Probe, register_probes
from slm_lab.env.vector import VectorEnv
from slm_lab.spec import Spec, SpecWarning, spec_from_dict
from slm_lab.spec.algorithm import ALGORITHMS
from slm_lab.training.loop import Loop
from slm_lab.types import ReplayBatch, Rollout, Transition

MakeSpec = Callable[..., Spec]

_COMMON: dict[str, Any] = {
    "agent": {
        "name": "agent",
        "net": {
            "type": "MLPNet",
            "hid_layers": [16],
            "hid_layers_activation": "tanh",
            "optim_spec": {"name": "Adam", "lr": 0.01},
        },
    },
    "env": {"name": "probe/ConstantReward-v0", "num_envs": 4, "max_frame": 100_000},
    "meta": {"compile": "off"},
}
_ALGORITHMS: dict[str, dict[str, Any]] = {
    "PPO": {
        "name": "PPO",
        "gamma": 0.9,
        "lam": 0.95,
        "clip_eps_spec": {"name": "no_decay", "start_val": 0.2},
        "time_horizon": 16,
        "minibatch_size": 32,
        "training_epoch": 4,
    },
    "ActorCritic": {"name": "ActorCritic", "gamma": 0.9, "lam": 0.95, "training_frequency": 8},
    "Reinforce": {"name": "Reinforce", "gamma": 0.9, "training_frequency": 16},
    "Random": {"name": "Random"},
}
_SELF_IMITATION = {"sil_policy_loss_coef": 0.5, "sil_val_loss_coef": 0.1, "training_iter": 2}
_ALGORITHMS["SIL"] = _ALGORITHMS["ActorCritic"] | _SELF_IMITATION | {"name": "SIL"}
_ALGORITHMS["PPOSIL"] = _ALGORITHMS["PPO"] | _SELF_IMITATION | {"name": "PPOSIL"}
_VALUE_BASED: dict[str, Any] = {
    "action_pdtype": "Argmax",
    "action_policy": "epsilon_greedy",
    "explore_var_spec": {"name": "no_decay", "start_val": 0.3},
    "gamma": 0.9,
}
_ALGORITHMS["SARSA"] = _VALUE_BASED | {"name": "SARSA", "training_frequency": 8}
_OFF_POLICY = {"training_frequency": 4, "training_start_step": 32, "training_iter": 2}
for _name in ("VanillaDQN", "DQN", "DoubleDQN", "QRDQN", "C51", "Rainbow"):
    _ALGORITHMS[_name] = _VALUE_BASED | _OFF_POLICY | {"name": _name, "training_batch_iter": 1}
_ALGORITHMS["QRDQN"] |= {"num_quantiles": 8}
for _name in ("C51", "Rainbow"):
    _ALGORITHMS[_name] |= {"num_atoms": 25, "v_min": -2, "v_max": 10}
for _name in ("SoftActorCritic", "CrossQ", "TQC"):
    _ALGORITHMS[_name] = _OFF_POLICY | {"name": _name, "gamma": 0.9, "init_alpha": 0.1}
for _name in ("DDPG", "TD3"):
    _ALGORITHMS[_name] = _OFF_POLICY | {"name": _name, "gamma": 0.9}
_ROLLOUT = {"name": "OnPolicyBatchReplay"}
_REPLAY: dict[str, Any] = {"name": "Replay", "batch_size": 32, "max_size": 10_000}
_PAST: dict[str, Any] = _ROLLOUT | {"batch_size": 16, "max_size": 1000}
_MEMORIES: dict[str, dict[str, Any]] = {
    name: _REPLAY for name in _ALGORITHMS if ALGORITHMS[name].memories == {"replay"}
}
_MEMORIES |= {"SIL": _PAST, "PPOSIL": _PAST}
_POLYAK = {"update_type": "polyak", "polyak_coef": 0.05}


@pytest.fixture(scope="module", autouse=True)
def _probes() -> Iterator[None]:
    """The probes, and as `steered/<Name>-v0` those of two actions with one number, whose sign
    chooses. These are unknown again afterwards: what a process has registered itself is carried to
    the sessions that it starts."""
    register_probes()
    discrete = [p for p in PROBES if isinstance(p().action_space, gym.spaces.Discrete)]
    steered = {f"steered/{probe.__name__}-v0": partial(_steered, probe) for probe in discrete}
    for name, make in steered.items():
        gym.register(name, entry_point=make)
    yield
    for name in steered:
        del gym.registry[name]


def _steered(probe: type[Probe], **keys: Any) -> gym.Env[Any, Any]:
    box = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    return gym.wrappers.TransformAction(probe(**keys), lambda action: int(action[0] > 0), box)


@pytest.fixture(scope="session")
def make_spec() -> MakeSpec:
    """make_spec("PPO", {"agent.net.shared": True}) -> a small spec with values at dotted paths."""

    def build(algorithm: str = "PPO", values: Mapping[str, Any] | None = None) -> Spec:
        tree = copy.deepcopy(_COMMON)
        tree["agent"]["algorithm"] = copy.deepcopy(_ALGORITHMS[algorithm])
        tree["agent"]["memory"] = dict(_MEMORIES.get(algorithm, _ROLLOUT))
        tree["agent"]["net"] |= _POLYAK if ALGORITHMS[algorithm].target_net else {}
        with warnings.catch_warnings():  # the small CrossQ has no batch norm unless a test wants it
            warnings.simplefilter("ignore", SpecWarning)
            return spec_from_dict(tree, algorithm).with_values(values or {})

    return build


@pytest.fixture(scope="session")
def make_rollout() -> Callable[..., Rollout]:
    """make_rollout(obs, action, reward, ...): [T][B] lists -> tensors, one number per obs.

    `final_obs` maps (t, b) of truncated steps to the observation they ended on.
    """

    def build(
        obs: Sequence[Any],
        action: Sequence[Any],
        reward: Sequence[Any],
        terminated: Sequence[Any] | None = None,
        truncated: Sequence[Any] | None = None,
        final_obs: Mapping[tuple[int, int], float] | None = None,
    ) -> Rollout:
        rewards = torch.tensor(reward, dtype=torch.float32)
        none = torch.zeros_like(rewards, dtype=torch.bool)
        finals = final_obs or {}
        return Rollout(
            obs=torch.tensor(obs, dtype=torch.float32).unsqueeze(-1),
            action=torch.tensor(action),
            reward=rewards,
            terminated=none if terminated is None else torch.tensor(terminated, dtype=torch.bool),
            truncated=none if truncated is None else torch.tensor(truncated, dtype=torch.bool),
            final_index=torch.tensor(
                [t * rewards.shape[1] + b for t, b in finals], dtype=torch.int64
            ),
            final_obs=torch.tensor(list(finals.values())).reshape(-1, 1),
        )

    return build


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., ReplayBatch]:
    """make_batch(obs, action, reward, next_obs, discount, weight): lists per row -> tensors."""

    def build(
        obs: Sequence[Any],
        action: Sequence[Any],
        reward: Sequence[float],
        next_obs: Sequence[Any],
        discount: Sequence[float],
        weight: Sequence[float] | None = None,
    ) -> ReplayBatch:
        return ReplayBatch(
            obs=torch.tensor(obs, dtype=torch.float32),
            action=torch.tensor(action),
            reward=torch.tensor(reward, dtype=torch.float32),
            next_obs=torch.tensor(next_obs, dtype=torch.float32),
            discount=torch.tensor(discount, dtype=torch.float32),
            weight=torch.tensor(weight or [1.0] * len(reward)),
            index=torch.arange(len(reward)),
        )

    return build


@pytest.fixture(scope="session")
def transition() -> Callable[..., Transition]:
    """transition(obs, next_obs, reward, terminated, truncated): lists per env -> arrays."""

    def build(
        obs: Sequence[Any],
        next_obs: Sequence[Any],
        reward: Sequence[float],
        terminated: Sequence[bool] | None = None,
        truncated: Sequence[bool] | None = None,
    ) -> Transition:
        none = [False] * len(reward)
        ends = np.array(terminated or none), np.array(truncated or none)
        return Transition(
            np.array(obs, np.float32),
            np.array(next_obs, np.float32),
            np.array(reward, np.float32),
            *ends,
            episode_end=ends[0] | ends[1],
        )

    return build


@pytest.fixture(scope="session")
def start() -> Callable[..., Loop]:
    """start(spec, seed=0) -> a loop of a fresh agent and env."""

    def build(spec: Spec, *, seed: int = 0) -> Loop:
        env: VectorEnv = make_env(spec.env, seed=seed)
        agent: Agent = make_agent(spec, env.spaces, seed=seed)
        return Loop(agent, env, spec.env.max_frame)

    return build


@pytest.fixture(scope="session")
def train(start: Callable[..., Loop]) -> Callable[..., Loop]:
    """train(spec, frames) -> the loop after that many frames."""

    def run(spec: Spec, frames: int, *, seed: int = 0) -> Loop:
        loop = start(spec, seed=seed)
        loop.max_frame = frames
        loop.run(lambda: None, frames, lambda: False)
        return loop

    return run


@pytest.fixture(scope="session")
def value_of(make_rollout: Callable[..., Rollout]) -> Callable[..., list[float]]:
    """value_of(agent, [obs, ...]) -> V of each observation, in units of reward."""

    def evaluate(agent: Agent, obs: Sequence[float]) -> list[float]:
        algorithm: Any = agent.algorithm
        none = [[0] * len(obs)]
        rollout = make_rollout([list(obs), list(obs)], none, none)
        value, _ = algorithm.critic.values(algorithm.learner.state, rollout)
        values: list[float] = value[0].tolist()
        return values

    return evaluate
