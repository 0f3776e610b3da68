"""A trial's score with what is known about it."""

from __future__ import annotations

import json

import pytest

from slm_lab.analysis.evaluation import summarize, write_evaluation


def test_the_score_is_the_mean_over_sessions_of_their_means(tmp_path):
    scored = summarize({0: [0.0, 4.0], 3: [10.0, 10.0]}, path=tmp_path / "x.json")
    assert scored.mean == 6.0
    assert (scored.sessions[0].mean, scored.sessions[0].std) == (2.0, 2.0)
    assert scored.sessions[3].interval == (10.0, 10.0)
    assert scored.interval == (5.0, 7.0)  # session 0 gives 0, 2 or 4; session 3 always 10
    assert scored.interval_over_sessions is not None
    low, high = scored.interval_over_sessions
    assert low < 5
    assert high == 10.0


def test_one_session_says_nothing_about_other_seeds(tmp_path):
    assert summarize({0: [1.0, 2.0]}, path=tmp_path / "x.json").interval_over_sessions is None


def test_the_file_holds_every_return_and_how_they_came_about(tmp_path):
    path = tmp_path / "info" / "x.json"
    write_evaluation(summarize({0: [1.0, 3.0]}, path=path), {"env": "CartPole-v1", "seed": 4})
    saved = json.loads(path.read_text())
    assert (saved["env"], saved["seed"], saved["mean"]) == ("CartPole-v1", 4, 2.0)
    assert saved["sessions"]["0"]["returns"] == [1.0, 3.0]
    assert saved["ci95_over_sessions"] is None
    assert saved["ci95_over_episodes"] == pytest.approx([1.0, 3.0])
