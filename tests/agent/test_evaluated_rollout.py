"""PPO on images stores the log-probs and values of acting, instead of computing them again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab.agent.agent import Agent, make_agent
from slm_lab.agent.algorithm.ppo import PPO
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


def both_ways(agent: Agent) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Log-probs and values of a rollout: as stored while acting, and computed again."""
    assert isinstance(agent.algorithm, PPO)
    rollout = agent.experience.batch(0)
    assert isinstance(rollout, Rollout)
    assert rollout.log_prob is not None
    passes: list[int] = []
    net = agent.algorithm.nets.net_states[0].net
    net.register_forward_hook(lambda module, inputs, output: passes.append(len(inputs[0])))
    stored = agent.algorithm.evaluate(rollout)
    assert passes == [2], "only the states after the last step are new"
    bare = replace(rollout, log_prob=None, value=None)
    return columns(stored), columns(agent.algorithm.evaluate(bare))


def test_what_acting_stores_is_what_a_second_pass_computes(pong):
    agent, env = pong
    env.reset()
    play(agent, env, STEPS)
    for stored, computed in zip(*both_ways(agent), strict=True):
        torch.testing.assert_close(stored, computed, rtol=1e-4, atol=1e-5)


def test_a_rollout_that_was_saved_half_way_keeps_what_acting_stored(pong, make_spec):
    agent, env = pong
    env.reset()
    play(agent, env, STEPS - 1)
    resumed = make_agent(make_spec("PPO", PONG), env.spaces, seed=1)
    resumed.load_state_dict(agent.state_dict())
    resumed.experience.load_state_dict(agent.experience.state_dict())
    play(resumed, env, 1)
    for stored, computed in zip(*both_ways(resumed), strict=True):
        torch.testing.assert_close(stored, computed, rtol=1e-4, atol=1e-5)


def test_a_rollout_of_which_a_step_was_not_evaluated_is_evaluated_whole(pong):
    agent, env = pong
    env.reset()
    play(agent, env, STEPS - 1)
    agent.algorithm.act.evaluated = []
    agent.observe(env.obs, np.zeros(2, np.int64), env.step(np.zeros(2, np.int64)))
    rollout = agent.experience.batch(0)
    assert rollout.log_prob is None
    assert rollout.value is None
    assert agent.algorithm.evaluate(rollout).log_prob.shape == (STEPS, 2)
