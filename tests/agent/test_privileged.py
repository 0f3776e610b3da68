"""Asymmetric actor-critic: the critic reads columns that the policy never sees."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from slm_lab.agent.agent import Agent, make_agent
from slm_lab.agent.algorithm.a2c import ActorCritic
from slm_lab.agent.algorithm.ppo import PPO
from slm_lab.spec import Spec
from slm_lab.types import Spaces, Transition

MakeSpec = Callable[..., Spec]

# Two columns for the policy, three for the critic.
SPACES = Spaces((5,), "float32", "multi_continuous", (2,), privileged=3)


def agent_of(spec: Spec, spaces: Spaces = SPACES) -> tuple[Agent, PPO | ActorCritic]:
    agent = make_agent(spec, spaces, seed=0)
    assert isinstance(agent.algorithm, PPO | ActorCritic)
    return agent, agent.algorithm


def test_spaces_say_who_reads_how_much():
    assert (SPACES.policy_obs_shape, SPACES.critic_obs_shape) == ((2,), (3,))
    plain = Spaces((5,), "float32", "discrete", (2,))
    assert (plain.policy_obs_shape, plain.critic_obs_shape) == ((5,), (5,))
    image = Spaces((4, 84, 84), "uint8", "discrete", (2,))
    assert (image.policy_obs_shape, image.critic_obs_shape) == ((4, 84, 84), (4, 84, 84))


@pytest.mark.parametrize("name", ["PPO", "ActorCritic"])
def test_the_policy_depends_on_its_columns_alone_and_the_value_on_the_others(
    make_spec: MakeSpec, name: str
):
    _, algorithm = agent_of(make_spec(name))
    state = algorithm.learner.state
    row = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]])
    other_secret = torch.tensor([[1.0, 2.0, -3.0, 0.0, 9.0]])
    other_state = torch.tensor([[-1.0, 7.0, 3.0, 4.0, 5.0]])

    def mode(obs: torch.Tensor) -> torch.Tensor:
        return algorithm.nets.policy(state, obs).mode()

    def value(obs: torch.Tensor) -> torch.Tensor:
        return algorithm.nets.value(state, obs)

    assert torch.equal(mode(row), mode(other_secret))
    assert not torch.equal(mode(row), mode(other_state))
    assert torch.equal(value(row), value(other_state))
    assert not torch.equal(value(row), value(other_secret))


@pytest.mark.parametrize("explore", [True, False])
def test_acting_never_sees_the_secret(make_spec: MakeSpec, explore: bool):
    row = np.array([[1, 2, 3, 4, 5]] * 4, np.float32)
    secret_changed = row * np.array([1, 1, -1, 0, 9], np.float32)
    first, _ = agent_of(make_spec("PPO"))
    second, _ = agent_of(make_spec("PPO"))
    assert np.array_equal(
        first.act(row, explore=explore), second.act(secret_changed, explore=explore)
    )


def test_a_value_that_only_the_secret_tells_is_learned(make_spec: MakeSpec):
    """The reward of every step is the first secret column: gamma 0 makes that its value."""
    spec = make_spec("PPO", {"agent.algorithm.gamma": 0.0, "agent.algorithm.lam": 0.0})
    agent, ppo = agent_of(spec)
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((4, 5)).astype(np.float32)
    flags = [np.zeros(4, bool)] * 3
    for _ in range(16 * 60):
        action = agent.act(obs)
        next_obs = rng.standard_normal((4, 5)).astype(np.float32)
        agent.observe(obs, action, Transition(next_obs, next_obs, obs[:, 2].copy(), *flags))
        obs = next_obs
        if agent.ready:
            agent.update(0)
    rows = torch.from_numpy(rng.standard_normal((100, 5)).astype(np.float32))
    error = (ppo.nets.value(ppo.learner.state, rows) - rows[:, 2]).square().mean()
    assert error < 0.1  # a critic that saw the state alone could do no better than 1
