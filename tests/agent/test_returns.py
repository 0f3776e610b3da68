"""Returns and advantages: numbers done by hand, and the fast scan against a plain loop."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from slm_lab.agent.learning.returns import (
    discounted_returns,
    discounted_scan,
    explained_variance,
    gae,
    n_step_returns,
    standardize,
)

F, T = False, True


def column(values: Sequence[float | bool]) -> Tensor:
    """One env: [T] -> [T, 1]."""
    return torch.tensor(values).unsqueeze(1)


def assert_column(found: Tensor, expected: Sequence[float]) -> None:
    torch.testing.assert_close(found, column(expected))


@given(length=st.integers(1, 40), lanes=st.integers(1, 3), seed=st.integers(0, 1000))
def test_the_scan_equals_a_plain_backward_loop(length: int, lanes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(length, lanes, generator=generator, dtype=torch.float64)
    decay = torch.rand(length, lanes, generator=generator, dtype=torch.float64)
    decay[torch.rand(length, lanes, generator=generator) < 0.2] = 0.0

    expected = torch.zeros_like(x)
    following = torch.zeros(lanes, dtype=torch.float64)
    for t in reversed(range(length)):
        following = x[t] + decay[t] * following
        expected[t] = following

    torch.testing.assert_close(discounted_scan(x, decay), expected)


def test_the_scan_leaves_its_inputs_alone() -> None:
    x, decay = torch.ones(5, 1), torch.full((5, 1), 0.5)
    discounted_scan(x, decay)
    assert x.eq(1).all()
    assert decay.eq(0.5).all()


# Six steps of one env, gamma = lam = 0.5. Step 2 is truncated, step 4 terminates, the rollout
# ends while the third episode runs. next_value is V of the true successor: for step 2 that is the
# final observation (30), not the next episode's first (4).
REWARD = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
VALUE = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
NEXT_VALUE = [2.0, 3.0, 30.0, 5.0, 50.0, 8.0]
TERMINATED = [F, F, F, F, T, F]
TRUNCATED = [F, F, T, F, F, F]
EPISODES = (column(NEXT_VALUE), column(TERMINATED), column(TRUNCATED))


def test_gae_of_a_rollout_with_a_truncation_and_a_termination() -> None:
    # delta_t = r_t + 0.5 V(s_{t+1}) - V(s_t)
    #   delta = 1 + 1 - 1 = 1        2 + 1.5 - 2 = 1.5     3 + 15 - 3 = 15 (bootstraps)
    #           4 + 2.5 - 4 = 2.5    5 + 0 - 5 = 0 (ends)  6 + 4 - 6 = 4
    # A_t = delta_t + 0.25 A_{t+1}, restarting after steps 2 and 4
    #   A_5 = 4                      A_4 = 0               A_3 = 2.5 + 0.25 * 0 = 2.5
    #   A_2 = 15                     A_1 = 1.5 + 0.25 * 15 = 5.25
    #   A_0 = 1 + 0.25 * 5.25 = 2.3125
    found = gae(column(REWARD), column(VALUE), *EPISODES, gamma=0.5, lam=0.5)
    assert_column(found, [2.3125, 5.25, 15.0, 2.5, 0.0, 4.0])


def test_truncation_bootstraps_but_cuts_the_trace() -> None:
    arguments = {"gamma": 0.5, "lam": 0.5}
    reward, value = column([0.0, 0.0]), column([0.0, 0.0])
    truncated = column([T, F])

    bootstrapped = gae(
        reward, value, column([8.0, 0.0]), ~truncated & False, truncated, **arguments
    )
    assert_column(bootstrapped, [4.0, 0.0])

    # The second step belongs to another episode: its advantage does not leak into the first.
    other = gae(
        column([0.0, 100.0]), value, column([8.0, 0.0]), ~truncated & False, truncated, **arguments
    )
    assert other[0].item() == 4.0


def test_termination_cuts_both_the_bootstrap_and_the_trace() -> None:
    terminated = column([T, F])
    found = gae(
        column([1.0, 100.0]),
        column([0.0, 0.0]),
        column([8.0, 0.0]),
        terminated,
        terminated & False,
        gamma=0.5,
        lam=0.5,
    )
    assert found[0].item() == 1.0


def test_gae_with_lambda_one_is_the_discounted_return_minus_the_value() -> None:
    advantage = gae(column(REWARD), column(VALUE), *EPISODES, gamma=0.9, lam=1.0)
    returns = discounted_returns(column(REWARD), *EPISODES, gamma=0.9)
    torch.testing.assert_close(advantage, returns - column(VALUE))


def test_gae_with_lambda_zero_is_the_td_error() -> None:
    advantage = gae(column(REWARD), column(VALUE), *EPISODES, gamma=0.5, lam=0.0)
    assert_column(advantage, [1.0, 1.5, 15.0, 2.5, 0.0, 4.0])


def test_discounted_returns_add_the_value_of_a_cut_episode_only() -> None:
    # G_5 = 6 + 0.5 * 8 = 10 (the rollout ends)   G_4 = 5 (terminated)   G_3 = 4 + 0.5 * 5 = 6.5
    # G_2 = 3 + 0.5 * 30 = 18 (truncated)         G_1 = 2 + 9 = 11       G_0 = 1 + 5.5 = 6.5
    found = discounted_returns(column(REWARD), *EPISODES, gamma=0.5)
    assert_column(found, [6.5, 11.0, 18.0, 6.5, 5.0, 10.0])


def test_nothing_follows_a_rollout_whose_last_step_terminates() -> None:
    ends = column([9.0, 9.0]), column([F, T]), column([F, F])
    # G_1 = 2, whatever is said of V after it; G_0 = 1 + 0.5 * 2
    assert_column(discounted_returns(column([1.0, 2.0]), *ends, gamma=0.5), [2.0, 2.0])


def test_two_step_returns_stop_at_endings_and_at_the_end_of_the_rollout() -> None:
    # G_0 = 1 + 0.5 * 2 + 0.25 * V(s_2) = 1 + 1 + 0.75 = 2.75
    # G_1 = 2 + 0.5 * 3 + 0.25 * 30 = 11 (truncated after the second reward)
    # G_2 = 3 + 0.5 * 30 = 18 (truncated)     G_3 = 4 + 0.5 * 5 = 6.5 (terminated)
    # G_4 = 5 (terminated)                    G_5 = 6 + 0.5 * 8 = 10 (rollout ends)
    found = n_step_returns(column(REWARD), *EPISODES, gamma=0.5, n=2)
    assert_column(found, [2.75, 11.0, 18.0, 6.5, 5.0, 10.0])


def test_one_step_returns_are_td_targets() -> None:
    found = n_step_returns(column(REWARD), *EPISODES, gamma=0.5, n=1)
    assert_column(found, [2.0, 3.5, 18.0, 6.5, 5.0, 10.0])


def test_n_steps_beyond_the_rollout_are_discounted_returns() -> None:
    torch.testing.assert_close(
        n_step_returns(column(REWARD), *EPISODES, gamma=0.9, n=10),
        discounted_returns(column(REWARD), *EPISODES, gamma=0.9),
    )


@pytest.mark.parametrize("kind", ["gae", "n_step", "discounted"])
def test_envs_are_independent_lanes(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    reward, value, next_value = (torch.randn(7, 3, generator=generator) for _ in range(3))
    terminated, truncated = (torch.rand(7, 3, generator=generator) < 0.2 for _ in range(2))

    def returns(lanes: slice) -> Tensor:
        r, v, n, te, tr = (x[:, lanes] for x in (reward, value, next_value, terminated, truncated))
        if kind == "gae":
            return gae(r, v, n, te, tr, 0.9, 0.8)
        if kind == "n_step":
            return n_step_returns(r, n, te, tr, 0.9, 3)
        return discounted_returns(r, n, te, tr, 0.9)

    together = returns(slice(None))
    alone = torch.cat([returns(slice(b, b + 1)) for b in range(3)], dim=1)
    torch.testing.assert_close(together, alone)


def test_standardizing_uses_the_unbiased_standard_deviation() -> None:
    # mean 2, unbiased variance (1 + 0 + 1) / 2 = 1
    torch.testing.assert_close(
        standardize(torch.tensor([1.0, 2.0, 3.0])), torch.tensor([-1.0, 0, 1])
    )


def test_a_single_advantage_is_not_standardized_to_nothing() -> None:
    assert standardize(torch.tensor([3.0])).item() == 3.0


def test_equal_advantages_become_zero() -> None:
    assert standardize(torch.full((4,), 5.0)).eq(0).all()


def test_explained_variance_is_one_for_a_perfect_critic_and_zero_for_a_constant() -> None:
    target = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert explained_variance(target, target).item() == 1.0
    assert explained_variance(target + 7, target).item() == 1.0  # an offset explains the same
    assert explained_variance(torch.full((4,), 2.5), target).item() == 0.0
    # errors -3, -1, 1, 3 around their mean 0: variance 5 over that of the targets, 1.25
    assert explained_variance(-target, target).item() == pytest.approx(1 - 5 / 1.25)


def test_explained_variance_of_equal_targets_is_unknown() -> None:
    assert explained_variance(torch.zeros(3), torch.ones(3)).isnan()
