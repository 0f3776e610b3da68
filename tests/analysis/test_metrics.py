"""The formulas, on numbers small enough to work out beside the assertion."""

import math

import numpy as np
import pytest

from slm_lab.analysis.metrics import (
    SESSION_SCALARS,
    TRIAL_SCALARS,
    consistencies,
    consistency,
    efficiencies,
    efficiency,
    moving_average,
    random_baseline,
    session_metrics,
    stabilities,
    stability,
    strengths,
    trial_metrics,
)

nan = math.nan


def table(total_reward, *, frame=None, opt_step=None, loss=None):
    rows = len(total_reward)
    return {
        "total_reward": total_reward,
        "frame": frame or [100 * (i + 1) for i in range(rows)],
        "opt_step": opt_step or [10 * (i + 1) for i in range(rows)],
        "loss": loss or [1.0] * rows,
    }


def array(*values):
    return np.array(values, dtype=np.float64)


# Moving average


def test_moving_average_uses_as_many_rows_as_there_are_up_to_the_window():
    assert moving_average([2, 4, 6, 8], window=2).tolist() == [2, 3, 5, 7]


def test_moving_average_window_is_a_hundred_checkpoints():
    values = [0.0] + [1.0] * 100
    assert moving_average(values)[99] == pytest.approx(99 / 100)
    assert moving_average(values)[100] == 1.0


def test_moving_average_skips_unknown_values_and_is_nan_where_all_are():
    assert moving_average([nan, 2, nan, 4]) == pytest.approx(array(nan, 2, 2, 3), nan_ok=True)


# Session metrics


def test_strength_counts_from_the_random_policy():
    assert strengths([30, 50], random_mean=20).tolist() == [10, 30]


def test_sample_efficiency_weighs_strength_by_how_early_it_came():
    # (10/100 + 30/200) / (10 + 30) = 0.25 / 40
    assert efficiency(array(10, 30), [100, 200]) == pytest.approx(0.00625)


def test_the_same_strength_earlier_is_more_efficient():
    early, late = array(30, 10), array(10, 30)
    assert efficiency(early, [100, 200]) > efficiency(late, [100, 200])


def test_rows_before_the_first_gradient_step_count_in_neither_sum_of_the_training_efficiency():
    # The weighted mean of 1/20 and 1/40 with weights 30 and 10: (1.5 + 0.25) / 40
    assert efficiency(array(10, 30, 10), [0, 20, 40]) == pytest.approx(0.04375)
    assert efficiencies(array(10, 30, 10), [0, 20, 40]) == pytest.approx(
        [nan, 0.05, 0.04375], nan_ok=True
    )


def test_what_was_earned_before_learning_does_not_change_the_training_efficiency():
    for before in (-100, 0, 1000):
        assert efficiency(array(before, 30), [0, 20]) == pytest.approx(1 / 20)


def test_without_a_gradient_step_there_is_no_training_efficiency():
    assert math.isnan(efficiency(array(10, 30), [0, 0]))


def test_local_efficiency_is_the_running_ratio():
    # 0.1 / 10, then 0.25 / 40
    assert efficiencies(array(10, 30), [100, 200]) == pytest.approx([0.01, 0.00625])


def test_stability_loses_what_was_dropped_relative_to_the_strength_before_each_step():
    # drops: 10 -> 30 none, 30 -> 24 six, 24 -> 40 none; 1 - 6 / (10 + 30 + 24)
    assert stability(array(10, 30, 24, 40)) == pytest.approx(1 - 6 / 64)


def test_local_stability_has_one_entry_per_step():
    assert stabilities(array(10, 30, 24, 40)) == pytest.approx([1, 0.8, 1])


def test_stability_of_a_curve_that_never_drops_is_one():
    assert stability(array(1, 2, 2, 5)) == 1.0


def test_session_metrics_gather_the_scalars_and_the_local_series_under_their_file_names():
    metrics = session_metrics(table([30, 50, 44, 60]), random_mean=20)
    # strengths 10, 30, 24, 40 at frames 100..400 and opt_steps 10..40
    assert metrics.scalar == pytest.approx(
        {
            "total_reward_ma": 46,
            "strength": 26,
            "max_strength": 40,
            "final_strength": 40,
            "sample_efficiency": (0.1 + 0.15 + 0.08 + 0.1) / 104,
            "training_efficiency": (1 + 1.5 + 0.8 + 1) / 104,
            "stability": 1 - 6 / 64,
            "last_100_return": nan,  # a table of the original has no such column
        },
        nan_ok=True,
    )
    assert tuple(metrics.scalar) == SESSION_SCALARS
    assert list(metrics.local) == [
        "mean_returns",
        "strengths",
        "sample_efficiencies",
        "training_efficiencies",
        "stabilities",
        "frames",
        "opt_steps",
    ]


def test_returns_that_are_unknown_at_first_are_left_out():
    late = session_metrics(table([nan, 30, 50]), random_mean=20)
    assert late.diverged is None
    assert late.scalar["strength"] == 20
    assert late.scalar["sample_efficiency"] == pytest.approx((10 / 200 + 30 / 300) / 40)
    assert late.scalar["stability"] == 1.0
    assert np.isnan(late.local["sample_efficiencies"]).tolist() == [True, False, False]


def test_a_single_row_has_metrics():
    scalar = session_metrics(table([30]), random_mean=20).scalar
    assert scalar == pytest.approx(
        {
            "total_reward_ma": 30,
            "strength": 10,
            "max_strength": 10,
            "final_strength": 10,
            "sample_efficiency": 0.01,
            "training_efficiency": 0.1,
            "stability": 1,
            "last_100_return": nan,
        },
        nan_ok=True,
    )


def test_two_rows_have_metrics():
    assert session_metrics(table([30, 25]), random_mean=20).scalar["stability"] == 0.5


@pytest.mark.parametrize("rewards", [[], [nan, nan]])
def test_a_session_without_a_finished_episode_has_nan_metrics_but_did_not_diverge(rewards):
    metrics = session_metrics(table(rewards))
    assert all(math.isnan(value) for value in metrics.scalar.values())
    assert metrics.diverged is None


def test_a_division_by_zero_is_nan():
    scalar = session_metrics(table([20, 20]), random_mean=20).scalar
    assert math.isnan(scalar["sample_efficiency"])
    assert math.isnan(scalar["stability"])
    assert scalar["strength"] == 0


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (table([30, nan, 50]), "total_reward is nan at frame 200"),
        (table([30, math.inf, math.inf]), "total_reward is inf at frame 200"),
        (table([30, 40, 50], loss=[nan, 1.0, nan]), "loss is nan at frame 300"),
        (table([30, 40, 50], loss=[1.0, -math.inf, 1.0]), "loss is -inf at frame 200"),
    ],
)
def test_a_diverged_session_has_nan_for_every_metric_and_says_where(broken, reason):
    metrics = session_metrics(broken)
    assert metrics.diverged == reason
    assert all(math.isnan(value) for value in metrics.scalar.values())
    assert metrics.to_json()["diverged"] == reason


def test_a_loss_that_is_unknown_for_a_while_is_no_divergence():
    # before learning starts, and again just after a resume
    assert session_metrics(table([1, 2, 3, 4], loss=[nan, 1.0, nan, 1.0])).diverged is None


# Trial metrics


def test_consistency_loses_twice_the_spread_between_sessions_relative_to_their_mean():
    # row 0: 10, 14 -> mean 12, sample std 2.828427; row 1: 20, 20 -> mean 20, std 0
    sessions = [array(10, 20), array(14, 20)]
    assert consistency(sessions) == pytest.approx(1 - 2 * math.sqrt(8) / 32)
    assert consistencies(sessions) == pytest.approx([1 - 2 * math.sqrt(8) / 12, 1])


def test_consistency_cuts_the_sessions_to_the_shortest():
    assert consistency([array(10, 20), array(14, 20, 999)]) == pytest.approx(
        consistency([array(10, 20), array(14, 20)])
    )


def test_one_session_is_consistent_with_itself():
    assert consistency([array(10, 20)]) == 1.0


def test_trial_scalars_are_means_over_sessions_and_the_frame_of_the_first():
    first = session_metrics(table([30, 50], frame=[100, 200]), random_mean=20)
    second = session_metrics(table([40, 60], frame=[100, 204]), random_mean=20)
    trial = trial_metrics([first, second])
    assert tuple(trial.scalar) == TRIAL_SCALARS
    assert trial.scalar["frame"] == 200
    assert trial.scalar["strength"] == pytest.approx((20 + 30) / 2)
    assert trial.scalar["total_reward_ma"] == pytest.approx((40 + 50) / 2)
    assert [series.tolist() for series in trial.local["mean_returns"]] == [[30, 50], [40, 60]]
    assert trial.local["frames"].tolist() == [100, 200]
    assert len(trial.local["consistencies"]) == 2


def test_a_diverged_session_makes_the_trial_nan_instead_of_hiding_among_the_others():
    good, bad = session_metrics(table([30, 50])), session_metrics(table([30, math.inf]))
    trial = trial_metrics([good, bad])
    assert all(math.isnan(trial.scalar[name]) for name in (*SESSION_SCALARS, "consistency"))
    assert trial.scalar["frame"] == 200


# Random baseline


def test_the_random_baseline_is_known_for_the_envs_of_the_shipped_specs():
    assert random_baseline("CartPole-v1") == 22.97
    assert random_baseline("ALE/Pong-v5") == -20.25


def test_an_unmeasured_env_has_no_random_baseline():
    assert random_baseline("NobodyMeasuredThis-v0") is None
