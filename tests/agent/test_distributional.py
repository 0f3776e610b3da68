"""Quantile and categorical distributions of returns, with numbers done by hand."""

from __future__ import annotations

import math

import pytest
import torch

from slm_lab.agent.algorithm.distributional import (
    cross_entropy,
    expectation,
    hl_gauss,
    project,
    quantile_huber_loss,
    two_hot,
)

SUPPORT = torch.tensor([0.0, 1.0, 2.0])


def test_quantile_loss_weighs_errors_by_how_far_the_quantile_is_on_that_side() -> None:
    # tau = 1/4, 3/4. Errors u = target - quantile: 2 - 0 = 2 and 2 - 3 = -1.
    # Huber with kappa 1: 2 - 0.5 = 1.5 and 0.5. Weights: |1/4 - 0| and |3/4 - 1|.
    loss = quantile_huber_loss(torch.tensor([[0.0, 3.0]]), torch.tensor([[2.0]]))
    assert loss.tolist() == [0.25 * 1.5 + 0.25 * 0.5]


def test_quantile_loss_is_a_mean_over_samples_and_a_sum_over_quantiles() -> None:
    # One quantile, tau = 1/2. Errors 0.5 and -3: Huber 0.125 and 2.5, each weighed by 1/2.
    loss = quantile_huber_loss(torch.tensor([[1.0]]), torch.tensor([[1.5, -2.0]]))
    assert loss.tolist() == [(0.0625 + 1.25) / 2]
    # Two equal quantiles share the errors with tau = 1/4 and 3/4: the weights add up to 1.
    loss = quantile_huber_loss(torch.tensor([[1.0, 1.0]]), torch.tensor([[1.5, -2.0]]))
    assert loss.tolist() == [(0.125 + 2.5) / 2]


def test_a_smaller_kappa_has_the_slope_of_the_plain_quantile_loss() -> None:
    # u = 2, tau = 1/2, kappa = 0.5: 0.5 * 0.5 * (2 - 0.25) / 0.5.
    loss = quantile_huber_loss(torch.tensor([[0.0]]), torch.tensor([[2.0]]), kappa=0.5)
    assert loss.tolist() == [0.875]


def test_an_atom_between_two_is_shared_in_proportion_to_its_nearness() -> None:
    probs = torch.tensor([[0.5, 0.5]])
    moved = project(probs, torch.tensor([[0.25, 2.0]]), SUPPORT)
    assert moved.tolist() == [[0.5 * 0.75, 0.5 * 0.25, 0.5]]


def test_atoms_beyond_the_support_are_kept_at_its_ends() -> None:
    probs = torch.tensor([[0.2, 0.3, 0.5]])
    moved = project(probs, torch.tensor([[-4.0, 1.0, 9.0]]), SUPPORT)
    torch.testing.assert_close(moved, probs)


def test_a_shifted_distribution_keeps_its_mean() -> None:
    # C51: z = (0, 1, 2), reward 0.5, discount 0.5: atoms 0.5, 1, 1.5 with mean 0.5 + 0.5 * 1.2.
    probs = torch.tensor([[0.2, 0.4, 0.4]])
    moved = project(probs, 0.5 + 0.5 * SUPPORT.unsqueeze(0), SUPPORT)
    torch.testing.assert_close(moved, torch.tensor([[0.1, 0.1 + 0.4 + 0.2, 0.2]]))
    torch.testing.assert_close((moved * SUPPORT).sum(-1), torch.tensor([1.1]))


def test_two_hot_has_the_value_as_its_mean() -> None:
    hot = two_hot(torch.tensor([0.75, 2.0, -1.0]), SUPPORT)
    assert hot.tolist() == [[0.25, 0.75, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]


def test_hl_gauss_is_the_mass_of_a_gauss_curve_in_each_bin() -> None:
    # Bins [-0.5, 0.5], [0.5, 1.5], [1.5, 2.5]; around 1 with one step of deviation the bins end at
    # 0.5 and 1.5 deviations, whose mass is erf(0.5 / sqrt 2) = 0.3829 and, on each side, 0.2417.
    inner = math.erf(0.5 / math.sqrt(2))
    outer = (math.erf(1.5 / math.sqrt(2)) - inner) / 2
    total = inner + 2 * outer
    found = hl_gauss(torch.tensor([1.0]), SUPPORT, sigma=1.0)[0]
    expected = torch.tensor([outer, inner, outer]) / total
    torch.testing.assert_close(found, expected)


def test_hl_gauss_far_outside_is_that_of_the_end_of_the_support() -> None:
    far, end = hl_gauss(torch.tensor([1e6, 2.0]), SUPPORT, sigma=0.75)
    torch.testing.assert_close(far, end)


def test_cross_entropy_and_expectation_of_logits() -> None:
    logits = torch.tensor([[0.0, math.log(2.0), 0.0]])  # probabilities 1/4, 1/2, 1/4
    assert expectation(logits, SUPPORT).item() == pytest.approx(1.0)
    target = torch.tensor([[0.0, 0.5, 0.5]])
    loss = 0.5 * math.log(2) + 0.5 * math.log(4)
    assert cross_entropy(logits, target).item() == pytest.approx(loss)
