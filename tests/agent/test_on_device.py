"""Observations that come as tensors on a device: what an agent makes of them, and where.

Only MuJoCo Playground on JAX gives them so. Here the same is asked of plain envs, whose rows are
turned into tensors: learned from either, the numbers must be the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab.agent import agent as agents
from slm_lab.agent.agent import Agent
from slm_lab.agent.algorithm import a2c, ppo
from slm_lab.agent.learning.learner import Learner
from slm_lab.agent.memory.rollout import RolloutMemory
from slm_lab.env.make import make_env
from slm_lab.spec import Spec
from slm_lab.types import Rows, Spaces, Transition, on_host

META = torch.device("meta")
PENDULUM: dict[str, Any] = {"env.name": "Pendulum-v1", "env.max_t": 11}
SEEN_THROUGH_A_LENS = PENDULUM | {
    "env.normalize_obs": True,
    "env.clip_obs": 5.0,
    "env.normalize_reward": True,
}
RECURRENT: dict[str, Any] = {
    "agent.net": {
        "type": "RecurrentNet",
        "cell_type": "GRU",
        "rnn_hidden_size": 6,
        "fc_hid_layers": [],
        "hid_layers_activation": "tanh",
        "seq_len": 4,
        "optim_spec": {"name": "Adam", "lr": 0.01},
    }
}
RESIDENT: list[tuple[str, dict[str, Any]]] = [
    ("Random", PENDULUM),
    ("PPO", PENDULUM),
    ("PPO", SEEN_THROUGH_A_LENS),
    ("PPO", {"env.name": "CartPole-v1"}),
    ("PPO", PENDULUM | {"env.clip_obs": 0.5}),
    ("ActorCritic", SEEN_THROUGH_A_LENS),
    ("SARSA", {"env.name": "CartPole-v1"}),
]
ON_THE_HOST: list[tuple[str, dict[str, Any]]] = [
    ("PPO", SEEN_THROUGH_A_LENS | RECURRENT),
    ("Reinforce", SEEN_THROUGH_A_LENS | {"agent.memory.name": "OnPolicyReplay"}),
    ("SIL", SEEN_THROUGH_A_LENS),
    ("PPOSIL", PENDULUM),
    ("DQN", {"env.name": "CartPole-v1", "env.normalize_obs": True}),
    ("SoftActorCritic", SEEN_THROUGH_A_LENS),
    ("CrossQ", PENDULUM),
]


def as_tensor(rows: Rows) -> Tensor:
    return torch.tensor(on_host(rows))


def live(spec: Spec, frames: int, show: Callable[[Rows], Rows], *, on_device: bool) -> Agent:
    """An agent after that many frames of what `show` makes of the env's rows."""
    env = make_env(spec.env, seed=0)
    agent = agents.make_agent(spec, replace(env.spaces, on_device=on_device), seed=0)
    obs = show(env.reset())
    for frame in range(0, frames, env.num_envs):
        action = agent.act(obs, frame=frame)
        executed = agent.env_action(action)
        assert isinstance(action, Tensor) == isinstance(executed, Tensor) == on_device
        step = env.step(executed)
        shown = show(step.obs)
        final = shown if step.next_obs is step.obs else show(step.next_obs)
        agent.observe(obs, action, replace(step, obs=shown, next_obs=final))
        obs = shown
        if agent.ready:
            agent.update(frame)
    return agent


def numbers(agent: Agent) -> dict[str, Tensor]:
    statistics = agent.statistics().items()
    return dict(agent.algorithm.learner.state) | {
        f"{owner}.{name}": value for owner, state in statistics for name, value in state.items()
    }


@pytest.mark.parametrize(("algorithm", "values"), RESIDENT + ON_THE_HOST)
def test_the_same_is_learned_from_tensors_as_from_arrays(algorithm, values, make_spec):
    spec = make_spec(algorithm, values)
    handed_out: list[tuple[Tensor, Tensor]] = []

    def show(rows: Rows) -> Tensor:
        handed_out.append((as_tensor(rows), as_tensor(rows)))
        return handed_out[-1][0]

    ours = live(spec, 400, show, on_device=True)
    theirs = live(spec, 400, lambda rows: rows, on_device=False)
    found, expected = numbers(ours), numbers(theirs)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    # Nobody writes into what may be JAX's memory, through torch or through NumPy.
    assert all(shown._version == 0 and torch.equal(shown, copy) for shown, copy in handed_out)


@pytest.mark.parametrize("came_from", [META, torch.device("cpu")])
@pytest.mark.parametrize(("algorithm", "values"), RESIDENT)
def test_a_rollout_of_tensors_never_leaves_the_device(
    algorithm, values, came_from, make_spec, monkeypatch
):
    """`meta` has no values to bring to the host: whoever tried would fail.

    Envs may run on another device, as where sessions are spread over several cards.
    """
    monkeypatch.setattr(agents, "resolve_device", lambda *_: META)
    # What an update reads for its metrics, once.
    monkeypatch.setattr(Learner, "mean_metrics", lambda self: {})
    for module in (a2c, ppo):
        monkeypatch.setattr(module, "explained_variance", lambda *_: torch.zeros(()))
    spec = make_spec(algorithm, values)
    env = make_env(spec.env, seed=0)
    agent = agents.make_agent(spec, replace(env.spaces, on_device=True), seed=0)
    obs: Rows = as_tensor(env.reset()).to(came_from)
    frame = 0
    while not agent.ready:
        action = agent.env_action(agent.act(obs, frame=frame))
        assert isinstance(action, Tensor)
        assert action.device == META or algorithm == "Random"
        step = env.step(env.sample_action())
        shown, final = (as_tensor(rows).to(came_from) for rows in (step.obs, step.next_obs))
        seen = replace(step, obs=shown, next_obs=final)
        agent.observe(obs, action, seen)
        obs, frame = seen.obs, frame + env.num_envs
    agent.update(frame)
    for name, value in agent.statistics().get("obs_normalizer", {}).items():
        assert value.device == META, name


@pytest.mark.parametrize(("algorithm", "values"), ON_THE_HOST)
def test_experience_on_the_host_is_moved_there_by_the_agent(
    algorithm, values, make_spec, monkeypatch
):
    spec = make_spec(algorithm, values)
    env = make_env(spec.env, seed=0)
    agent = agents.make_agent(spec, replace(env.spaces, on_device=True), seed=0)
    kept: list[Any] = []
    monkeypatch.setattr(agent.experience, "add", lambda *row: kept.append(row))
    obs = as_tensor(env.reset())
    action = agent.act(obs)
    step = env.step(agent.env_action(action))
    shown = as_tensor(step.obs)
    agent.observe(obs, action, replace(step, obs=shown, next_obs=shown))
    agent.observe(obs, action, replace(step, obs=shown, next_obs=shown + 1))
    for row, stored_action, stored, _ in kept:
        for rows in (row, stored_action, stored.obs, stored.next_obs):
            assert isinstance(rows, np.ndarray)
    last = kept[1][2]
    assert not np.array_equal(last.obs, last.next_obs)


@pytest.mark.parametrize(("algorithm", "values"), RESIDENT[1:3] + ON_THE_HOST[-2:])
def test_an_agent_of_tensors_also_answers_arrays(algorithm, values, make_spec):
    """As when it is exported, or shown to somebody."""
    spec = make_spec(algorithm, values)
    agent = live(spec, 100, as_tensor, on_device=True)
    obs = np.ones((4, 3), np.float32)
    greedy = agent.act(obs, explore=False)
    assert isinstance(greedy, np.ndarray)
    assert np.array_equal(greedy, agent.act(torch.from_numpy(obs), explore=False))


def test_an_agent_that_does_not_learn_answers_tensors(make_spec):
    spec = make_spec("PPO", SEEN_THROUGH_A_LENS)
    spaces = replace(make_env(spec.env, seed=0).spaces, on_device=True)
    agent = agents.make_agent(spec, spaces, seed=0, learns=False)
    assert isinstance(agent.act(torch.ones(4, 3), explore=False), Tensor)


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_a_rollout_on_a_device_keeps_what_one_on_the_host_does(device):
    """Filled, saved in the middle and cut; the last steps are truncated in turn."""
    show = (lambda rows: rows) if device is None else torch.from_numpy
    spaces = Spaces((1,), "float32", "continuous", (1,))
    memory, restored = (RolloutMemory(4, 2, spaces, device) for _ in "ab")
    for t in range(3):
        obs = np.array([[t], [10 + t]], np.float32)
        ended = np.array([t == 1, False])
        final, none = np.array([[91.0], [11 + t]], np.float32), np.zeros(2, bool)
        step = Transition(show(obs + 1), show(final), np.ones(2, np.float32), none, ended, ended)
        memory.add(show(obs), show(-obs), step)
    restored.load_state_dict(memory.state_dict())
    restored.truncate_episodes(np.array([[70.0], [71.0]], np.float32))
    last = np.array([[5.0], [6.0]], np.float32)
    step = Transition(show(last + 1), show(last + 1), np.zeros(2, np.float32), none, none, none)
    restored.add(show(last), show(-last), step)
    rollout = restored.take()
    assert rollout.obs[..., 0].tolist() == [[0, 10], [1, 11], [2, 12], [5, 6], [6, 7]]
    assert rollout.action[..., 0].tolist() == [[0, -10], [-1, -11], [-2, -12], [-5, -6]]
    assert rollout.truncated.tolist() == [[False] * 2, [True, False], [True] * 2, [False] * 2]
    assert rollout.final_index.tolist() == [2, 4, 5]
    assert rollout.final_obs[:, 0].tolist() == [91, 70, 71]
