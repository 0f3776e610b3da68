"""Intervals whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slm_lab.analysis import robust
from slm_lab.analysis.robust import mean_interval


def test_returns_that_never_vary_leave_no_doubt():
    assert mean_interval([[5.0] * 10, [5.0] * 10], "episodes") == (5.0, 5.0)
    assert mean_interval([[5.0] * 10, [5.0] * 10], "sessions") == (5.0, 5.0)


def test_over_episodes_it_is_two_standard_errors_either_way():
    returns = np.random.default_rng(0).normal(10, 2, 400)
    low, high = mean_interval([returns.tolist()], "episodes")
    error = returns.std() / math.sqrt(400)
    assert low == pytest.approx(returns.mean() - 1.96 * error, abs=0.02)
    assert high == pytest.approx(returns.mean() + 1.96 * error, abs=0.02)


def test_sessions_that_differ_matter_over_sessions_alone():
    # Every episode of a session is the same, so these two agents are known exactly; of two redrawn
    # sessions, both are the bad one in a quarter of the cases, and both the good one in another.
    sessions = [[0.0] * 5, [10.0] * 5]
    assert mean_interval(sessions, "episodes") == (5.0, 5.0)
    assert mean_interval(sessions, "sessions") == (0.0, 10.0)


def test_sessions_weigh_the_same_however_many_episodes_they_have():
    assert mean_interval([[0.0], [10.0] * 99], "episodes") == (5.0, 5.0)


def test_the_same_seed_gives_the_same_interval():
    returns = [[1.0, 5.0, 3.0], [2.0, 9.0, 4.0]]
    first, again, other = (mean_interval(returns, "sessions", seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first == pytest.approx(other, abs=1)


def test_many_episodes_are_drawn_in_chunks_without_a_remainder_left_out(monkeypatch):
    drawn = []
    resampled = robust._resampled

    def count(groups, over, rows, rng):
        drawn.append(rows)
        return resampled(groups, over, rows, rng)

    monkeypatch.setattr(robust, "_resampled", count)
    monkeypatch.setattr(robust, "CHUNK", 3000)
    mean_interval([[1.0, 2.0]], "episodes")
    assert drawn == [1500, 1500, 1500, 500]


@pytest.mark.parametrize("sessions", [[], [[]], [[1.0], []]])
def test_nothing_has_no_interval(sessions):
    with pytest.raises(ValueError, match="expected at least one session"):
        mean_interval(sessions, "episodes")
