"""QR-DQN: targets and losses by hand, alone and with double selection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.agent import make_agent
from slm_lab.agent.algorithm.qrdqn import QRDQN, quantile_target
from slm_lab.agent.net.mlp import make_net
from slm_lab.spec import DuelingMLPNetSpec, SpecError, spec_from_dict
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

# A table of two quantiles of each action.
SMALL = TABLE | {"agent.algorithm.num_quantiles": 2}
Table = list[list[list[float]]]  # [state][action][quantile]


def make_qrdqn(make_spec: MakeSpec, online: Table, target: Table, **keys: Any) -> QRDQN:
    values = {key.replace("__", "."): value for key, value in keys.items()}
    made = make_linear(QRDQN, make_spec("QRDQN", SMALL | values), TWO_STATES)
    made.learner.state["net"].copy_(flat_table(online))
    made.learner.state["target_net"].copy_(flat_table(target))
    return made


def test_the_target_moves_every_quantile_of_the_next_action() -> None:
    quantiles = torch.tensor([[1.0, 5.0], [2.0, 4.0]])
    # 1 + 0.5 * (1, 5); after a termination the reward alone
    target = quantile_target(torch.tensor([1.0, 7.0]), torch.tensor([0.5, 0.0]), quantiles)
    assert target.tolist() == [[1.5, 3.5], [7.0, 7.0]]


# Q of s1: online (0 + 2) / 2 = 1 and (1 + 5) / 2 = 3, target (4 + 8) / 2 = 6 and (0 + 2) / 2 = 1.
ONLINE: Table = [[[0.0, 0.0], [0.0, 0.0]], [[0.0, 2.0], [1.0, 5.0]]]
SLOW: Table = [[[0.0, 0.0], [0.0, 0.0]], [[4.0, 8.0], [0.0, 2.0]]]


@pytest.mark.parametrize(
    ("double", "loss"),
    [
        # 1 + 0.5 * (4, 8) = (3, 5): Huber of 3 is 2.5 and of 5 is 4.5, their mean 3.5, times
        # 1/4 + 3/4
        (False, 3.5),
        # the online net prefers action 1: 1 + 0.5 * (0, 2) = (1, 2): Huber 0.5 and 1.5, mean 1
        (True, 1.0),
    ],
)
def test_double_selects_by_the_mean_of_the_online_net(
    make_spec: MakeSpec, make_batch: MakeBatch, double: bool, loss: float
) -> None:
    qrdqn = make_qrdqn(make_spec, ONLINE, SLOW, agent__algorithm__double=double)
    metrics = qrdqn.update(make_batch([S0], [0], [1.0], [S1], [0.5]), frame=0)
    assert metrics.values["loss"] == pytest.approx(loss)
    assert metrics.td_error is not None
    assert metrics.td_error.tolist() == pytest.approx([loss])  # the priority of a row is its loss


def test_the_quantiles_of_the_taken_action_move_apart(
    make_spec: MakeSpec, make_batch: MakeBatch
) -> None:
    zero: Table = [[[0.0, 0.0], [0.0, 0.0]]] * 2
    qrdqn = make_qrdqn(make_spec, zero, zero, agent__algorithm__kappa=10.0)
    qrdqn.update(make_batch([S0], [1], [2.0], [S1], [0.0]), frame=0)
    # Gradient -|tau - 0| * error / kappa = -(1/4, 3/4) * 2 / 10, rate 0.1; the mean of targets, two
    # alike, changes nothing.
    weight = qrdqn.learner.state["net"][:8].view(4, 2).T.view(2, 2, 2)
    assert weight[0, 1].tolist() == pytest.approx([0.005, 0.015])
    assert weight[0, 0].tolist() == [0.0, 0.0]
    assert weight[1].flatten().tolist() == [0.0] * 4


def test_weights_of_priorities_scale_rows(make_spec: MakeSpec, make_batch: MakeBatch) -> None:
    qrdqn = make_qrdqn(make_spec, ONLINE, SLOW, agent__memory__batch_size=2)
    batch = make_batch([S0, S0], [0, 0], [1.0, 1.0], [S1, S1], [0.5, 0.5], [1.0, 0.5])
    metrics = qrdqn.update(batch, frame=0)
    assert metrics.values["loss"] == pytest.approx((3.5 + 0.5 * 3.5) / 2)
    assert metrics.td_error is not None
    assert metrics.td_error.tolist() == pytest.approx([3.5, 3.5])


def test_actions_go_by_the_mean_quantile(make_spec: MakeSpec) -> None:
    # s0: means 2 and 3, though the largest quantile is the first action's
    table: Table = [[[-5.0, 9.0], [3.0, 3.0]], [[1.0, 1.0], [0.0, 1.0]]]
    agent = make_agent(make_spec("QRDQN", SMALL), TWO_STATES, seed=0)
    assert isinstance(agent.algorithm, QRDQN)
    agent.algorithm.learner.state["net"].copy_(flat_table(table))
    obs = np.array([S0, S1, S0, S1], np.float32)
    assert agent.act(obs, explore=False).tolist() == [1, 0, 1, 0]
    never = {"agent.algorithm.explore_var_spec": {"name": "no_decay", "start_val": 0.0}}
    greedy = make_agent(make_spec("QRDQN", SMALL | never), TWO_STATES, seed=0)
    greedy.load_state_dict(agent.state_dict())
    assert greedy.act(obs).tolist() == [1, 0, 1, 0]


def test_a_dueling_net_has_streams_for_every_quantile() -> None:
    spec = DuelingMLPNetSpec(type="DuelingMLPNet", hid_layers=())
    net = make_net(spec, (1,), (4,), atoms=2)
    state = {
        "v.weight": [[1.0], [10.0]],
        "v.bias": [0.0, 0.0],
        "adv.weight": [[1.0], [2.0], [3.0], [6.0]],
        "adv.bias": [0.0] * 4,
    }
    net.load_state_dict({key: torch.tensor(value) for key, value in state.items()})
    # V = (1, 10), A = ((1, 2), (3, 6)) with the mean (2, 4) over actions
    (found,) = net(torch.ones(1, 1))
    assert found.view(2, 2).tolist() == [[0.0, 8.0], [2.0, 12.0]]


def test_a_regression_loss_has_no_effect_and_a_line_says_so() -> None:
    tree = {
        "agent": {"algorithm": {"name": "QR-DQN"}, "net": {"loss_spec": {"name": "SmoothL1Loss"}}},
        "env": {"name": "CartPole-v1", "max_frame": 100},
    }
    with pytest.warns(UserWarning, match=r"without effect.*agent\.net\.loss_spec \(QRDQN has a"):
        spec_from_dict(tree)


def test_no_quantile_is_refused(make_spec: MakeSpec) -> None:
    with pytest.raises(SpecError, match=r"agent\.algorithm\.num_quantiles: found 0"):
        make_spec("QRDQN", {"agent.algorithm.num_quantiles": 0})
