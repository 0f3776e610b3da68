"""A worker learns from what its acting policy did, whatever others made of the nets meanwhile."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab.agent.agent import Agent, make_agent
from slm_lab.training.distributed import SharedAlgorithm
from slm_lab.training.executors.local import shared_nets
from slm_lab.types import Spaces, Transition

SPACES = Spaces((1,), "float32", "discrete", (2,))
ONE_STEP = {
    "agent__algorithm__training_epoch": 1,
    "agent__algorithm__minibatch_size": 10_000,
    "agent__algorithm__normalize_advantages": False,
}


@pytest.fixture
def workers(make_spec) -> Iterator[Any]:
    """workers("PPO", **keys) -> two agents that share their nets."""
    opened = []

    def start(algorithm: str, **keys: Any) -> tuple[Agent, Agent]:
        sgd = {"name": "SGD", "lr": 0.1}
        shared_keys = {"meta__distributed": "synced", "meta__max_session": 2}
        spec = make_spec(algorithm, agent__net__optim_spec=sgd, **shared_keys, **keys)
        context = shared_nets(spec)
        opened.append(context)
        shared = context.__enter__()
        assert shared is not None
        agents = [make_agent(spec, SPACES, seed=seed) for seed in (0, 1)]
        for agent in agents:
            agent.algorithm = SharedAlgorithm(agent.algorithm, shared)
        return agents[0], agents[1]

    yield start
    for context in opened:
        context.__exit__(None, None, None)


def collect(agent: Agent, seed: int = 0) -> None:
    """Act until there is enough to learn from; the reward is the action."""
    rng = np.random.default_rng(seed)
    never = np.zeros(2, bool)
    obs = rng.normal(size=(2, 1)).astype(np.float32)
    while not agent.ready:
        action = agent.act(obs)
        following = rng.normal(size=(2, 1)).astype(np.float32)
        reward = np.asarray(action, np.float32)
        agent.observe(obs, action, Transition(following, following, reward, *[never] * 3))
        obs = following


def weights(agent: Agent) -> Tensor:
    return agent.algorithm.learner.state["net"].clone()


@pytest.mark.parametrize("shared", [True, False])
def test_ppo_compares_with_the_policy_that_acted(workers, shared):
    mine, other = workers("PPO", **ONE_STEP, agent__net__shared=shared)
    acted = copy.deepcopy(mine.algorithm.modules["net"])
    collect(mine)
    collect(other, seed=1)
    for _ in range(3):  # what others learn while this worker acts
        other.update(frame=100)
        collect(other, seed=2)
    rollout = mine.experience._memory
    obs, action = rollout._obs[:-1].flatten(0, 1).clone(), rollout._action.flatten().clone()

    metrics = mine.update(frame=100)
    # One step over the whole rollout: its ratios are those of the nets it found to those it acted
    # with. The step itself comes after.
    found = copy.deepcopy(other.algorithm.modules["net"])
    log_prob, old = (
        net(obs)[0].log_softmax(-1).gather(-1, action[:, None]) for net in (found, acted)
    )
    ratio = (log_prob - old).exp()
    assert (ratio - 1).abs().max() > 1e-3
    expected = (ratio - 1 - ratio.log()).mean().item()
    assert metrics.values["approx_kl"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("algorithm", ["ActorCritic", "Reinforce", "SARSA"])
def test_a_policy_gradient_is_taken_where_the_policy_acted(make_spec, workers, algorithm):
    mine, other = workers(algorithm)
    # The same acting, learned from alone, gives the gradient at the acting weights.
    sgd = {"name": "SGD", "lr": 0.1}
    alone = make_agent(make_spec(algorithm, agent__net__optim_spec=sgd), SPACES, seed=0)
    alone.algorithm.learner.state["net"].copy_(weights(mine))
    for agent in (mine, alone):
        collect(agent)
    acted = weights(mine)
    alone.update(frame=100)
    step = weights(alone) - acted

    collect(other, seed=1)
    other.update(frame=100)
    moved = weights(other)
    assert not torch.allclose(moved, acted)
    mine.update(frame=100)
    torch.testing.assert_close(weights(mine) - moved, step, atol=1e-6, rtol=1e-4)
