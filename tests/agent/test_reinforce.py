"""REINFORCE: returns, losses and the tail of a cut episode, with numbers done by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from slm_lab.agent.agent import make_agent
from slm_lab.agent.algorithm.reinforce import Reinforce
from slm_lab.spec import Spec
from slm_lab.types import Rollout, Spaces

MakeSpec = Callable[..., Spec]
MakeRollout = Callable[..., Rollout]

SPACES = Spaces((1,), "float32", "discrete", (2,))
PLAIN: dict[str, Any] = {
    "agent.net.hid_layers": [],
    "agent.net.init_fn": "zeros_",
    "agent.algorithm.gamma": 0.5,
    "env.num_envs": 1,
}


def make_reinforce(spec: Spec) -> Reinforce:
    algorithm = make_agent(spec, SPACES, seed=0).algorithm
    assert isinstance(algorithm, Reinforce)
    return algorithm


@pytest.fixture
def one_episode(make_rollout: MakeRollout) -> Rollout:
    """Rewards 1, 1, then the end: returns 1.5 and 1 with gamma 0.5."""
    return make_rollout([[0.0]] * 3, [[1], [0]], [[1.0], [1.0]], [[False], [True]])


def test_advantages_are_standardized_rewards_to_go(
    make_spec: MakeSpec, one_episode: Rollout
) -> None:
    reinforce = make_reinforce(make_spec("Reinforce", PLAIN))
    # mean 1.25, unbiased std 0.25 sqrt 2: -+ 1 / sqrt 2
    expected = [math.sqrt(0.5), -math.sqrt(0.5)]
    assert reinforce._advantage(one_episode).tolist() == pytest.approx(expected)


def test_centering_before_standardizing_changes_nothing(
    make_spec: MakeSpec, one_episode: Rollout
) -> None:
    values = PLAIN | {"agent.algorithm.center_return": True}
    centered = make_reinforce(make_spec("Reinforce", values))
    expected = [math.sqrt(0.5), -math.sqrt(0.5)]
    assert centered._advantage(one_episode).tolist() == pytest.approx(expected)


def test_the_unknown_tail_of_a_cut_episode_is_the_mean_return_so_far(
    make_spec: MakeSpec, make_rollout: MakeRollout, one_episode: Rollout
) -> None:
    reinforce = make_reinforce(make_spec("Reinforce", PLAIN))
    reinforce._advantage(one_episode)  # mean return 1.25
    # Step 0 is cut by time, step 1 ends, step 2 is cut by the end of the rollout:
    # 0 + 0.5 * 1.25 = 0.625, then 1, then 2 + 0.625 = 2.625.
    cut = make_rollout(
        [[0.0]] * 4,
        [[0], [0], [0]],
        [[0.0], [1.0], [2.0]],
        terminated=[[False], [True], [False]],
        truncated=[[True], [False], [False]],
        final_obs={(0, 0): 0.0},
    )
    returns = torch.tensor([0.625, 1.0, 2.625])
    expected = (returns - returns.mean()) / returns.std()
    torch.testing.assert_close(reinforce._advantage(cut), expected)


def test_episodes_do_not_leak_into_each_other(
    make_spec: MakeSpec, make_rollout: MakeRollout
) -> None:
    reinforce = make_reinforce(make_spec("Reinforce", PLAIN))
    two = make_rollout([[0.0]] * 3, [[0], [0]], [[1.0], [100.0]], [[True], [True]])
    returns = torch.tensor([1.0, 100.0])
    expected = (returns - returns.mean()) / returns.std()
    torch.testing.assert_close(reinforce._advantage(two), expected)


def test_the_loss_weighs_policy_and_entropy(make_spec: MakeSpec) -> None:
    values = PLAIN | {"agent.algorithm.policy_loss_coef": 3.0}
    reinforce = make_reinforce(make_spec("Reinforce", values))
    reinforce.learner.set_coefficients(entropy_coef=0.1)
    loss, metrics = reinforce.loss(
        reinforce.learner.state, torch.zeros(2, 1), torch.tensor([0, 1]), torch.tensor([1.0, 3.0])
    )
    # -3 * log(1/2) * (1 + 3) / 2 = 6 ln 2
    assert metrics["policy_loss"].item() == pytest.approx(6 * math.log(2))
    assert loss.item() == pytest.approx(5.9 * math.log(2))


def test_an_update_is_one_gradient_step(make_spec: MakeSpec, one_episode: Rollout) -> None:
    values = PLAIN | {
        "agent.net.optim_spec": {"name": "SGD", "lr": 1.0},
        "agent.algorithm.entropy_coef_spec": {"name": "no_decay", "start_val": 0.01},
    }
    reinforce = make_reinforce(make_spec("Reinforce", values))
    metrics = reinforce.update(one_episode, frame=2)
    assert metrics.opt_steps == 1
    assert metrics.values["entropy_coef"] == 0.01
    # Gradient of -mean(log pi(a) A) on the biases, uniform policy, A = +-s with s = sqrt 0.5:
    # action 1 with +s, action 0 with -s: logits move by (-s, s) * (1/2 + 1/2) / 2 each way
    s = math.sqrt(0.5)
    bias = list(reinforce.modules["net"].parameters())[-1]
    assert bias.tolist() == pytest.approx([-s / 2, s / 2])


def test_saved_state_includes_the_mean_return(make_spec: MakeSpec, one_episode: Rollout) -> None:
    original, restored = (make_reinforce(make_spec("Reinforce", PLAIN)) for _ in range(2))
    original.update(one_episode, frame=2)
    restored.load_state_dict(original.state_dict())
    cut = Rollout(
        one_episode.obs,
        one_episode.action,
        one_episode.reward,
        one_episode.terminated & False,
        one_episode.truncated,
        one_episode.final_index,
        one_episode.final_obs,
    )
    assert torch.equal(original._advantage(cut), restored._advantage(cut))
