"""The recipe of XQC: CrossQ with categorical critics, unit weights, batch norm and target nets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.agent import Agent, make_agent
from slm_lab.agent.algorithm.distributional import expectation
from slm_lab.agent.algorithm.sac import SoftActorCritic
from slm_lab.agent.learning.compiler import has_cpp_compiler
from tests.agent.test_off_policy_probes import (
    CONTINUOUS,
    DISCRETE,
    PLAIN_NET,
    MakeBatch,
    MakeSpec,
    Train,
    assert_same,
    greedy,
    some_batch,
)

NORM = {"LazyBatchNorm1d": {"momentum": 0.05}}
XQC: dict[str, Any] = {
    "agent.net": PLAIN_NET | {"unit_weights": True},
    "agent.critic_net": {
        "type": "TorchArcNet",
        "arc": {
            "modules": {
                "body": {"Sequential": [{"LazyLinear": {"out_features": 16}}, NORM, {"Tanh": None}]}
            },
            "graph": {"input": "x", "modules": {"body": ["x"]}, "output": "body"},
        },
        "optim_spec": {"name": "Adam", "lr": 0.02},
        "unit_weights": True,
        "update_type": "polyak",
        "polyak_coef": 0.2,
    },
    "agent.algorithm.critic": {
        "name": "categorical",
        "num_atoms": 21,
        "v_min": -2.0,
        "v_max": 2.0,
    },
    "agent.algorithm.training_iter": 1,
}


def mean_q(agent: Agent, *obs: float) -> list[list[float]]:
    """Q(s, .) of each observation, by the first critic."""
    critic = agent.algorithm.modules["q1_net"]
    logits = critic(torch.tensor(obs)[:, None])[0].view(len(obs), 2, 21)
    found: list[list[float]] = expectation(logits, torch.linspace(-2.0, 2.0, 21)).tolist()
    return found


@pytest.mark.parametrize("target", ["distribution", "two_hot", "hl_gauss"])
def test_the_mean_of_the_atoms_follows_the_observation(
    make_spec: MakeSpec, train: Train, target: str
) -> None:
    keys = {"env.name": "probe/ObsReward-v0", "agent.algorithm.critic.target": target}
    loop = train(make_spec("CrossQ", XQC | keys), frames=1000)
    found = [max(row) for row in mean_q(loop.agent, 1.0, -1.0)]
    assert found == pytest.approx([1.0, -1.0], abs=0.15)


@pytest.mark.parametrize("algorithm", ["SoftActorCritic", "CrossQ"])
def test_the_policy_depends_on_the_observation(
    make_spec: MakeSpec, train: Train, algorithm: str
) -> None:
    keys = {"env.name": "probe/ActionAndObs-v0", "env.normalize_reward": True}
    loop = train(make_spec(algorithm, XQC | keys), frames=1000)
    assert greedy(loop.agent, -1.0, 1.0) == [0, 1]


@pytest.mark.slow
def test_a_continuous_action_finds_its_target(make_spec: MakeSpec, train: Train) -> None:
    keys = {
        "env.name": "probe/ContinuousAction-v0",
        "agent.algorithm.target_entropy": -3.0,
        "agent.algorithm.training_start_step": 200,
        "agent.algorithm.training_iter": 2,
        "agent.algorithm.policy_delay": 3,
    }
    loop = train(make_spec("CrossQ", XQC | keys), frames=2400)
    assert greedy(loop.agent, 0.0)[0] == pytest.approx([0.5], abs=0.1)


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_a_restored_agent_continues_bit_for_bit(
    make_spec: MakeSpec, make_batch: MakeBatch, spaces: Any
) -> None:
    spec = make_spec("CrossQ", XQC | {"agent.algorithm.policy_delay": 2})
    original, restored = (make_agent(spec, spaces, seed=seed) for seed in (1, 2))
    batches = [some_batch(make_batch, spaces.is_continuous, step) for step in range(5)]
    for batch in batches[:3]:  # in the middle of a policy delay
        original.algorithm.update(batch, frame=100)
    restored.load_state_dict(original.state_dict())
    for batch in batches[3:]:
        for agent in (original, restored):
            agent.algorithm.update(batch, frame=100)
    assert_same(original, restored)
    obs = np.zeros((4, 1), np.float32)
    assert np.array_equal(original.act(obs, frame=1000), restored.act(obs, frame=1000))


@pytest.mark.slow
@pytest.mark.compatibility  # a C++ compiler: half a minute
@pytest.mark.skipif(not has_cpp_compiler(), reason="no C++ compiler")
def test_a_compiled_update_is_the_eager_one(make_spec: MakeSpec, make_batch: MakeBatch) -> None:
    # A bias before a batch norm has no gradient but rounding, which Adam would scale up.
    values = XQC | {"agent.critic_net.optim_spec": {"name": "SGD", "lr": 0.01}}
    eager, compiled = (
        make_agent(make_spec("CrossQ", values | {"meta.compile": mode}), CONTINUOUS, seed=0)
        for mode in ("off", "on")
    )
    for step in range(2):
        batch = some_batch(make_batch, True, step)
        ours, theirs = (each.algorithm.update(batch, frame=100) for each in (eager, compiled))
        assert dict(ours.values) == pytest.approx(dict(theirs.values), rel=1e-3, abs=1e-4)
    assert compiled.is_compiled
    assert isinstance(eager.algorithm, SoftActorCritic)
    for key in ("q1_net", "target_q1_net", "q1_net.buffer.body.body.1.running_var"):
        one, other = (each.algorithm.learner.state[key] for each in (eager, compiled))
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-4), key
