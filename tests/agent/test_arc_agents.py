"""Nets declared in the spec, in every algorithm: as good as the MLP that they spell out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.agent import make_agent
from slm_lab.spec import Spec
from slm_lab.spec.algorithm import ALGORITHMS as RECORDS
from slm_lab.training.loop import Loop
from slm_lab.types import Spaces

MakeSpec = Callable[..., Spec]
Train = Callable[..., Loop]

SPACES = Spaces((1,), "float32", "discrete", (2,))
ACTOR_CRITICS = ["ActorCritic", "PPO", "SIL", "PPOSIL"]
ALGORITHMS = [
    *ACTOR_CRITICS, "Reinforce", "SARSA", "VanillaDQN", "DQN", "DoubleDQN", "SoftActorCritic",
    "CrossQ",
]  # fmt: skip
POLYAK = {"update_type": "polyak", "polyak_coef": 0.05}


def arc(*layers: Any) -> dict[str, Any]:
    return {
        "modules": {"body": {"Sequential": list(layers)}},
        "graph": {"input": "x", "modules": {"body": ["x"]}, "output": "body"},
    }


def linear(width: int) -> dict[str, Any]:
    return {"LazyLinear": {"out_features": width}}


RENORM = {"LazyBatchRenorm1d": {"momentum": 0.01, "eps": 1e-3, "warmup_steps": 10}}
TWO_PATHS = {
    "modules": {
        "left": {"Sequential": [linear(8), {"Tanh": None}]},
        "right": {"Sequential": [linear(8), {"ReLU": None}]},
        "join": {"Bilinear": {"in1_features": 8, "in2_features": 8, "out_features": 8}},
    },
    "graph": {
        "input": "x",
        "modules": {"left": ["x"], "right": ["x"], "join": {"input1": "left", "input2": "right"}},
        "output": "join",
    },
}
BODIES = {"batch renorm": arc(linear(16), RENORM, {"ReLU": None}), "two paths": TWO_PATHS}


def arc_net(algorithm: str, **keys: Any) -> dict[str, Any]:
    net: dict[str, Any] = {"type": "TorchArcNet", "optim_spec": {"name": "Adam", "lr": 0.01}}
    return net | (POLYAK if algorithm in ("DQN", "DoubleDQN", "SoftActorCritic") else {}) | keys


@pytest.mark.parametrize(
    ("algorithm", "body"),
    [
        pytest.param(algorithm, body, id=f"{algorithm}-{name}")
        for algorithm in ALGORITHMS
        for name, body in BODIES.items()
        # A policy must act and learn as one: on-policy algorithms take no batch statistics.
        if name != "batch renorm" or "replay" in RECORDS[algorithm].memories
    ],
)
def test_every_algorithm_learns_with_a_declared_body(
    make_spec: MakeSpec, train: Train, algorithm: str, body: dict[str, Any]
) -> None:
    net = arc_net(algorithm, arc=body, hid_layers_activation="relu", init_fn="orthogonal_")
    spec = make_spec(algorithm, {"agent.net": net, "env.name": "probe/ActionAndObs-v0"})
    before = make_agent(spec, SPACES, seed=0).algorithm.modules
    after = train(spec, frames=200).agent.algorithm.modules
    for name, module in after.items():
        first = dict(before[name].named_parameters())
        unmoved = [k for k, v in module.named_parameters() if torch.equal(v, first[k])]
        assert not unmoved, f"{name}: {unmoved}"


@pytest.mark.parametrize("algorithm", ACTOR_CRITICS)
def test_actor_and_critic_may_be_declared_apart(
    make_spec: MakeSpec, train: Train, algorithm: str
) -> None:
    net = arc_net(
        algorithm,
        actor_arc=arc(linear(4), {"Tanh": None}),
        critic_arc=arc(linear(6), {"LayerNorm": {"normalized_shape": 6}}),
    )
    spec = make_spec(algorithm, {"agent.net": net, "env.name": "probe/ActionAndObs-v0"})
    modules = train(spec, frames=200).agent.algorithm.modules
    actor, critic = (dict(modules[name].named_parameters()) for name in ("net", "critic_net"))
    assert actor["body.body.0.weight"].shape == (4, 1)
    assert critic["body.body.0.weight"].shape == (6, 1)
    assert "body.body.1.weight" in critic
    assert "body.body.1.weight" not in actor


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [("PPO", {"shared": True}), ("PPO", {"shared": False}), ("DQN", {})],
)
def test_an_arc_and_the_mlp_it_spells_out_are_one_net_and_solve_one_task(
    make_spec: MakeSpec, train: Train, algorithm: str, keys: dict[str, Any]
) -> None:
    as_arc = arc_net(algorithm, arc=arc(linear(16), {"Tanh": None}), **keys)
    as_mlp = as_arc | {"type": "MLPNet", "hid_layers": [16], "hid_layers_activation": "tanh"}
    del as_mlp["arc"]
    counts, actions, rewards = [], [], []
    for net in (as_arc, as_mlp):
        spec = make_spec(algorithm, {"agent.net": net, "env.name": "probe/ActionAndObs-v0"})
        loop = train(spec, frames=3000)
        modules = loop.agent.algorithm.modules.values()
        counts.append(sum(p.numel() for module in modules for p in module.parameters()))
        obs = np.array([[-1.0], [1.0]], np.float32)
        actions.append(loop.agent.act(obs, explore=False).tolist())
        rewards.append(loop.env.episodes.total_reward())
    assert counts[0] == counts[1]
    assert actions == [[0, 1], [0, 1]]
    assert min(rewards) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["SoftActorCritic", "DQN"])
def test_compiled_and_eager_agree_with_moving_batch_statistics(
    make_spec: MakeSpec, train: Train, algorithm: str
) -> None:
    states = []
    for compile in ("off", "on"):
        # What a norm layer follows has hardly a gradient, and Adam would make steps of its noise.
        net = arc_net(algorithm, arc=arc(linear(4), RENORM, {"ReLU": None}))
        net["optim_spec"] = {"name": "SGD", "lr": 0.1}
        values: dict[str, Any] = {
            "agent.net": net,
            "env.name": "probe/ActionAndObs-v0",
            "meta.compile": compile,
        }
        loop = train(make_spec(algorithm, values), frames=64)
        assert loop.agent.is_compiled == (compile == "on")
        states.append(loop.agent.algorithm.learner.state)
    for key, eager in states[0].items():
        torch.testing.assert_close(states[1][key], eager, atol=1e-4, rtol=1e-3)
    assert states[0]["net.buffer.body.body.1.steps"] > 0
