"""The table of a search, what matters in it, and its graphs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from slm_lab.analysis.experiment import (
    Axis,
    SearchMetrics,
    TrialRow,
    experiment_table,
    importance,
    write_experiment,
)
from slm_lab.analysis.experiment_plot import plot_experiment
from slm_lab.runs.layout import RunLayout
from slm_lab.spec import load_spec

GAMMA, LR = "agent.algorithm.gamma", "agent.net.optim_spec.lr"
SCALARS = {
    "frame": 200.0,
    "total_reward_ma": 20.0,
    "strength": 3.0,
    "max_strength": 4.0,
    "final_strength": 4.0,
    "sample_efficiency": 0.1,
    "training_efficiency": 0.2,
    "stability": 0.9,
    "consistency": 0.8,
    "last_100_return": 2.0,
}
ROWS = [
    TrialRow(0, {GAMMA: 0.9, LR: 1e-3}, "stopped", 20.0),
    TrialRow(1, {GAMMA: 0.99, LR: 1e-2}, "completed", 90.0),
    TrialRow(2, {GAMMA: 0.95, LR: 1e-4}, "diverged", 5.0),
]


@pytest.fixture
def layout(tmp_path) -> RunLayout:
    """The folder of a search: trial 2 broke down before it had any metrics."""
    layout = RunLayout.create("tiny", "now", tmp_path)
    for trial in (0, 1):
        layout.trial_metrics_scalar(trial).write_text(json.dumps(SCALARS))
        for session in (0, 1):
            rows = ["total_reward,frame"] + [f"{10 * trial + k},{100 * k}" for k in (1, 2)]
            layout.session_csv(trial, session, "train").write_text("\n".join(rows) + "\n")
    return layout


def test_the_best_score_comes_first_and_a_trial_without_metrics_has_a_row_too(layout):
    table = experiment_table(layout, ROWS)
    assert list(table.columns) == ["trial", GAMMA, LR, *SCALARS, "score", "status"]
    assert table["trial"].tolist() == [1, 0, 2]
    assert table["strength"].tolist()[:2] == [3.0, 3.0]
    assert np.isnan(table["strength"].iloc[2])


def test_the_table_is_written_twice_and_a_validated_score_stands_beside_the_search_score(layout):
    rows = [ROWS[0], TrialRow(1, ROWS[1].values, "completed", 90.0, validated=70.0)]
    write_experiment(layout, rows)
    for path in (layout.experiment_csv(), layout.experiment_csv_copy()):
        table = pd.read_csv(path)
        assert table["score"].tolist() == [90.0, 20.0]
        assert table["validated_total_reward_ma"].tolist()[0] == 70.0
        assert table["validated_total_reward_ma"].isna().tolist() == [False, True]
    content = json.loads(layout.trial_data_dict().read_text())
    assert content["1"] == {GAMMA: 0.99, LR: 1e-2, **SCALARS}


def axis(path: str, *, is_choice: bool = False) -> Axis:
    return Axis(path, is_log=False, is_choice=is_choice)


def test_importance_is_one_for_what_decides_the_score_and_zero_for_what_does_not():
    """y falls away from an optimum in the middle of x, which no straight line would see."""
    x = np.arange(9.0)
    table = pd.DataFrame({"x": x, "noise": [4, 0, 7, 2, 8, 1, 6, 3, 5], "score": -abs(x - 4)})
    share = importance(table, [axis("x"), axis("noise")])
    assert share["x"] > 0.9
    assert share["noise"] < 0.3


def test_importance_of_a_choice_is_what_its_options_explain():
    table = pd.DataFrame(
        {"net": [[4], [4], [8], [8]], "other": list("abab"), "score": [1.0, 2.0, 9.0, 10.0]}
    )
    share = importance(table, [axis("net", is_choice=True), axis("other", is_choice=True)])
    # Ranks 1 2 3 4: total 5 over 3; within the nets 1 over 2. 1 - (1 / 2) / (5 / 3) = 0.7
    assert share["net"] == pytest.approx(0.7)
    assert share["other"] == 0.0


@pytest.mark.parametrize("scores", [[1.0, 2.0], [3.0, 3.0, 3.0, 3.0]])
def test_importance_is_unknown_with_too_few_trials_or_equal_scores(scores):
    table = pd.DataFrame({"x": np.arange(len(scores)), "score": scores})
    assert np.isnan(importance(table, [axis("x")])["x"])


def test_every_graph_of_a_search_is_drawn_and_the_page_needs_no_network(layout):
    spec = load_spec("benchmark/ppo/ppo_cartpole.json", "ppo_cartpole")
    search = {f"{GAMMA}__uniform": [0.9, 1.0], f"{LR}__loguniform": [1e-4, 1e-2]}
    spec = spec.model_copy(update={"search": search})
    plot_experiment(layout, spec, write_experiment(layout, ROWS))
    for kind in ("", "parallel", "importance"):
        for path in (layout.experiment_graph(kind), layout.experiment_graph_copy(kind)):
            assert path.stat().st_size > 5000
    for y in ("mean_returns", "mean_returns_ma"):
        assert layout.multi_trial_graph(y).exists()
        assert layout.multi_trial_graph_copy(y).exists()
    page = layout.experiment_graph_html().read_text()
    assert re.findall(r'src="([^"]*)"', page) == ["plotly.min.js"]
    kinds = re.findall(r'"data":\[\{"type":"(\w+)"', page)
    assert kinds[:4] == ["parcoords", "scatter", "scatter", "bar"]
    assert "optim_spec.lr" in page
    assert "trial 1, the best of 2 in this search" in page


def result(*rows: TrialRow) -> SearchMetrics:
    return SearchMetrics(rows, 600, 1000, 5.0, Path(), None, Path(), Path())


def test_a_result_is_the_validated_score_and_never_the_search_score_alone():
    line = result(ROWS[1], ROWS[0]).summary_line()
    assert line.endswith("best trial 1 | search score 90.00, not validated")
    assert "600 of 1,000 frames" in line
    # Trial 0 was second in the search, and first once both were trained again.
    rows = [
        TrialRow(1, {}, "completed", 90.0, validated=60.0),
        TrialRow(0, {}, "stopped", 80.0, validated=75.0),
    ]
    assert result(*rows).best == rows[1]
    assert result(*rows).summary_line().endswith("validated 75.00 | search score 80.00")


def test_a_search_in_which_nothing_is_fit_says_so():
    assert result(ROWS[2]).best is None
    assert result(ROWS[2]).summary_line().endswith("no trial is fit to be run again")
