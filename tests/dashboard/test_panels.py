"""How runs are named, coloured and drawn."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest

from perf.synthetic_runs import SyntheticRun, write_run
from slm_lab.dashboard.curves import MOST_RUNS, THEMES, Trace, figure, join
from slm_lab.runs.catalog import read_run

pytest.importorskip("dash")
from slm_lab.dashboard.panels import places, run_row, same_target, short_names

SMALL = SyntheticRun(sessions=2, rows=5, max_frame=100)


def test_a_run_keeps_its_colour_while_others_come_and_go():
    first = places({}, ["a", "b", "c"], 21)
    assert first == {"a": 0, "b": 1, "c": 2}
    without = places(first, ["a", "c"], 21)
    assert without == {"a": 0, "c": 2}
    assert places(without, ["d", "c", "a"], 21) == {"d": 1, "c": 2, "a": 0}


def test_a_name_has_its_time_only_where_two_would_be_alike(tmp_path):
    runs = [
        read_run(write_run(tmp_path, replace(SMALL, name=name, ts=ts)).predir)
        for name, ts in (
            ("a", "2026_01_01_000000"),
            ("a", "2026_01_02_000000"),
            ("b", "2026_01_01_000000"),
        )
    ]
    assert short_names(runs[1:]) == ["a", "b"]
    assert short_names(runs) == ["a_2026_01_01_000000", "a_2026_01_02_000000", "b"]


def test_a_target_is_drawn_if_it_is_the_same_for_all(tmp_path):
    cartpole = read_run(write_run(tmp_path, SMALL).predir)
    pendulum = read_run(write_run(tmp_path, replace(SMALL, name="p", env="Pendulum-v1")).predir)
    assert same_target([cartpole]) == 400
    assert same_target([cartpole, pendulum]) is None
    assert same_target([]) is None


def test_a_row_of_the_grid_is_plain_json(tmp_path):
    row = run_row(read_run(write_run(tmp_path, replace(SMALL, share=0.2)).predir))
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert row["what"] == "PPO · CartPole-v1"
    assert (row["status"], row["sessions"], row["progress"]) == ("resumable", "0/2", 0.2)


def test_a_figure_has_a_band_a_mean_and_the_target():
    lines = [pd.Series([level, level], index=[1.0, 2.0]) for level in (1.0, 3.0)]
    drawn = figure(
        [Trace("run", join(lines), 0)], y="total_reward", x="frame", theme=THEMES["light"], target=5
    )
    band, mean = drawn["data"]
    assert band["x"] == [1, 2, 2, 1]
    assert mean["y"] == [2, 2]
    assert mean["line"]["color"] == THEMES["light"].colors[0]
    assert drawn["layout"]["shapes"][0]["y0"] == 5
    assert drawn["layout"]["annotations"][0]["text"] == "target 5"


@pytest.mark.parametrize("theme", THEMES)
def test_as_many_runs_as_are_drawn_look_different(theme):
    curve = join([pd.Series([1.0, 2.0], index=[1.0, 2.0])])
    traces = [Trace(f"run {i}", curve, i) for i in range(MOST_RUNS)]
    drawn = figure(traces, y="loss", x="frame", theme=THEMES[theme])["data"]
    looks = {(trace["line"]["color"], trace["line"]["dash"]) for trace in drawn}
    assert len(looks) == MOST_RUNS


@pytest.mark.parametrize("theme", THEMES)
def test_lines_stand_out_from_the_card(theme):
    """Contrast of at least 3 to 1, which WCAG 2.1 asks of graphics."""

    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    card = luminance(THEMES[theme].card)
    for color in THEMES[theme].colors:
        high, low = max(card, luminance(color)), min(card, luminance(color))
        ratio = (high + 0.05) / (low + 0.05)
        assert ratio >= 3, f"{color}: {ratio:.1f}"
