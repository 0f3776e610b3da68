"""PPO on images remembers what acting found out, instead of computing it once more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from slm_lab.agent.agent import Agent
from slm_lab.agent.algorithm.acting import Recall
from slm_lab.agent.algorithm.ppo import PPO
from slm_lab.agent.make import make_agent
from slm_lab.env.make import make_env
from slm_lab.env.vector import VectorEnv
from slm_lab.types import Rollout
from tests.tiny import TINY_CONV_NET

STEPS = 4
PONG: dict[str, Any] = {
    "env.name": "ALE/Pong-v5",
    "env.num_envs": 2,
    "agent.algorithm.time_horizon": STEPS,
    "agent.net": TINY_CONV_NET,
}


@pytest.fixture
def pong(make_spec: Any) -> tuple[Agent, VectorEnv]:
    spec = make_spec("PPO", PONG)
    env = make_env(spec.env, seed=0)
    return make_agent(spec, env.spaces, seed=0), env


def play(agent: Agent, env: VectorEnv, steps: int) -> None:
    obs = env.obs
    for _ in range(steps):
        action = agent.act(obs, frame=0)
        transition = env.step(agent.env_action(action))
        agent.observe(obs, action, transition)
        obs = transition.obs


def columns(rollout: Rollout) -> tuple[Tensor, ...]:
    assert rollout.log_prob is not None
    assert rollout.value is not None
    assert rollout.next_value is not None
    return rollout.log_prob, rollout.value, rollout.next_value


def rows_of(agent: Agent) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """What an update would learn from: recalled, and computed anew."""
    assert isinstance(agent.algorithm, PPO)
    rollout = agent.experience.batch(0)
    assert isinstance(rollout, Rollout)
    passes: list[int] = []
    net = agent.algorithm.nets.trainables[0].net
    net.register_forward_hook(lambda module, inputs, output: passes.append(len(inputs[0])))
    recalled = agent.algorithm.evaluate(rollout)
    assert passes == [2], "only the states after the last step are new"
    return columns(recalled), columns(agent.algorithm.evaluate(rollout))


def test_what_is_recalled_is_what_would_be_computed(pong):
    agent, env = pong
    env.reset()
    play(agent, env, STEPS)
    for recalled, computed in zip(*rows_of(agent), strict=True):
        torch.testing.assert_close(recalled, computed, rtol=1e-4, atol=1e-5)


def test_a_rollout_that_was_saved_half_way_is_recalled_whole(pong, make_spec):
    agent, env = pong
    env.reset()
    play(agent, env, STEPS - 1)
    resumed = make_agent(make_spec("PPO", PONG), env.spaces, seed=1)
    resumed.load_state_dict(agent.state_dict())
    resumed.experience.load_state_dict(agent.experience.state_dict())
    play(resumed, env, 1)
    for recalled, computed in zip(*rows_of(resumed), strict=True):
        torch.testing.assert_close(recalled, computed, rtol=1e-4, atol=1e-5)


ACTED = torch.tensor([[0, 1], [1, 1]])


def recall_of(acted: Tensor) -> Recall:
    recall = Recall(lambda heads: NotImplemented, 2, 2, torch.device("cpu"))
    for action in acted:
        recall.add(action, action / 2, action * 3.0)
    return recall


def test_log_probs_and_values_of_the_actions_are_handed_out_once():
    recall = recall_of(ACTED)
    found = recall.take(ACTED)
    assert found is not None
    assert [column.tolist() for column in found] == [[[0, 0.5], [0.5, 0.5]], [[0, 3], [3, 3]]]
    assert recall.take(ACTED) is None


@pytest.mark.parametrize(
    "acted",
    [ACTED[:1], torch.cat([ACTED, ACTED]), 1 - ACTED],
    ids=["too few steps", "too many", "other actions"],
)
def test_another_rollout_is_not_recalled(acted):
    assert recall_of(acted).take(ACTED) is None
