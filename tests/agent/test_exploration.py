"""From Q values to actions: greedy, epsilon-greedy, Boltzmann, and how a schedule reaches them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab.agent.agent import Agent, make_agent
from slm_lab.agent.algorithm.actor import boltzmann, epsilon_greedy, numpy_epsilon_greedy
from slm_lab.spec import Spec
from slm_lab.types import Spaces

MakeSpec = Callable[..., Spec]
SPACES = Spaces((1,), "float32", "discrete", (4,))
ENVS = 500
OBS = np.ones((ENVS, 1), np.float32)


def gumbel(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    uniform = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    return -(-uniform.log()).log()


def test_each_env_tosses_its_own_coin() -> None:
    q_value = torch.tensor([[0.0, 1.0, 0.0, 0.0]]).expand(4, -1)
    noise = torch.tensor([[0.29, 0.0], [0.31, 0.0], [0.0, 0.76], [0.99, 0.99]])
    # Epsilon 0.3: envs 0 and 2 explore, and take action 0.0 * 4 = 0 and 0.76 * 4 -> 3.
    assert epsilon_greedy(q_value, torch.tensor(0.3), noise).tolist() == [0, 1, 3, 1]


def test_the_second_number_picks_every_action_alike() -> None:
    picks = torch.tensor([0.0, 0.24, 0.25, 0.49, 0.5, 0.74, 0.75, 1.0])
    noise = torch.stack([torch.zeros(8), picks], -1)
    q_value = torch.zeros(8, 4)
    actions = epsilon_greedy(q_value, torch.tensor(1.0), noise)
    assert actions.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]  # 1.0 itself must not become action 4


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0])
def test_epsilon_is_the_share_of_uniform_actions(epsilon: float) -> None:
    noise = torch.rand(20_000, 2, generator=torch.Generator().manual_seed(0))
    q_value = torch.tensor([[0.0, 0.0, 5.0, 0.0]]).expand(20_000, -1)
    counts = torch.bincount(epsilon_greedy(q_value, torch.tensor(epsilon), noise), minlength=4)
    # The best action is also one of the four that exploring takes.
    expected = [epsilon / 4] * 2 + [1 - 0.75 * epsilon] + [epsilon / 4]
    assert (counts / 20_000).tolist() == pytest.approx(expected, abs=0.012)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_boltzmann_draws_from_the_softmax_at_its_temperature(temperature: float) -> None:
    q = [0.0, 1.0, -1.0]
    draws = boltzmann(
        torch.tensor([q]).expand(20_000, -1), torch.tensor(temperature), gumbel((20_000, 3))
    )
    odds = [math.exp(x / temperature) for x in q]
    expected = [odd / sum(odds) for odd in odds]
    found = torch.bincount(draws, minlength=3) / 20_000
    assert found.tolist() == pytest.approx(expected, abs=0.012)


def test_a_temperature_of_zero_is_greedy() -> None:
    q_value = torch.tensor([[0.0, 1.0, 0.999]]).expand(200, -1)
    assert boltzmann(q_value, torch.tensor(0.0), gumbel((200, 3))).unique().tolist() == [1]


def make_actor(
    make_spec: MakeSpec, policy: str, explore_var: Any = 0.5, pdtype: str = "Argmax"
) -> Agent:
    """Q = (0, 1, 2, 0) whatever the observation."""
    schedule = explore_var
    if not isinstance(schedule, dict):
        schedule = {"name": "no_decay", "start_val": explore_var}
    values = {
        "agent.algorithm.action_policy": policy,
        "agent.algorithm.action_pdtype": pdtype,
        "agent.algorithm.explore_var_spec": schedule,
        "agent.net.hid_layers": [],
        "agent.net.init_fn": "zeros_",
        "env.num_envs": ENVS,
        "agent.memory.max_size": 2000,
    }
    agent = make_agent(make_spec("DQN", values), SPACES, seed=0)
    bias = list(agent.algorithm.modules["net"].parameters())[-1]
    bias.copy_(torch.tensor([0.0, 1.0, 2.0, 0.0]))
    return agent


def shares(agent: Agent, frame: int = 0) -> list[float]:
    actions = np.concatenate([agent.act(OBS, frame=frame) for _ in range(20)])
    found: list[float] = (np.bincount(actions, minlength=4) / len(actions)).tolist()
    return found


@pytest.mark.parametrize(
    ("policy", "pdtype", "expected"),
    [
        ("epsilon_greedy", "Argmax", [0.125, 0.125, 0.625, 0.125]),
        ("boltzmann", "Categorical", [0.0158, 0.1171, 0.8650, 0.0158]),  # softmax of 0, 2, 4, 0
        ("random", "Argmax", [0.25] * 4),
        ("default", "default", [0.125, 0.125, 0.625, 0.125]),
        ("default", "Argmax", [0.125, 0.125, 0.625, 0.125]),
        ("default", "Categorical", [0.0158, 0.1171, 0.8650, 0.0158]),
    ],
)
def test_each_policy_acts_as_it_is_named(
    make_spec: MakeSpec, policy: str, pdtype: str, expected: list[float]
) -> None:
    agent = make_actor(make_spec, policy, 0.5, pdtype)
    assert shares(agent) == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize("policy", ["epsilon_greedy", "boltzmann", "random"])
def test_without_exploring_every_policy_is_greedy(make_spec: MakeSpec, policy: str) -> None:
    agent = make_actor(make_spec, policy, 1.0)
    assert set(agent.act(OBS, explore=False).tolist()) == {2}
    assert set(agent.act(OBS[:3], explore=False).tolist()) == {2}  # any number of envs


def test_the_schedule_reaches_acting(make_spec: MakeSpec) -> None:
    fall = {"name": "linear_decay", "start_val": 1, "end_val": 0, "start_step": 0, "end_step": 100}
    agent = make_actor(make_spec, "epsilon_greedy", fall)
    assert shares(agent, frame=0) == pytest.approx([0.25] * 4, abs=0.015)
    assert shares(agent, frame=40) == pytest.approx([0.15, 0.15, 0.55, 0.15], abs=0.015)
    assert shares(agent, frame=100) == [0.0, 0.0, 1.0, 0.0]
    assert shares(agent, frame=0) == pytest.approx([0.25] * 4, abs=0.015)  # no memory of it


def test_exploring_envs_do_not_all_explore_at_once(make_spec: MakeSpec) -> None:
    # One coin for all would make each step's share of exploring envs 0 or 1.
    agent = make_actor(make_spec, "epsilon_greedy", 0.5)
    greedy = [float((agent.act(OBS) == 2).mean()) for _ in range(20)]
    assert 0.5 < min(greedy) <= max(greedy) < 0.75


def test_the_numpy_form_of_epsilon_greedy_makes_the_same_choices() -> None:
    generator = torch.Generator().manual_seed(0)
    q_value, noise = (torch.rand(200, n, generator=generator) for n in (3, 2))
    for epsilon in (0.0, 0.3, 1.0):
        expected = epsilon_greedy(q_value, torch.tensor(epsilon), noise)
        found = numpy_epsilon_greedy(q_value.numpy(), epsilon, noise.numpy())
        assert found.tolist() == expected.tolist()
