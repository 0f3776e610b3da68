"""Every value-based and off-policy algorithm solves the tiny envs with known answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab.agent.agent import Agent, make_agent
from slm_lab.agent.algorithm.dqn import DQN
from slm_lab.spec import Spec
from slm_lab.spec.algorithm import ALGORITHMS
from slm_lab.training.loop import Loop
from slm_lab.types import ReplayBatch, Spaces

MakeSpec = Callable[..., Spec]
MakeBatch = Callable[..., ReplayBatch]
Train = Callable[..., Loop]

GAMMA = 0.9
DISCRETE = Spaces((1,), "float32", "discrete", (2,))
CONTINUOUS = Spaces((1,), "float32", "multi_continuous", (1,))
DISTRIBUTIONAL = ["QRDQN", "C51"]
FAMILY = ["VanillaDQN", "DQN", "DoubleDQN", *DISTRIBUTIONAL]
VALUE_BASED = ["SARSA", *FAMILY]
ACTOR_CRITICS = ["SoftActorCritic", "CrossQ"]
IMITATORS = ["SIL", "PPOSIL"]
EVERYONE = [*VALUE_BASED, *ACTOR_CRITICS, *IMITATORS]

# As CrossQ wants it: a norm before each activation, momentum of Adam halved.
NORMALIZED_NET = {
    "type": "TorchArcNet",
    "arc": {
        "modules": {
            "body": {
                "Sequential": [
                    {"LazyLinear": {"out_features": 16}},
                    {"LazyBatchRenorm1d": {"momentum": 0.05, "warmup_steps": 100}},
                    {"Tanh": None},
                ]
            }
        },
        "graph": {"input": "x", "modules": {"body": ["x"]}, "output": "body"},
    },
    "optim_spec": {"name": "Adam", "lr": 0.01, "betas": [0.5, 0.999]},
}
PLAIN_NET = {
    "type": "MLPNet",
    "hid_layers": [16],
    "hid_layers_activation": "tanh",
    "optim_spec": {"name": "Adam", "lr": 0.01},
}
PRIORITIES = {
    "name": "PrioritizedReplay",
    "batch_size": 32,
    "max_size": 2000,
    "alpha": 0.6,
    "epsilon": 0.01,
}


def spec_of(make_spec: MakeSpec, algorithm: str, probe: str, **values: Any) -> Spec:
    """Few but large steps, and targets that follow closely: seconds count here."""
    fast: dict[str, Any] = {"agent.net": NORMALIZED_NET} if algorithm == "CrossQ" else {}
    fast |= {"env.name": f"probe/{probe}-v0", "agent.net.optim_spec.lr": 0.02}
    if algorithm == "CrossQ":
        fast |= {"agent.net.optim_spec.lr": 0.01}
    if algorithm not in ("SARSA", *IMITATORS):
        fast |= {"agent.algorithm.training_iter": 1}
    if algorithm in ("DQN", "DoubleDQN", "SoftActorCritic", "Rainbow", *DISTRIBUTIONAL):
        fast |= {"agent.net.polyak_coef": 0.2}
    keys = {key.replace("__", "."): value for key, value in values.items()}
    return make_spec(algorithm, fast | keys)


def paced(algorithm: str, frames: int) -> int:
    """SARSA learns once per rollout of 32 frames, the others from a replay every 4."""
    return 4 * frames if algorithm == "SARSA" else frames


def q_values(agent: Agent, *obs: float) -> list[list[float]]:
    """Q(s, .) of each observation."""
    modules = agent.algorithm.modules
    net = modules["q1_net"] if "q1_net" in modules else modules["net"]
    outputs = net(torch.tensor(obs)[:, None])[0]
    if isinstance(agent.algorithm, DQN):
        outputs = agent.algorithm.q_value(outputs)
    found: list[list[float]] = outputs.tolist()
    return found


def best(agent: Agent, *obs: float) -> list[float]:
    return [max(row) for row in q_values(agent, *obs)]


def greedy(agent: Agent, *obs: float) -> list[Any]:
    action = agent.act(np.array(obs, np.float32)[:, None], explore=False)
    actions: list[Any] = agent.env_action(action).tolist()
    return actions


@pytest.mark.parametrize("algorithm", VALUE_BASED)
def test_the_value_of_a_constant_reward(make_spec: MakeSpec, train: Train, algorithm: str) -> None:
    loop = train(spec_of(make_spec, algorithm, "ConstantReward"), frames=paced(algorithm, 800))
    assert q_values(loop.agent, 0.0)[0] == pytest.approx([1.0, 1.0], abs=0.05)


@pytest.mark.parametrize("algorithm", [*VALUE_BASED, *ACTOR_CRITICS])
def test_the_value_follows_the_observation(
    make_spec: MakeSpec, train: Train, algorithm: str
) -> None:
    loop = train(spec_of(make_spec, algorithm, "ObsReward"), frames=1000)
    assert best(loop.agent, 1.0, -1.0) == pytest.approx([1.0, -1.0], abs=0.1)


@pytest.mark.parametrize("algorithm", VALUE_BASED)
def test_a_later_reward_is_discounted(make_spec: MakeSpec, train: Train, algorithm: str) -> None:
    loop = train(spec_of(make_spec, algorithm, "DelayedReward"), frames=paced(algorithm, 1500))
    assert best(loop.agent, 0.0, 1.0) == pytest.approx([GAMMA, 1.0], abs=0.05)


KEYS: dict[str, dict[str, Any]] = {
    "n-step": {"agent__algorithm__n_step": 3},
    "priorities": {"agent__memory": PRIORITIES},
    "newest rows": {"agent__memory__use_cer": True},
    "boltzmann": {"agent__algorithm__action_policy": "boltzmann"},
    "dueling": {"agent__net__type": "DuelingMLPNet"},
    "hard copies": {"agent__net__update_type": "replace", "agent__net__update_frequency": 50},
    "huber": {"agent__net__loss_spec": {"name": "SmoothL1Loss"}},
    "layer norm": {"agent__net__layer_norm": True},
    "noisy": {"agent__net__noisy": True},
}
RAINBOW = {**KEYS["n-step"], **KEYS["priorities"], **KEYS["dueling"], **KEYS["noisy"]}
WAYS = {f"DoubleDQN, {name}": ("DoubleDQN", keys) for name, keys in KEYS.items()}
WAYS |= {"Rainbow": ("Rainbow", RAINBOW), "QR Rainbow": ("QRDQN", RAINBOW)}


@pytest.mark.parametrize(("algorithm", "keys"), WAYS.values(), ids=WAYS)
def test_every_way_of_a_dqn_finds_the_discounted_reward(
    make_spec: MakeSpec, train: Train, algorithm: str, keys: dict[str, Any]
) -> None:
    loop = train(spec_of(make_spec, algorithm, "DelayedReward", **keys), frames=1500)
    assert best(loop.agent, 0.0, 1.0) == pytest.approx([GAMMA, 1.0], abs=0.07)


@pytest.mark.parametrize("algorithm", EVERYONE)
def test_the_better_action_wins(make_spec: MakeSpec, train: Train, algorithm: str) -> None:
    loop = train(spec_of(make_spec, algorithm, "ActionMatters"), frames=paced(algorithm, 800))
    assert greedy(loop.agent, 0.0) == [1]
    if algorithm in VALUE_BASED:
        assert q_values(loop.agent, 0.0)[0] == pytest.approx([-1.0, 1.0], abs=0.15)


@pytest.mark.parametrize("algorithm", EVERYONE)
def test_the_policy_depends_on_the_observation(
    make_spec: MakeSpec, train: Train, algorithm: str
) -> None:
    loop = train(spec_of(make_spec, algorithm, "ActionAndObs"), frames=paced(algorithm, 1000))
    assert greedy(loop.agent, -1.0, 1.0) == [0, 1]


@pytest.mark.parametrize("algorithm", ACTOR_CRITICS)
def test_a_continuous_action_finds_its_target(
    make_spec: MakeSpec, train: Train, algorithm: str
) -> None:
    keys: dict[str, Any] = {}
    if algorithm == "CrossQ":
        # All observations are equal here: a norm in the actor would see a variance of zero, and
        # magnify how far its running mean lags behind.
        keys = {"agent__net": PLAIN_NET, "agent__critic_net": NORMALIZED_NET}
    spec = spec_of(
        make_spec, algorithm, "ContinuousAction", **keys,
        agent__algorithm__target_entropy=-3.0, agent__algorithm__training_start_step=200,
        agent__algorithm__training_iter=2, agent__algorithm__policy_delay=3,
    )  # fmt: skip
    loop = train(spec, frames=2400)
    assert greedy(loop.agent, 0.0)[0] == pytest.approx([0.5], abs=0.1)


@pytest.mark.parametrize("algorithm", VALUE_BASED)
def test_a_time_limit_is_not_an_end(make_spec: MakeSpec, train: Train, algorithm: str) -> None:
    loop = train(spec_of(make_spec, algorithm, "Truncated"), frames=paced(algorithm, 2500))
    # 1 + 0.9 + 0.81 + ... although every episode is cut after 10 steps
    assert q_values(loop.agent, 0.0)[0] == pytest.approx([1 / (1 - GAMMA)] * 2, rel=0.06)


@pytest.mark.parametrize("algorithm", ACTOR_CRITICS)
def test_a_time_limit_is_not_an_end_for_soft_values(
    make_spec: MakeSpec, train: Train, algorithm: str
) -> None:
    spec = spec_of(
        make_spec, algorithm, "Truncated",
        agent__algorithm__fixed_alpha=0.5, agent__net__optim_spec__lr=0.01,
    )  # fmt: skip
    # A constant observation leaves batch norm nothing but its own bias to learn by: CrossQ is slow.
    loop = train(spec, frames=5000 if algorithm == "CrossQ" else 3000)
    # Both actions are alike, so every step also earns alpha ln 2, but for the first: Q counts the
    # entropy of later steps only.
    expected = (1 + GAMMA * 0.5 * math.log(2)) / (1 - GAMMA)
    # Looser for CrossQ, yet far from the 6.9 of a bootstrap that is cut at every tenth step.
    loose = 0.2 if algorithm == "CrossQ" else 0.06
    assert q_values(loop.agent, 0.0)[0] == pytest.approx([expected] * 2, rel=loose)


@pytest.mark.parametrize("algorithm", VALUE_BASED)
def test_a_termination_is_an_end(make_spec: MakeSpec, train: Train, algorithm: str) -> None:
    loop = train(spec_of(make_spec, algorithm, "Terminated"), frames=4000)
    # 10, 5 and 1 steps left
    expected = [(1 - GAMMA**n) / (1 - GAMMA) for n in (10, 5, 1)]
    assert best(loop.agent, 1.0, 0.5, 0.1) == pytest.approx(expected, abs=0.4)


# Determinism and saved state


def flatten(state: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in state.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def assert_same(a: Agent, b: Agent) -> None:
    ours, theirs = dict(flatten(a.state_dict())), dict(flatten(b.state_dict()))
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        same = (
            torch.equal(value, theirs[key]) if isinstance(value, Tensor) else value == theirs[key]
        )
        assert same, key


@pytest.mark.parametrize("algorithm", EVERYONE)
def test_the_same_seed_learns_bit_for_bit_alike(
    make_spec: MakeSpec, train: Train, algorithm: str
) -> None:
    spec = spec_of(make_spec, algorithm, "ActionAndObs")
    first, second, other = (train(spec, 200, seed=seed) for seed in (4, 4, 5))
    assert_same(first.agent, second.agent)
    assert list(first.env.episodes.returns) == list(second.env.episodes.returns)
    ours, theirs = (loop.agent.algorithm.learner.state["net"] for loop in (first, other))
    assert not torch.equal(ours, theirs)


def test_priorities_are_part_of_the_same_seed(make_spec: MakeSpec, train: Train) -> None:
    spec = spec_of(make_spec, "DQN", "ActionAndObs", agent__memory=PRIORITIES)
    assert_same(*(train(spec, 200, seed=4).agent for _ in "ab"))


def some_batch(make_batch: MakeBatch, continuous: bool, seed: int) -> ReplayBatch:
    rng = np.random.default_rng(seed)
    obs, next_obs = rng.normal(size=(2, 64, 1)).tolist()
    action = (
        rng.uniform(-1, 1, (64, 1)).astype(np.float32) if continuous else rng.integers(2, size=64)
    )
    return make_batch(obs, action.tolist(), rng.normal(size=64), next_obs, [GAMMA] * 64)


RESTORED = {
    "DQN": {"agent.net.update_type": "replace", "agent.net.update_frequency": 100},
    "DoubleDQN": {"agent.net.lr_scheduler_spec": {"name": "LinearToZero", "frame": 100}},
    "QRDQN": {"agent.algorithm.double": True},
    "Rainbow": {"agent.net.noisy": True, "agent.net.type": "DuelingMLPNet"},
    "SoftActorCritic": {"agent.algorithm.policy_delay": 3},
    "CrossQ": {"agent.net": NORMALIZED_NET, "agent.algorithm.policy_delay": 2},
    "TD3": {"agent.algorithm.policy_delay": 3},
}


@pytest.mark.parametrize(
    ("algorithm", "continuous"),
    [
        (name, kind == "continuous")
        for name in RESTORED
        for kind in sorted(ALGORITHMS[name].actions)
    ],
)
def test_a_restored_algorithm_continues_bit_for_bit(
    make_spec: MakeSpec, make_batch: MakeBatch, algorithm: str, continuous: bool
) -> None:
    spec = make_spec(algorithm, RESTORED[algorithm])
    spaces = CONTINUOUS if continuous else DISCRETE
    original, restored = (make_agent(spec, spaces, seed=seed) for seed in (1, 2))
    obs = np.zeros((4, 1), np.float32)
    for step in range(4):  # past a copy of the target, and in the middle of a policy delay
        original.act(obs, frame=10 * step)
        original.algorithm.update(some_batch(make_batch, continuous, step), frame=102 + step)
    restored.load_state_dict(original.state_dict())
    assert_same(original, restored)
    for step in range(4, 8):
        batch = some_batch(make_batch, continuous, step)
        for agent in (original, restored):
            agent.algorithm.update(batch, frame=102 + step)
        for frame in (0, 1000):  # random, then by the policy
            acted = original.act(obs, frame=frame), restored.act(obs, frame=frame)
            assert np.array_equal(*acted)
        assert_same(original, restored)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "continuous"),
    [
        *(("DQN", False), ("QRDQN", False), ("Rainbow", False)),
        *(("SoftActorCritic", True), ("CrossQ", True), ("TD3", True)),
    ],
)
def test_a_compiled_update_is_the_eager_one(
    make_spec: MakeSpec, make_batch: MakeBatch, algorithm: str, continuous: bool
) -> None:
    spaces = CONTINUOUS if continuous else DISCRETE
    values: dict[str, Any] = {"agent.net": NORMALIZED_NET} if algorithm == "CrossQ" else {}
    if algorithm == "Rainbow":
        values = {"agent.net.type": "DuelingMLPNet", "agent.net.noisy": True}
    # A bias before a batch norm has no gradient but rounding, which Adam would scale up.
    values |= {"agent.net.optim_spec": {"name": "SGD", "lr": 0.01}}
    eager, compiled = (
        make_agent(make_spec(algorithm, values | {"meta.compile": mode}), spaces, seed=0)
        for mode in ("off", "on")
    )
    for step in range(2):
        batch = some_batch(make_batch, continuous, step)
        ours, theirs = (a.algorithm.update(batch, frame=100) for a in (eager, compiled))
        assert dict(ours.values) == pytest.approx(dict(theirs.values), rel=1e-4, abs=1e-5)
    assert compiled.is_compiled
    assert not eager.is_compiled
    for key, value in eager.algorithm.learner.state.items():
        other = compiled.algorithm.learner.state[key]
        assert torch.allclose(value, other, rtol=1e-3, atol=1e-5), key
