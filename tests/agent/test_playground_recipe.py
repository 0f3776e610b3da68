"""What the Playground specs rely on in PPO: large batches, squashed policies, scaled rewards."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slm_lab.agent.agent import make_agent
from slm_lab.agent.algorithm.distribution import TanhNormal
from slm_lab.agent.algorithm.ppo import PPO
from slm_lab.agent.algorithm.schedule import LearningRates
from slm_lab.spec import load_spec
from slm_lab.spec.algorithm.ppo import PPOSpec, ppo_minibatch_size
from slm_lab.types import Rollout, Spaces, Transition

FILE = "slm_lab/spec/benchmark_arc/ppo/ppo_playground.yaml"
SETS = ["env=playground/CheetahRun", "max_frame=1e8"]
SMALL = ["env.num_envs=4", "agent.algorithm.time_horizon=8", "agent.algorithm.minibatch_size=16"]
SPACES = Spaces((17,), "float32", "multi_continuous", (6,))


@pytest.mark.parametrize(
    ("name", "rows", "minibatch"),
    [
        ("ppo_playground", 2048 * 30, 4096),
        ("ppo_playground_vnorm", 2048 * 30, 2048),
        ("ppo_playground_short", 2048 * 480, 30_720),  # as Brax collects: 16 unrolls of 30
        ("ppo_playground_loco", 2048 * 20, 2560),
        ("ppo_playground_manip_aloha_peg", 2048 * 40, 2560),
    ],
)
def test_a_horizon_far_below_the_number_of_envs_stays_as_it_is(name, rows, minibatch):
    spec = load_spec(FILE, name, SETS)
    assert isinstance(spec.agent.algorithm, PPOSpec)
    assert spec.agent.algorithm.time_horizon * spec.env.num_envs == rows
    assert ppo_minibatch_size(spec) == minibatch


def test_the_learning_rate_falls_to_a_floor_or_stays():
    falling, constant = (
        load_spec(FILE, name, SETS).agent.net
        for name in ("ppo_playground", "ppo_playground_constlr")
    )
    rates = LearningRates({"net": falling, "other": constant}, frames_per_update=50_000_000)
    seen = []
    for frame in range(50_000_000, 200_000_001, 50_000_000):
        seen.append([round(float(rate), 6) for rate in rates.values(frame).values()])
        rates.advance(frame)
    # 100M frames are two updates here: half-way it is the mean of 1 and 0.033.
    assert seen == [[1e-3, 1e-3], [0.000516, 1e-3], [0.000033, 1e-3], [0.000033, 1e-3]]


def test_actions_are_stored_before_squashing_and_reach_the_env_squashed():
    agent = make_agent(load_spec(FILE, "ppo_playground", SETS + SMALL), SPACES, seed=0)
    sampled = np.concatenate([agent.act(np.zeros((4, 17), np.float32)) for _ in range(50)])
    assert np.abs(sampled).max() > 1.5  # a standard normal goes beyond the box
    assert np.allclose(agent.env_action(sampled), np.tanh(sampled), atol=1e-6)


def test_the_spread_depends_on_the_state():
    agent = make_agent(load_spec(FILE, "ppo_playground", SETS + SMALL), SPACES, seed=0)
    ppo = agent.algorithm
    assert isinstance(ppo, PPO)
    policy = ppo.nets.policy(ppo.learner.state, torch.randn(2, 17))
    assert isinstance(policy, TanhNormal)
    assert not torch.allclose(policy.log_std[0], policy.log_std[1])


def test_scaled_rewards_are_learned_from_and_raw_ones_counted():
    """`reward_scale: 10` reaches the batch; the env, which counts episodes, never sees it."""
    agent = make_agent(load_spec(FILE, "ppo_playground", SETS + SMALL), SPACES, seed=0)
    obs = np.zeros((4, 17), np.float32)
    reward, ended = np.full(4, 0.5, np.float32), np.zeros(4, bool)
    transition = Transition(obs, obs, reward, ended, ended, ended)
    for _ in range(8):
        agent.observe(obs, agent.act(obs), transition)
    rollout = agent.experience.batch(0)
    assert isinstance(rollout, Rollout)
    assert torch.equal(rollout.reward, torch.full((8, 4), 5.0))
    assert (transition.reward == 0.5).all()
