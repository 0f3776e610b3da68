"""Every algorithm solves the tiny envs with known answers: value, policy and every action space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slm_lab.agent.agent import Agent
from slm_lab.spec import Spec
from slm_lab.training.loop import Loop

MakeSpec = Callable[..., Spec]
Train = Callable[..., Loop]
ValueOf = Callable[..., list[float]]

GAMMA = 0.9
CRITICS = ["PPO", "ActorCritic"]
POLICIES = ["PPO", "ActorCritic", "Reinforce"]


def on(probe: str, **values: Any) -> dict[str, Any]:
    return {"env.name": f"probe/{probe}-v0", **values}


def greedy(agent: Agent, *obs: float) -> list[Any]:
    """What the env would be given for each observation."""
    action = agent.act(np.array(obs, np.float32)[:, None], explore=False)
    actions: list[Any] = agent.env_action(action).tolist()
    return actions


@pytest.mark.parametrize("algorithm", CRITICS)
def test_the_value_of_a_constant_reward(
    make_spec: MakeSpec, train: Train, value_of: ValueOf, algorithm: str
) -> None:
    loop = train(make_spec(algorithm, on("ConstantReward")), frames=3000)
    assert value_of(loop.agent, [0.0]) == pytest.approx([1.0], abs=0.05)


@pytest.mark.parametrize("algorithm", CRITICS)
def test_the_value_follows_the_observation(
    make_spec: MakeSpec, train: Train, value_of: ValueOf, algorithm: str
) -> None:
    loop = train(make_spec(algorithm, on("ObsReward")), frames=3000)
    assert value_of(loop.agent, [1.0, -1.0]) == pytest.approx([1.0, -1.0], abs=0.05)


RETURNS = {
    "gae": {},
    "n-step": {"agent.algorithm.lam": None, "agent.algorithm.num_step_returns": 4},
    "whole rollout": {"agent.algorithm.lam": None},
    "shared net": {"agent.net.shared": True},
}


@pytest.mark.parametrize("keys", RETURNS.values(), ids=RETURNS)
def test_a_later_reward_is_discounted(
    make_spec: MakeSpec, train: Train, value_of: ValueOf, keys: dict[str, Any]
) -> None:
    loop = train(make_spec("ActorCritic", on("DelayedReward", **keys)), frames=4000)
    assert value_of(loop.agent, [0.0, 1.0]) == pytest.approx([GAMMA, 1.0], abs=0.05)


VALUE_KEYS = {
    "plain": {},
    "normalized targets": {"agent.algorithm.normalize_v_targets": True},
    "clipped": {"agent.algorithm.clip_vloss": True},
    "symlog": {"agent.algorithm.symlog": True},
    "recomputed": {"agent.algorithm.recompute_advantages": True},
    "percentile": {"agent.algorithm.normalize_advantages": "percentile"},
    "shared": {"agent.net.shared": True},
}


@pytest.mark.parametrize("keys", VALUE_KEYS.values(), ids=VALUE_KEYS)
def test_every_value_loss_of_ppo_finds_the_discounted_reward(
    make_spec: MakeSpec, train: Train, value_of: ValueOf, keys: dict[str, Any]
) -> None:
    loop = train(make_spec("PPO", on("DelayedReward", **keys)), frames=2500)
    assert value_of(loop.agent, [0.0, 1.0]) == pytest.approx([GAMMA, 1.0], abs=0.07)


@pytest.mark.parametrize("algorithm", POLICIES)
def test_the_better_action_wins(make_spec: MakeSpec, train: Train, algorithm: str) -> None:
    loop = train(make_spec(algorithm, on("ActionMatters")), frames=2500)
    assert greedy(loop.agent, 0.0) == [1]
    assert loop.env.episodes.total_reward() > 0.9


@pytest.mark.parametrize("algorithm", POLICIES)
def test_the_policy_depends_on_the_observation(
    make_spec: MakeSpec, train: Train, algorithm: str
) -> None:
    loop = train(make_spec(algorithm, on("ActionAndObs")), frames=3000)
    assert greedy(loop.agent, -1.0, 1.0) == [0, 1]
    assert loop.env.episodes.total_reward() > 0.8


@pytest.mark.parametrize("pdtype", ["Normal", "NormalTanh"])
@pytest.mark.parametrize("algorithm", POLICIES)
def test_a_continuous_action_finds_its_target(
    make_spec: MakeSpec, train: Train, algorithm: str, pdtype: str
) -> None:
    values = on("ContinuousAction", **{"agent.algorithm.action_pdtype": pdtype})
    if algorithm == "PPO":
        # Standardised, vanishing advantages stay as loud as ever and collapse the std too early.
        values |= {"agent.algorithm.normalize_advantages": False, "agent.net.optim_spec.lr": 0.005}
    loop = train(make_spec(algorithm, values), frames=6000)
    assert greedy(loop.agent, 0.0)[0] == pytest.approx([0.5], abs=0.1)


@pytest.mark.parametrize("pdtype", ["Beta", "Gumbel", "LogNormal"])
def test_skewed_distributions_find_it_too(make_spec: MakeSpec, train: Train, pdtype: str) -> None:
    values = on("ContinuousAction", **{"agent.algorithm.action_pdtype": pdtype})
    loop = train(make_spec("ActorCritic", values), frames=6000)
    assert greedy(loop.agent, 0.0)[0] == pytest.approx([0.5], abs=0.15)


@pytest.mark.parametrize("algorithm", POLICIES)
@pytest.mark.parametrize(
    ("probe", "answer"), [("MultiDiscreteAction", [1, 2]), ("MultiBinaryAction", [1, 0])]
)
def test_sub_actions_are_learned_together(
    make_spec: MakeSpec, train: Train, algorithm: str, probe: str, answer: list[int]
) -> None:
    loop = train(make_spec(algorithm, on(probe)), frames=3000)
    assert greedy(loop.agent, 0.0) == [answer]
    assert loop.env.episodes.total_reward() > 0.8


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("algorithm", CRITICS)
def test_a_time_limit_is_not_an_end(
    make_spec: MakeSpec, train: Train, value_of: ValueOf, algorithm: str, normalize: bool
) -> None:
    values = on("Truncated", **{"agent.algorithm.normalize_v_targets": normalize})
    loop = train(make_spec(algorithm, values), frames=6000)
    # 1 + 0.9 + 0.81 + ... although every episode is cut after 10 steps
    assert value_of(loop.agent, [0.0]) == pytest.approx([1 / (1 - GAMMA)], rel=0.03)


@pytest.mark.parametrize("algorithm", CRITICS)
def test_a_termination_is_an_end(
    make_spec: MakeSpec, train: Train, value_of: ValueOf, algorithm: str
) -> None:
    loop = train(make_spec(algorithm, on("Terminated")), frames=8000)
    # 10, 5 and 1 steps left
    expected = [(1 - GAMMA**n) / (1 - GAMMA) for n in (10, 5, 1)]
    assert value_of(loop.agent, [1.0, 0.5, 0.1]) == pytest.approx(expected, abs=0.3)


@pytest.mark.parametrize("memory", ["OnPolicyReplay", "OnPolicyCrossEntropy"])
@pytest.mark.parametrize("algorithm", ["ActorCritic", "Reinforce"])
def test_whole_episodes_teach_as_well(
    make_spec: MakeSpec, train: Train, algorithm: str, memory: str
) -> None:
    block: dict[str, Any] = {"name": memory}
    if memory == "OnPolicyCrossEntropy":
        block["cross_entropy"] = 0.25
    values = on("ActionAndObs", **{"agent.memory": block, "agent.algorithm.training_frequency": 32})
    loop = train(make_spec(algorithm, values), frames=4000)
    assert greedy(loop.agent, -1.0, 1.0) == [0, 1]


def test_normalized_observations_and_rewards_still_solve_it(
    make_spec: MakeSpec, train: Train
) -> None:
    values = on("ActionAndObs", **{"env.normalize_obs": True, "env.normalize_reward": True})
    loop = train(make_spec("PPO", values), frames=3000)
    assert greedy(loop.agent, -1.0, 1.0) == [0, 1]


def test_without_memory_nothing_can_be_repeated(make_spec: MakeSpec, train: Train) -> None:
    # The one probe these algorithms must fail: its answer needs the previous observation.
    loop = train(make_spec("ActorCritic", on("RepeatPrevious")), frames=3000)
    assert abs(loop.env.episodes.total_reward()) < 2
