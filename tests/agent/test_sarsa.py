"""SARSA: the target uses the action that was really taken next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from slm_lab.agent.agent import make_agent
from slm_lab.agent.algorithm.sarsa import SARSA, sarsa_target
from slm_lab.spec import Spec
from slm_lab.types import Rollout, Spaces

MakeSpec = Callable[..., Spec]
MakeRollout = Callable[..., Rollout]
SPACES = Spaces((1,), "float32", "discrete", (2,))


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values)[:, None]


def target_of(
    q: list[float], reward: list[float], terminated: int | None = None, truncated: int | None = None
) -> tuple[list[float], list[bool]]:
    steps = torch.arange(len(q))[:, None]
    none = torch.zeros_like(steps, dtype=torch.bool)
    target, counts = sarsa_target(
        column(*reward),
        column(*q),
        none if terminated is None else steps == terminated,
        none if truncated is None else steps == truncated,
        gamma=0.5,
    )
    return target.flatten().tolist(), counts.flatten().tolist()


def test_the_target_is_the_reward_and_the_discounted_value_of_the_next_action() -> None:
    target, counts = target_of(q=[9.0, 4.0, 2.0], reward=[1.0, 1.0, 1.0])
    assert target[:2] == [3.0, 2.0]  # 1 + 4/2, 1 + 2/2
    assert counts == [True, True, False]  # the newest step has no next action yet


def test_a_termination_counts_with_its_reward_alone() -> None:
    target, counts = target_of(q=[9.0, 4.0, 2.0], reward=[1.0, 5.0, 1.0], terminated=1)
    assert target[:2] == [3.0, 5.0]
    assert counts == [True, True, False]
    target, counts = target_of(q=[9.0, 4.0, 2.0], reward=[1.0, 1.0, 7.0], terminated=2)
    assert target[2] == 7.0
    assert counts == [True, True, True]  # even in the last row


def test_a_truncated_step_is_left_out() -> None:
    # The next action belongs to another episode.
    _, counts = target_of(q=[9.0, 4.0, 2.0], reward=[1.0, 1.0, 1.0], truncated=1)
    assert counts == [True, False, False]


def test_envs_do_not_mix() -> None:
    q = torch.tensor([[0.0, 0.0], [2.0, 20.0]])
    none = torch.zeros(2, 2, dtype=torch.bool)
    target, _ = sarsa_target(torch.zeros(2, 2), q, none, none, gamma=0.5)
    assert target[0].tolist() == [1.0, 10.0]


def make_sarsa(make_spec: MakeSpec, bias: list[float], **keys: Any) -> SARSA:
    """Q(s, a) = bias[a], whatever the state."""
    values = {
        "agent.net.hid_layers": [],
        "agent.net.init_fn": "zeros_",
        "agent.net.optim_spec": {"name": "SGD", "lr": 0.1},
        "agent.algorithm.gamma": 0.5,
        "env.num_envs": 1,
    }
    sarsa = make_agent(make_spec("SARSA", values | keys), SPACES, seed=0).algorithm
    assert isinstance(sarsa, SARSA)
    list(sarsa.modules["net"].parameters())[-1].copy_(torch.tensor(bias))
    return sarsa


def test_an_update_by_hand(make_spec: MakeSpec, make_rollout: MakeRollout) -> None:
    sarsa = make_sarsa(make_spec, [2.0, 4.0])
    # Actions 0, 1, 0, then a termination by action 1; observations are 0, so only biases move.
    rollout = make_rollout(
        obs=[[0.0]] * 5,
        action=[[0], [1], [0], [1]],
        reward=[[1.0], [1.0], [1.0], [1.0]],
        terminated=[[False], [False], [False], [True]],
    )
    metrics = sarsa.update(rollout, frame=4)
    # Targets 1 + 4/2 = 3, 1 + 2/2 = 2, 1 + 4/2 = 3, 1; errors from (2, 4, 2, 4): 1, -2, 1, -3.
    assert metrics.values["loss"] == pytest.approx((1 + 4 + 1 + 9) / 4)
    # Gradient of the mean: -2 (1 + 1) / 4 = -1 and 2 (2 + 3) / 4 = 2.5.
    bias = list(sarsa.modules["net"].parameters())[-1]
    assert bias.tolist() == pytest.approx([2.0 + 0.1, 4.0 - 0.25])
    assert metrics.opt_steps == 1
    assert set(metrics.values) == {"loss", "q_value", "grad_norm", "explore_var", "lr"}


def test_the_mean_is_over_the_rows_that_count(
    make_spec: MakeSpec, make_rollout: MakeRollout
) -> None:
    sarsa = make_sarsa(make_spec, [2.0, 4.0])
    rollout = make_rollout(
        obs=[[0.0]] * 5,
        action=[[0], [1], [0], [0]],
        reward=[[1.0]] * 4,
        truncated=[[False], [True], [False], [False]],
        final_obs={(1, 0): 5.0},
    )
    # Rows 0 and 2 count: targets 1 + 4/2 and 1 + 2/2, errors 1 and 0.
    assert sarsa.update(rollout, frame=4).values["loss"] == pytest.approx(0.5)


def test_a_rollout_without_a_target_teaches_nothing(
    make_spec: MakeSpec, make_rollout: MakeRollout
) -> None:
    sarsa = make_sarsa(make_spec, [2.0, 4.0])
    before = sarsa.learner.state["net"].clone()
    metrics = sarsa.update(make_rollout([[0.0], [0.0]], [[0]], [[1.0]]), frame=1)
    assert metrics.values["loss"] == 0.0
    assert torch.equal(sarsa.learner.state["net"], before)


def test_the_target_carries_no_gradient(make_spec: MakeSpec, make_rollout: MakeRollout) -> None:
    sarsa = make_sarsa(make_spec, [0.0, 4.0])
    rollout = make_rollout([[0.0]] * 3, [[0], [1]], [[0.0], [0.0]])
    sarsa.update(rollout, frame=2)
    bias = list(sarsa.modules["net"].parameters())[-1]
    assert bias.tolist() == pytest.approx([0.4, 4.0])  # towards 2; the action after it stays
