"""Mean and band over sessions, on any axis, in as many points as a screen shows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from perf.synthetic_runs import SyntheticRun, write_run
from slm_lab.dashboard.curves import THEMES, CurveStore, figure, join
from slm_lab.runs.catalog import read_run
from slm_lab.runs.search_journal import Journal, TrialReport

SMALL = SyntheticRun(sessions=2, rows=10, max_frame=100)


def line(x: list[float], y: list[float]) -> pd.Series:
    return pd.Series(y, index=np.array(x, dtype=float), dtype=float)


def test_the_mean_and_the_band_of_one_standard_deviation():
    curve = join([line([10, 20], [1, 2]), line([10, 20], [3, 2])])
    assert curve.x.tolist() == [10, 20]
    assert curve.mean.tolist() == [2, 2]
    # std of 1 and 3 with n - 1: sqrt(((1-2)^2 + (3-2)^2) / 1) = sqrt(2)
    assert curve.high.tolist() == pytest.approx([2 + math.sqrt(2), 2])
    assert curve.low.tolist() == pytest.approx([2 - math.sqrt(2), 2])


def test_a_session_that_stopped_early_thins_out_the_mean_from_there_on():
    curve = join([line([10, 20, 30], [1, 1, 1]), line([10, 20], [3, 3])])
    assert curve.mean.tolist() == [2, 2, 1]
    assert curve.high[-1] == curve.low[-1] == 1  # one session has no spread


def test_sessions_need_not_have_the_same_x():
    curve = join([line([0, 10], [0, 10]), line([5, 15], [5, 15])])
    assert curve.x.tolist() == [0, 5, 10, 15]
    assert curve.mean.tolist() == [0, 5, 10, 15]


def test_gaps_and_infinities_are_left_out_and_the_last_row_at_an_x_counts():
    curve = join([line([1, 2, 2, 3, 4], [1, 5, 7, math.inf, math.nan])])
    assert curve.x.tolist() == [1, 2]
    assert curve.mean.tolist() == [1, 7]


def test_no_rows_make_an_empty_curve():
    assert join([]).is_empty
    assert join([line([], []), line([1], [math.nan])]).is_empty


def test_a_long_curve_is_thinned_out_but_keeps_its_ends():
    x = np.arange(1_000.0)
    curve = join([pd.Series(2 * x, index=x)], points=50)
    assert len(curve.x) == len(curve.sessions[0]) == 50
    assert (curve.x[0], curve.x[-1]) == (0, 999)
    assert curve.mean.tolist() == (2 * curve.x).tolist()


def test_a_table_is_read_again_when_its_file_has_grown(tmp_path):
    layout = write_run(tmp_path, replace(SMALL, sessions=1, share=0.5))
    path = layout.session_csv(0, 0, "train")
    path.write_text("total_reward,frame,wall_t\n1,10,1\n2,20,3\n3,30")
    store, run = CurveStore(), read_run(layout.predir)
    assert store.curve(run, "total_reward").mean.tolist() == [1, 2]
    first = store.table(run, 0, 0, "total_reward")
    assert store.table(run, 0, 0, "total_reward") is first
    with path.open("a") as file:
        file.write(",5\n")
    assert store.curve(run, "total_reward").mean.tolist() == [1, 2, 3]
    assert store.curve(run, "total_reward", "wall_t").x.tolist() == [1, 3, 5]


def test_returns_come_from_the_evaluations_and_the_rest_from_training(tmp_path):
    layout = write_run(tmp_path, replace(SMALL, sessions=1))
    layout.session_csv(0, 0, "train").write_text("total_reward,loss,frame\n1,0.5,10\n")
    layout.session_csv(0, 0, "eval").write_text("total_reward,loss,frame\n9,0.7,10\n")
    store, run = CurveStore(), read_run(layout.predir)
    assert store.curve(run, "total_reward").mean.tolist() == [9]
    assert store.curve(run, "loss").mean.tolist() == [0.5]
    assert store.curve(run, "no such column").is_empty


def test_the_moving_average_has_the_curve_without_smoothing_behind_it(tmp_path):
    run = read_run(write_run(tmp_path, SMALL).predir)
    store = CurveStore()
    trace = store.trace(run, "total_reward_ma", "frame", label="run", place=0)
    assert trace.raw is not None
    drawn = figure([trace], y="total_reward_ma", x="frame", theme=THEMES["light"])["data"]
    faint = [line for line in drawn if line["y"] == pytest.approx(trace.raw.mean, rel=1e-6)]
    assert [line["showlegend"] for line in faint] == [False]
    assert store.trace(run, "loss", "frame", label="run", place=0).raw is None


def test_a_search_shows_its_other_trials_in_grey(tmp_path):
    layout = write_run(tmp_path, replace(SMALL, sessions=1))
    journal = Journal(layout.journal_path())
    for trial in range(3):
        text = layout.session_csv(0, 0, "train").read_text()
        layout.session_csv(trial, 0, "train").write_text(text)
        journal.start(trial, {"x": 0.5}, {})
        journal.report(trial, TrialReport(100, 5.0 + trial, 1.0))
        journal.end(trial, "completed", 5.0 + trial)
    run = read_run(layout.predir)
    assert run.trial == 2
    others = CurveStore().trials(run, "total_reward_ma", "frame", most=5)
    assert [trace.label for trace in others] == ["trial 1", "trial 0"]
    drawn = figure(others, y="total_reward_ma", x="frame", theme=THEMES["light"])
    assert [line["line"]["color"] for line in drawn["data"]] == ["rgba(91,104,117,0.5)"] * 2
    assert "trial 1" in drawn["data"][0]["hovertemplate"]
    assert drawn["layout"]["hovermode"] == "closest"


def test_what_can_be_drawn_are_the_columns_that_hold_numbers(tmp_path):
    run = read_run(write_run(tmp_path, SMALL).predir)
    columns = CurveStore().columns(run)
    assert columns[:2] == ("total_reward_ma", "total_reward")
    assert {"loss", "entropy", "lr"} <= set(columns)
    assert {"frame", "epi", "t"}.isdisjoint(columns)  # counters; epi is empty besides


def test_a_store_keeps_no_more_tables_than_it_may(tmp_path):
    store = CurveStore(most_tables=2)
    for seed in range(3):
        layout = write_run(tmp_path, replace(SMALL, sessions=1, name=f"run{seed}"))
        store.curve(read_run(layout.predir), "loss")
    assert len(store._tables) == 2


@pytest.mark.parametrize("text", ["", "a,b\nx,y\n", "frame\n1\n2\n", "\0\0\0"])
def test_a_damaged_table_has_no_curve(tmp_path, text):
    layout = write_run(tmp_path, replace(SMALL, sessions=1, share=0.5))
    layout.session_csv(0, 0, "train").write_text(text)
    assert CurveStore().curve(read_run(layout.predir), "loss").is_empty
