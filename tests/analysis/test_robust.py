"""Statistics over few runs: numbers by hand, rliable's published examples, and scipy's word."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from slm_lab.analysis.robust import (
    interquartile_mean,
    interval,
    mean,
    median,
    optimality_gap,
    performance_profile,
    permutation_p_value,
    probability_of_improvement,
    profile_band,
    smallest_p_value,
)


def strata(matrix) -> list[np.ndarray]:
    """A published matrix, runs x tasks, as one array per task."""
    return list(np.asarray(matrix, dtype=np.float64).T)


# rliable's own tests: 4 runs of X and 3 runs of Y on two tasks; 5 runs on 16 tasks.
X = strata([[1, 2], [2, 2], [1, 1], [2, 1]])
Y = strata([[1, 1], [2, 2], [3, 3]])
RAMP = strata(np.arange(80).reshape(5, 16))
FLIPPED = strata(np.flip(np.arange(80).reshape(5, 16), axis=0))


def test_aggregates_of_rliables_examples():
    for statistic in (mean, median, interquartile_mean):
        assert statistic(X) == 1.5
        assert statistic(Y) == 2
    assert probability_of_improvement(X, Y) == pytest.approx(1 / 3)
    assert probability_of_improvement(Y, X) == pytest.approx(2 / 3)


@pytest.mark.parametrize("statistic", [mean, median, interquartile_mean, optimality_gap])
def test_intervals_of_rliables_example_enclose_the_estimate(statistic):
    low, high = interval(RAMP, statistic=statistic) or (1, 0)
    assert low < statistic(RAMP) < high


def test_the_interval_of_an_improvement_encloses_it_in_rliables_example():
    assert probability_of_improvement(RAMP, FLIPPED) == 0.5  # the same scores in another order
    low, high = interval(RAMP, FLIPPED, statistic=probability_of_improvement) or (1, 0)
    assert low < 0.5 < high


def test_the_interquartile_mean_leaves_out_a_quarter_each_side():
    assert interquartile_mean([np.array([100.0, 1, 2, 3, 4, 5, 6, -100])]) == 3.5
    # Six runs: a quarter is 1.5, rounded down to one each side. Three runs: none.
    assert interquartile_mean([np.array([0.0, 1, 2, 3, 4, 100])]) == 2.5
    assert interquartile_mean([np.array([0.0, 1, 8])]) == 3.0


def test_one_seed_in_a_hundred_that_fails_moves_the_mean_and_not_the_interquartile_mean():
    scores = np.full(100, 500.0)
    scores[0] = -1e6
    assert interquartile_mean([scores]) == 500.0
    assert mean([scores]) < 0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_the_interquartile_mean_is_scipys_trimmed_mean(scores):
    stats = pytest.importorskip("scipy.stats")
    expected = stats.trim_mean(np.array(scores), 0.25)
    assert interquartile_mean([np.array(scores)]) == pytest.approx(expected, abs=1e-6)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8),
    st.lists(st.integers(0, 5), min_size=1, max_size=8),
)
def test_the_probability_of_improvement_is_the_statistic_of_mann_and_whitney(x, y):
    stats = pytest.importorskip("scipy.stats")
    a, b = np.array(x, dtype=float), np.array(y, dtype=float)
    expected = stats.mannwhitneyu(a, b, alternative="greater", method="asymptotic").statistic
    assert probability_of_improvement([a], [b]) == pytest.approx(expected / (len(a) * len(b)))


def test_over_one_env_the_median_is_that_of_the_runs():
    assert median([np.array([1.0, 2, 30])]) == 2


def test_the_optimality_gap_counts_what_is_missing_and_nothing_above_the_target():
    # 0.5, 0 and 0.25 are missing of 1, 1 and 1.
    assert optimality_gap([np.array([0.5, 7.0, 0.75])]) == pytest.approx(0.25)


def test_a_profile_is_the_share_of_runs_above_each_score():
    taus = np.array([0.0, 1.0, 2.5, 4.0])
    assert performance_profile([np.array([1.0, 2, 3, 4])], taus).tolist() == [1, 0.75, 0.5, 0]
    # Envs weigh the same, however many runs they have: (1 + 0) / 2 at 1.5.
    both = [np.array([2.0, 2, 2, 2]), np.array([1.0])]
    assert performance_profile(both, np.array([1.5])).tolist() == [0.5]


@pytest.mark.parametrize("scores", [RAMP, FLIPPED])
def test_a_profile_of_rliables_example_never_rises_and_lies_in_its_band(scores):
    taus = np.array([0.0, 20.0, 40.0, 60.0])
    profile = performance_profile(scores, taus)
    low, high = profile_band(scores, taus)
    assert (np.diff(profile) <= 0).all()
    assert profile[0] == pytest.approx(79 / 80)  # all but the run that scored 0
    assert ((low <= profile) & (profile <= high)).all()


def test_runs_are_redrawn_within_their_env_and_never_across():
    """Two envs whose runs do not vary: the mean is known exactly, though the envs differ."""
    assert interval([np.full(5, 1.0), np.full(5, 9.0)], statistic=mean) == (5.0, 5.0)


def test_the_interval_of_a_mean_of_many_runs_is_two_standard_errors_either_way():
    scores = np.random.default_rng(0).normal(10, 2, 400)
    error = scores.std() / 20
    low, high = interval([scores], statistic=mean) or (1, 0)
    assert low == pytest.approx(scores.mean() - 1.96 * error, abs=0.02)
    assert high == pytest.approx(scores.mean() + 1.96 * error, abs=0.02)


def test_with_one_or_two_seeds_there_is_no_interval():
    assert interval([np.array([1.0, 2.0])], statistic=mean) is None
    assert interval([np.array([1.0, 2.0, 3.0]), np.array([1.0])], statistic=mean) is None
    assert interval([np.array([1.0, 2.0, 3.0])], statistic=mean) is not None


def test_the_same_seed_gives_the_same_interval():
    scores = [np.array([1.0, 5, 2, 8, 3])]
    assert interval(scores, statistic=mean, seed=1) == interval(scores, statistic=mean, seed=1)


def runs(count: int) -> list[np.ndarray]:
    return [np.arange(count, dtype=float)]


@pytest.mark.parametrize(
    ("n", "m", "p"), [(1, 1, 1.0), (3, 3, 0.1), (4, 4, 2 / 70), (5, 5, 2 / 252), (2, 8, 2 / 45)]
)
def test_how_surprising_a_clean_sweep_would_be(n, m, p):
    """Six runs can be dealt out in 20 ways of which two are sweeps: p = 0.1, so 3 cannot tell."""
    assert smallest_p_value(runs(n), runs(m)) == pytest.approx(p)
    assert smallest_p_value(runs(n) * 2, runs(m) * 2) == pytest.approx(min(1.0, p * p / 2))


def test_a_clean_sweep_is_as_surprising_as_its_share_of_all_ways_to_deal():
    low, high = [np.array([1.0, 2, 3, 4])], [np.array([5.0, 6, 7, 8])]
    assert permutation_p_value(high, low) == pytest.approx(2 / 70, abs=0.006)
    assert permutation_p_value(low, high) == pytest.approx(2 / 70, abs=0.006)


def test_one_run_out_of_order_among_four_is_already_chance():
    """U = 15 of 16: scipy's exact two-sided p is 4/70 = 0.057."""
    x, y = [np.array([4.0, 6, 7, 8])], [np.array([1.0, 2, 3, 5])]
    assert probability_of_improvement(x, y) == 15 / 16
    assert permutation_p_value(x, y) == pytest.approx(4 / 70, abs=0.008)


def test_equal_methods_are_no_surprise():
    assert permutation_p_value(runs(6), runs(6)) == 1.0
