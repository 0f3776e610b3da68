"""C51 and Rainbow: projections, divergences and targets by hand; returns beyond the support."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from loguru import logger

from slm_lab.agent.algorithm.c51 import C51, categorical_target, kl_divergence
from slm_lab.spec import Spec, SpecError, spec_from_dict
from slm_lab.spec.algorithm import algorithm_label
from tests.agent.linear import (
    S0,
    S1,
    TABLE,
    TWO_STATES,
    MakeBatch,
    MakeSpec,
    flat_table,
    make_linear,
)

# A table of logits for the returns 0, 1 and 2.
SUPPORT = torch.tensor([0.0, 1.0, 2.0])
SMALL = TABLE | {
    "agent.algorithm.num_atoms": 3,
    "agent.algorithm.v_min": 0,
    "agent.algorithm.v_max": 2,
}
SURE = 30.0  # a logit above zeros that leaves the others 1e-13
Table = list[list[list[float]]]  # [state][action][atom]
ZERO: Table = [[[0.0] * 3] * 2] * 2


def make_c51(make_spec: MakeSpec, online: Table, target: Table, **keys: Any) -> C51:
    values = {key.replace("__", "."): value for key, value in keys.items()}
    made = make_linear(C51, make_spec("C51", SMALL | values), TWO_STATES)
    made.learner.state["net"].copy_(flat_table(online))
    made.learner.state["target_net"].copy_(flat_table(target))
    return made


@pytest.mark.parametrize(
    ("reward", "discount", "expected"),
    [
        # atoms 0.5 + 0.25 * (0, 1, 2) = 0.5, 0.75, 1: half, a quarter and nothing of them on 0
        (0.5, 0.25, [0.2 * 0.5 + 0.3 * 0.25, 0.2 * 0.5 + 0.3 * 0.75 + 0.5, 0.0]),
        (1.5, 0.0, [0.0, 0.5, 0.5]),  # a termination: the reward alone, whatever came next
        (5.0, 0.9, [0.0, 0.0, 1.0]),  # beyond the support: all on its edge
        (0.0, 1.0, [0.2, 0.3, 0.5]),
        # three rewards of 0.5 at gamma 0.5 sum up to 0.875, and gamma ** 3 = 0.125 is left
        (0.875, 0.125, [0.2 * 0.125, 0.2 * 0.875 + 0.3 * 1.0 + 0.5 * 0.875, 0.5 * 0.125]),
    ],
)
def test_the_target_is_projected_onto_the_support(
    reward: float, discount: float, expected: list[float]
) -> None:
    probs = torch.tensor([[0.2, 0.3, 0.5]])
    found = categorical_target(torch.tensor([reward]), torch.tensor([discount]), probs, SUPPORT)
    assert found[0].tolist() == pytest.approx(expected)


def test_the_divergence_is_zero_where_nothing_is_left_to_learn() -> None:
    target = torch.tensor([[0.25, 0.75, 0.0], [0.5, 0.5, 0.0]])
    logits = torch.tensor([[0.25, 0.75, 1e-30], [1 / 3, 1 / 3, 1 / 3]]).log()
    # log 3 - log 2 of two returns where the net sees three
    assert kl_divergence(logits, target).tolist() == pytest.approx([0.0, math.log(1.5)], abs=1e-6)


# What s1 is worth: online the second action (1 to 0), target the first (2 to 1).
ONLINE: Table = [[[0.0] * 3] * 2, [[SURE, 0.0, 0.0], [0.0, SURE, 0.0]]]
SLOW: Table = [[[0.0] * 3] * 2, [[0.0, 0.0, SURE], [0.0, SURE, 0.0]]]


@pytest.mark.parametrize(("double", "expected"), [(False, [0, 0.5, 0.5]), (True, [0, 1, 0])])
def test_double_selects_by_the_mean_of_the_online_net(
    make_spec: MakeSpec, make_batch: MakeBatch, double: bool, expected: list[float]
) -> None:
    c51 = make_c51(make_spec, ONLINE, SLOW, agent__algorithm__double=double)
    # 0.5 + 0.5 * 2 = 1.5, half on 1 and half on 2; by the online net 0.5 + 0.5 * 1 = 1
    metrics = c51.update(make_batch([S0], [0], [0.5], [S1], [0.5]), frame=0)
    entropy = -sum(p * math.log(p) for p in expected if p)
    assert metrics.values["loss"] == pytest.approx(math.log(3), rel=1e-5)  # of equal logits
    assert metrics.td_error is not None  # the priority is the divergence: what can be learned
    assert metrics.td_error.tolist() == pytest.approx([math.log(3) - entropy], rel=1e-5)
    assert metrics.values["q_value"] == pytest.approx(1.0)


def test_a_step_moves_the_taken_action_towards_the_target(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    sgd = {"name": "SGD", "lr": 0.1}
    c51 = make_c51(make_spec, ZERO, ZERO, agent__net__optim_spec=sgd)
    c51.update(make_batch([S0], [1], [2.0], [S1], [0.0]), frame=0)
    # Gradient softmax - target = (1/3, 1/3, 1/3 - 1)
    weight = c51.learner.state["net"][:12].view(6, 2).T.view(2, 2, 3)
    assert weight[0, 1].tolist() == pytest.approx([-0.1 / 3, -0.1 / 3, 0.2 / 3])
    assert weight[0, 0].tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("reward", "key"), [(1.5, "v_max"), (-0.5, "v_min"), (1.0, None), (0.0, None)]
)
def test_returns_beyond_the_support_are_told_once(
    make_spec: MakeSpec,
    make_batch: MakeBatch,
    reward: float,
    key: str | None,
) -> None:
    # s1 is worth 1 by equal logits: 1.5 + 0.9 is above 2, and -0.5 with nothing after it below 0.
    discount = 0.9 if reward > 1 else 0.0
    c51 = make_c51(make_spec, ZERO, ZERO)
    batch = make_batch([S0], [0], [reward], [S1], [discount])
    told: list[str] = []
    sink = logger.add(lambda message: told.append(message.record["message"]), level="WARNING")
    found = [c51.update(batch, frame=frame).values for frame in (8, 12)]
    logger.remove(sink)
    assert len(told) == (key is not None)
    if key is not None:
        assert told[0].startswith(f"agent.algorithm.{key}: at frame 8 the targets of 100% of the")
    for name in ("v_max", "v_min"):
        assert found[0][f"beyond_{name}"] == float(key == name)


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"v_max": 0}, r"agent\.algorithm\.v_max: found 0; expected more than v_min = 0"),
        ({"num_atoms": 1}, r"agent\.algorithm\.num_atoms: found 1; expected at least 2"),
    ],
)
def test_a_support_that_is_no_range_is_refused(
    make_spec: MakeSpec, values: dict[str, Any], fault: str
) -> None:
    with pytest.raises(SpecError, match=fault):
        make_spec("C51", SMALL | {f"agent.algorithm.{key}": value for key, value in values.items()})


def minimal(**algorithm: Any) -> Spec:
    tree = {
        "agent": {"algorithm": {"name": "Rainbow", **algorithm}},
        "env": {"name": algorithm.pop("env", "CartPole-v1"), "max_frame": 1000},
    }
    return spec_from_dict(tree)


def test_a_range_of_returns_must_be_chosen() -> None:
    with pytest.raises(SpecError) as caught:
        minimal()
    for key in ("v_min", "v_max"):
        assert f"agent.algorithm.{key}: missing, and Rainbow needs it" in str(caught.value)
    assert "r / (1 - gamma)" in str(caught.value)


def test_rainbow_is_all_parts_and_each_can_be_left_out() -> None:
    agent: Any = minimal(v_min=0, v_max=100).agent
    assert agent.algorithm.double
    assert agent.algorithm.n_step == 3
    assert agent.algorithm.explore_var_spec.start_val == 0.0
    assert agent.memory.name == "PrioritizedReplay"
    assert (agent.net.type, agent.net.noisy) == ("DuelingMLPNet", True)
    assert agent.label == "Rainbow"
    assert algorithm_label("Rainbow", "Replay") == "Rainbow"
    assert algorithm_label("C51", "PrioritizedReplay") == "C51+PER"
    tree = {
        "agent": {
            "algorithm": {"name": "Rainbow", "v_min": 0, "v_max": 9, "double": False, "n_step": 1},
            "memory": {"name": "Replay"},
            "net": {"type": "MLPNet"},
        },
        "env": {"name": "CartPole-v1", "max_frame": 1000},
    }
    plain: Any = spec_from_dict(tree).agent
    assert [plain.algorithm.double, plain.net.noisy, plain.memory.prioritizes] == [False] * 3
    assert plain.algorithm.explore_var_spec.start_val == 1.0
    tree["env"]["name"] = "ALE/Pong-v5"
    del tree["agent"]["net"]
    assert spec_from_dict(tree).agent.net.type == "DuelingConvNet"
