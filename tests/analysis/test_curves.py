"""What is drawn against what, and the mean over sessions that differ in length and pace."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from slm_lab.analysis.curves import (
    FRAMES,
    OPT_STEPS,
    WALL_TIME,
    common_axes,
    curve,
    mean_and_std,
    on_common_grid,
)


def line(values: dict[float, float]) -> pd.Series:
    return pd.Series(list(values.values()), index=list(values))


def test_sessions_on_the_same_frames_are_joined_as_they_are():
    mean, std = mean_and_std([line({100: 1, 200: 3}), line({100: 3, 200: 5})])
    assert mean.to_dict() == {100: 2, 200: 4}
    assert std.to_dict() == pytest.approx({100: 2**0.5, 200: 2**0.5})


def test_a_session_that_stopped_early_thins_out_the_mean_and_does_not_shorten_the_others():
    mean, std = mean_and_std([line({100: 1, 200: 3, 300: 5}), line({100: 3})])
    assert mean.to_dict() == {100: 2, 200: 3, 300: 5}
    assert std.to_dict() == pytest.approx({100: 2**0.5, 200: 0, 300: 0})


def test_sessions_of_another_pace_meet_on_a_common_grid_each_over_its_own_range():
    """y = x for one, y = 2 x for the other: at x = 2 both are known, at 0 and 4 one of them."""
    grid = on_common_grid([line({0: 0, 2: 2, 3: 3}), line({1: 2, 2.5: 5, 4: 8})])
    assert grid.index.tolist() == [0, 2, 4]
    assert grid[0].tolist() == pytest.approx([0, 2, np.nan], nan_ok=True)
    assert grid[1].tolist() == pytest.approx([np.nan, 4, 8], nan_ok=True)
    mean, std = mean_and_std([line({0: 0, 2: 2, 3: 3}), line({1: 2, 2.5: 5, 4: 8})])
    assert mean.tolist() == [0, 3, 8]
    assert std.tolist() == pytest.approx([0, 2**0.5, 0])


def test_a_session_without_any_return_yet_leaves_the_others_alone():
    mean, _ = mean_and_std([line({0: np.nan, 1: np.nan}), line({0.5: 2.0, 1.5: 4.0, 2.5: 6.0})])
    assert mean.tolist() == [2.0, 4.0, 6.0]


def test_gradient_steps_stand_still_before_learning_and_the_latest_row_counts():
    mean, _ = mean_and_std([line({0: 1.0}), pd.Series([5.0, 7.0, 9.0], index=[0, 0, 4])])
    assert mean.to_dict() == {0: 4.0, 4: 9.0}


def test_seconds_are_finer_than_the_whole_ones_of_wall_t():
    table = pd.DataFrame(
        {"frame": [100.0, 200, 300], "total_reward": [1.0, 2, 3], "wall_t": [0.0, 1, 1]}
        | {"fps": [200.0, 160, 150], "opt_step": [0.0, 8, 16]}
    )
    assert curve(table, x=WALL_TIME).index.tolist() == [0.5, 1.25, 2.0]
    assert curve(table, x=OPT_STEPS).index.tolist() == [0, 8, 16]
    assert curve(table.drop(columns="fps"), x=WALL_TIME).index.tolist() == [0, 1, 1]


def test_time_never_runs_backwards_where_the_speed_of_the_first_row_was_not_known_yet():
    table = pd.DataFrame(
        {"frame": [100.0, 200], "total_reward": [1.0, 2], "wall_t": [2.0, 1], "fps": [np.inf, 200]}
    )
    assert curve(table, x=WALL_TIME).index.tolist() == [2.0, 2.0]


def test_a_table_says_what_it_can_be_drawn_against():
    table = pd.DataFrame({"frame": [1.0], "total_reward": [1.0], "wall_t": [np.nan]})
    assert common_axes([table]) == [FRAMES]
