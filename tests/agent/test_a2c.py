"""Advantage actor-critic: advantages and losses with numbers done by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from slm_lab.agent.agent import make_agent
from slm_lab.agent.algorithm.a2c import ActorCritic, policy_gradient_loss
from slm_lab.agent.algorithm.nets import Critic
from slm_lab.spec import Spec, SpecError
from slm_lab.types import Rollout, Spaces

MakeSpec = Callable[..., Spec]
MakeRollout = Callable[..., Rollout]

SPACES = Spaces((1,), "float32", "discrete", (2,))

# Zero nets: a uniform policy and V = 0; raw advantages; one env.
PLAIN: dict[str, Any] = {
    "agent.net.hid_layers": [],
    "agent.net.init_fn": "zeros_",
    "agent.algorithm.normalize_advantages": False,
    "agent.algorithm.gamma": 0.5,
    "agent.algorithm.lam": 0.5,
    "env.num_envs": 1,
}


def make_a2c(spec: Spec) -> ActorCritic:
    algorithm = make_agent(spec, SPACES, seed=0).algorithm
    assert isinstance(algorithm, ActorCritic)
    return algorithm


def value_is_obs(a2c: ActorCritic) -> None:
    """V(s) = s: a linear critic with weight 1."""
    next(iter(a2c.modules["critic_net"].parameters())).fill_(1.0)


@pytest.fixture
def three_steps(make_rollout: MakeRollout) -> Rollout:
    """s = 1, 2, 4 then 8, rewards 1, 2, 3, no ending."""
    return make_rollout([[1.0], [2.0], [4.0], [8.0]], [[0], [1], [0]], [[1.0], [2.0], [3.0]])


def test_the_policy_gradient_loss_is_minus_the_mean_of_log_prob_times_advantage() -> None:
    # -(-1 * 2 + -0.5 * -4) / 2 = -(-2 + 2) / 2 = 0 and -(-1 * 3) = 3
    assert policy_gradient_loss(torch.tensor([-1.0, -0.5]), torch.tensor([2.0, -4.0])).item() == 0.0
    assert policy_gradient_loss(torch.tensor([-1.0]), torch.tensor([3.0])).item() == 3.0


def test_with_lambda_advantages_are_gae(make_spec: MakeSpec, three_steps: Rollout) -> None:
    a2c = make_a2c(make_spec("ActorCritic", PLAIN))
    value_is_obs(a2c)
    advantage, target, _ = a2c._advantages(three_steps)
    # delta = 1 + 1 - 1 = 1; 2 + 2 - 2 = 2; 3 + 4 - 4 = 3
    # A_2 = 3; A_1 = 2 + 0.25 * 3 = 2.75; A_0 = 1 + 0.25 * 2.75 = 1.6875
    assert advantage.tolist() == pytest.approx([1.6875, 2.75, 3.0])
    assert target.tolist() == pytest.approx([2.6875, 4.75, 7.0])


def test_without_lambda_n_steps_decide(make_spec: MakeSpec, three_steps: Rollout) -> None:
    values = PLAIN | {"agent.algorithm.lam": None, "agent.algorithm.num_step_returns": 2}
    a2c = make_a2c(make_spec("ActorCritic", values))
    value_is_obs(a2c)
    advantage, target, _ = a2c._advantages(three_steps)
    # G_0 = 1 + 0.5 * 2 + 0.25 * 4 = 3; G_1 = 2 + 1.5 + 0.25 * 8 = 5.5; G_2 = 3 + 0.5 * 8 = 7
    assert target.tolist() == pytest.approx([3.0, 5.5, 7.0])
    assert advantage.tolist() == pytest.approx([2.0, 3.5, 3.0])


def test_without_either_the_whole_rollout_is_the_return(
    make_spec: MakeSpec, three_steps: Rollout
) -> None:
    a2c = make_a2c(make_spec("ActorCritic", PLAIN | {"agent.algorithm.lam": None}))
    value_is_obs(a2c)
    _, target, _ = a2c._advantages(three_steps)
    # G_2 = 3 + 0.5 * 8 = 7; G_1 = 2 + 3.5 = 5.5; G_0 = 1 + 2.75 = 3.75
    assert target.tolist() == pytest.approx([3.75, 5.5, 7.0])


def test_n_step_returns_set_the_length_of_a_rollout(make_spec: MakeSpec) -> None:
    n_step = {"agent.algorithm.lam": None, "agent.algorithm.num_step_returns": 5}
    for values, expected in ((n_step, 5), ({}, 8), ({"agent.algorithm.num_step_returns": 5}, 8)):
        spec = make_spec("ActorCritic", values).agent.algorithm
        assert spec.rollout_length == expected  # type: ignore[attr-defined]


def test_the_loss_weighs_policy_value_and_entropy(make_spec: MakeSpec) -> None:
    coefficients = {"agent.algorithm.policy_loss_coef": 2.0, "agent.algorithm.val_loss_coef": 0.5}
    a2c = make_a2c(make_spec("ActorCritic", PLAIN | coefficients))
    a2c.learner.set_coefficients(entropy_coef=0.1)
    loss, metrics = a2c.loss(
        a2c.learner.state,
        torch.zeros(2, 1),
        torch.tensor([0, 1]),
        torch.tensor([1.0, 3.0]),
        torch.tensor([1.0, 3.0]),
    )
    # log 1/2 for both: policy 2 * ln 2 * (1 + 3) / 2; value 0.5 * (1 + 9) / 2; entropy ln 2
    assert metrics["policy_loss"].item() == pytest.approx(4 * math.log(2))
    assert metrics["value_loss"].item() == pytest.approx(2.5)
    assert loss.item() == pytest.approx(4 * math.log(2) + 2.5 - 0.1 * math.log(2))


def test_the_critics_own_loss_spec_is_the_value_loss(make_spec: MakeSpec) -> None:
    own = {"agent.net.critic_loss_spec": {"name": "L1Loss"}}
    a2c = make_a2c(make_spec("ActorCritic", PLAIN | own))
    _, metrics = a2c.loss(
        a2c.learner.state,
        torch.zeros(2, 1),
        torch.tensor([0, 1]),
        torch.tensor([1.0, 3.0]),
        torch.tensor([1.0, 3.0]),
    )
    assert metrics["value_loss"].item() == pytest.approx(2.0)  # (1 + 3) / 2


def test_one_sgd_step_moves_the_policy_along_the_policy_gradient(
    make_spec: MakeSpec, make_rollout: MakeRollout
) -> None:
    values = PLAIN | {"agent.net.optim_spec": {"name": "SGD", "lr": 1.0}}
    a2c = make_a2c(make_spec("ActorCritic", values))
    # One terminated step: action 1, reward 2, V = 0, so A = 2.
    a2c.update(make_rollout([[0.0], [0.0]], [[1]], [[2.0]], [[True]]), frame=1)
    # d(-2 log pi(1)) / d logits = -2 (onehot - 1/2) = (1, -1); the biases move by its negative.
    bias = list(a2c.modules["net"].parameters())[-1]
    assert bias.tolist() == pytest.approx([-1.0, 1.0])
    # The value moves by -lr * 2 (V - 2) = 4 under a squared error.
    assert list(a2c.modules["critic_net"].parameters())[-1].item() == pytest.approx(4.0)


def test_advantages_are_standardized_over_the_rollout(
    make_spec: MakeSpec, three_steps: Rollout
) -> None:
    a2c = make_a2c(make_spec("ActorCritic", PLAIN | {"agent.algorithm.normalize_advantages": True}))
    advantage, _, _ = a2c._advantages(three_steps)
    assert advantage.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert advantage.std().item() == pytest.approx(1.0)


def test_percentile_advantages_are_refused_instead_of_ignored(make_spec: MakeSpec) -> None:
    spec = make_spec("ActorCritic", {"agent.algorithm.normalize_advantages": "percentile"})
    with pytest.raises(SpecError, match=r"agent\.algorithm\.normalize_advantages: percentile"):
        make_agent(spec, SPACES, seed=0)


@pytest.mark.parametrize(("shared", "opt_steps"), [(True, 1), (False, 2)])
def test_an_update_is_one_step_per_net(
    make_spec: MakeSpec, three_steps: Rollout, shared: bool, opt_steps: int
) -> None:
    a2c = make_a2c(make_spec("ActorCritic", {"agent.net.shared": shared, "env.num_envs": 1}))
    metrics = a2c.update(three_steps, frame=3)
    assert metrics.opt_steps == opt_steps
    assert {"loss", "policy_loss", "value_loss", "entropy", "grad_norm", "lr"} <= set(
        metrics.values
    )


def test_the_entropy_schedule_reaches_the_loss(make_spec: MakeSpec, three_steps: Rollout) -> None:
    decay = {
        "name": "linear_decay",
        "start_val": 0.2,
        "end_val": 0.0,
        "start_step": 0,
        "end_step": 100,
    }
    a2c = make_a2c(
        make_spec("ActorCritic", {"agent.algorithm.entropy_coef_spec": decay, "env.num_envs": 1})
    )
    assert a2c.update(three_steps, frame=75).values["entropy_coef"] == pytest.approx(0.05)
    assert a2c.learner.state["entropy_coef"].item() == pytest.approx(0.05)


def test_an_entropy_bonus_flattens_the_policy(
    make_spec: MakeSpec, make_rollout: MakeRollout
) -> None:
    bonus = {"agent.algorithm.entropy_coef_spec": {"name": "no_decay", "start_val": 1.0}}
    a2c = make_a2c(make_spec("ActorCritic", PLAIN | bonus))
    bias = list(a2c.modules["net"].parameters())[-1]
    bias.copy_(torch.tensor([1.0, -1.0]))
    nothing = make_rollout([[0.0], [0.0]], [[0]], [[0.0]], [[True]])
    entropy = [a2c.update(nothing, frame=1).values["entropy"] for _ in range(20)]
    assert entropy[-1] > entropy[0]


def test_normalized_targets_leave_the_first_advantages_in_reward_units(
    make_spec: MakeSpec, three_steps: Rollout
) -> None:
    a2c = make_a2c(make_spec("ActorCritic", PLAIN | {"agent.algorithm.normalize_v_targets": True}))
    assert isinstance(a2c.critic, Critic)
    value_is_obs(a2c)
    advantage, target, _ = a2c._advantages(three_steps)
    assert advantage.tolist() == pytest.approx([1.6875, 2.75, 3.0])
    # Targets 2.6875, 4.75, 7 with their own mean and (biased) std removed.
    raw = torch.tensor([2.6875, 4.75, 7.0])
    expected = (raw - raw.mean()) / raw.std(correction=0)
    torch.testing.assert_close(target, expected, rtol=1e-4, atol=1e-4)


def test_extra_critic_steps_fit_the_value_and_leave_the_policy_alone(
    make_spec: MakeSpec, three_steps: Rollout
) -> None:
    def value_loss_after_one_update(critic_iter: int) -> float:
        options = {
            "agent.algorithm.policy_loss_coef": 0.0,
            "agent.algorithm.critic_iter": critic_iter,
        }
        a2c = make_a2c(make_spec("ActorCritic", PLAIN | options))
        policy = a2c.learner.state["net"].clone()
        assert a2c.update(three_steps, 1).opt_steps == 2 + critic_iter
        assert torch.equal(a2c.learner.state["net"], policy)
        return a2c.update(three_steps, 2).values["value_loss"]

    assert value_loss_after_one_update(10) < value_loss_after_one_update(0)


def test_extra_critic_steps_weigh_the_value_loss_as_the_others_do(make_spec: MakeSpec) -> None:
    a2c = make_a2c(make_spec("ActorCritic", PLAIN | {"agent.algorithm.val_loss_coef": 0.25}))
    loss, _ = a2c.critic_loss(a2c.learner.state, torch.zeros(2, 1), torch.tensor([1.0, 3.0]))
    assert loss.item() == pytest.approx(0.25 * (1 + 9) / 2)
