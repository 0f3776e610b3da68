"""Trials side by side: scores by hand, and verdicts no stronger than the seeds allow."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from slm_lab.analysis.comparison import compare, env_scores, method_names, score_at
from slm_lab.analysis.comparison_plot import (
    default_title,
    graph_stem,
    plot_comparison,
    plot_multi_trial,
)
from slm_lab.analysis.curves import OPT_STEPS, WALL_TIME
from slm_lab.analysis.tables import read_trial
from slm_lab.spec.run_folder import RunFolderError


def flat(*scores: float, rows: int = 3) -> list[list[float]]:
    """Sessions whose return never changes, so that the score is that return."""
    return [[score] * rows for score in scores]


def scores_of(trials, methods=None):
    return env_scores(trials, methods or method_names(trials))


def test_the_score_of_a_session_is_its_total_reward_ma(write_run):
    """Mean of the last 100 checkpoints: of 120 returns 0, 1, ..., 119 the last 100 average 69.5."""
    trial = read_trial(write_run("ppo", returns=[list(range(120))]))
    frame, scores, _ = scores_of([trial])
    assert frame == 12_000
    assert scores["PPO"].tolist() == [69.5]
    assert scores["PPO"][0] == trial.sessions[0]["total_reward_ma"].iloc[-1]


def test_a_longer_budget_is_no_advantage(write_run):
    """The comparison is at frame 200, where the longer run had returned 10 and 20."""
    long = read_trial(write_run("ppo", returns=[[10, 20, 900, 900]]))
    short = read_trial(write_run("dqn", algorithm="DQN", returns=[[12, 14]]))
    frame, scores, _ = scores_of([long, short])
    assert frame == 200
    assert {method: values.tolist() for method, values in scores.items()} == {
        "DQN": [13],
        "PPO": [15],
    }


def test_logging_more_often_is_no_advantage(write_run):
    """Both rise by 1 every 100 frames; read where the slower one logged, they score the same."""
    often = read_trial(write_run("ppo", every=100, returns=[list(range(1, 11))]))
    seldom = read_trial(write_run("dqn", algorithm="DQN", every=500, returns=[[5, 10]]))
    _, scores, _ = scores_of([often, seldom])
    assert scores["PPO"].tolist() == scores["DQN"].tolist() == [7.5]


def test_a_session_that_stopped_early_keeps_its_last_score_and_is_named(write_run):
    trial = read_trial(write_run("ppo", returns=[[1, 2, 3], [4]]))
    frame, scores, notes = scores_of([trial])
    assert frame == 300
    assert scores["PPO"].tolist() == [2, 4]
    assert notes == ["ppo session 1 stopped at frame 100: its last score holds"]


def test_a_session_that_diverged_counts_as_a_random_policy_and_is_named(write_run):
    returns = [[100, 200, 300], [100, float("inf"), 300]]
    _, scores, notes = scores_of([read_trial(write_run("ppo", returns=returns))])
    assert scores["PPO"].tolist() == [200, 22.97]
    assert "diverged (total_reward is inf at frame 200): counts as a random policy" in notes[0]
    unknown = read_trial(write_run("mine", env="Mine-v0", returns=returns))
    _, scores, notes = scores_of([unknown])
    assert scores["PPO"].tolist() == [200, 200]
    assert "the lowest score here" in notes[0]


def test_returns_that_are_not_known_yet_are_left_out():
    table = pd.DataFrame({"frame": [1.0, 2, 3], "total_reward": [np.nan, 4, 6]})
    assert score_at(table, np.array([1.0, 2, 3])) == 5


def test_two_specs_of_one_algorithm_are_told_apart_and_two_runs_of_one_spec_are_pooled(write_run):
    a = read_trial(write_run("a2c_gae", algorithm="ActorCritic"))
    b = read_trial(write_run("a2c_nstep", algorithm="ActorCritic"))
    assert method_names([a, b]) == ["A2C (a2c_gae)", "A2C (a2c_nstep)"]
    assert method_names([a, a]) == ["A2C", "A2C"]
    assert len(scores_of([a, a])[1]["A2C"]) == 4


def test_pooled_runs_with_the_same_seed_are_no_independent_draws(write_run, tmp_path):
    one, two = (read_trial(write_run(name, seed=7)) for name in ("ppo", "ppo_again"))
    _, _, notes = scores_of([one, two], ["PPO", "PPO"])
    assert "same meta.random_seed" in notes[0]
    assert scores_of([one, two], ["PPO", "mine"])[2] == []


def test_a_clean_sweep_of_five_seeds_is_better_and_one_of_three_is_too_few_to_tell(write_run):
    for count, verdict in ((5, "better"), (4, "better"), (3, "too few seeds to tell")):
        better = read_trial(write_run(f"ppo_{count}", returns=flat(*range(400, 400 + count))))
        worse = read_trial(
            write_run(f"dqn_{count}", algorithm="DQN", returns=flat(*range(100, 100 + count)))
        )
        (found,) = compare([better, worse])
        (pair,) = found.improvements
        assert (pair.better, pair.worse, pair.probability) == ("PPO", "DQN", 1.0)
        assert pair.verdict == verdict


def test_methods_that_overlap_are_not_told_apart(write_run):
    one = read_trial(write_run("ppo", returns=flat(100, 200, 300, 400, 500)))
    two = read_trial(write_run("dqn", algorithm="DQN", returns=flat(90, 210, 290, 410, 490)))
    (found,) = compare([one, two])
    assert found.improvements[0].verdict == "not told apart"
    low, high = found.improvements[0].ci95 or (1, 0)
    assert low < 0.5 < high


def test_one_seed_has_a_score_and_no_interval_and_the_note_says_why(write_run):
    (found,) = compare([read_trial(write_run("ppo", returns=flat(300)))])
    (method,) = found.methods
    assert method.interquartile_mean.value == 300
    assert method.interquartile_mean.ci95 is None
    assert "few seeds (PPO 1)" in found.notes[0]
    assert "meta.max_session" in found.notes[0]


def test_five_seeds_need_no_note(write_run):
    (found,) = compare([read_trial(write_run("ppo", returns=flat(1, 2, 3, 4, 5)))])
    assert found.notes == ()
    assert found.methods[0].mean.ci95 is not None


def test_the_best_interquartile_mean_comes_first_whatever_one_wild_seed_does(write_run):
    """Means: 100080 against 90; of the middle three of five runs 90 each side of 100."""
    wild = read_trial(write_run("dqn", algorithm="DQN", returns=flat(80, 80, 80, 80, 500_000)))
    sound = read_trial(write_run("ppo", returns=flat(90, 90, 90, 90, 90)))
    (found,) = compare([wild, sound])
    assert [method.method for method in found.methods] == ["PPO", "DQN"]


def test_several_envs_are_also_compared_on_one_scale_from_random_to_target(write_run):
    """CartPole: random 22.97, target 400. Acrobot: random -499.86, target -100."""
    trials = [
        read_trial(write_run("ppo_a", returns=flat(*[400.0] * 5))),
        read_trial(write_run("ppo_b", env="Acrobot-v1", returns=flat(*[-100.0] * 5))),
        read_trial(write_run("dqn_a", algorithm="DQN", returns=flat(*[22.97] * 5))),
        read_trial(
            write_run("dqn_b", algorithm="DQN", env="Acrobot-v1", returns=flat(*[-299.93] * 5))
        ),
        read_trial(write_run("sac_a", algorithm="SoftActorCritic", returns=flat(*[400.0] * 5))),
    ]
    *envs, both = compare(trials)
    assert [comparison.env for comparison in envs] == ["CartPole-v1", "Acrobot-v1"]
    assert both.frame is None
    values = {m.method: m for m in both.methods}
    assert values["PPO"].mean.value == pytest.approx(1.0)
    assert values["DQN"].mean.value == pytest.approx(0.25)  # 0 and a half
    assert values["PPO"].optimality_gap is not None
    assert values["PPO"].optimality_gap.value == pytest.approx(0.0)
    assert "SAC" not in values
    assert "not run in every env, and left out: SAC" in both.notes


def test_an_env_without_a_target_is_left_out_of_the_common_scale_and_named(write_run):
    trials = [
        read_trial(write_run("a", returns=flat(1, 2, 3))),
        read_trial(write_run("b", env="Mine-v0", returns=flat(1, 2, 3))),
    ]
    assert any("Mine-v0: left out" in note for note in compare(trials)[-1].notes)


def test_different_algorithms_in_different_envs_are_compared_in_each_env_alone(write_run, tmp_path):
    trials = [
        read_trial(write_run("ppo", returns=flat(100, 200, 300))),
        read_trial(
            write_run("sac", algorithm="SAC", env="Pendulum-v1", returns=flat(-200, -300, -400))
        ),
    ]
    found = compare(trials)
    assert [comparison.env for comparison in found] == ["CartPole-v1", "Pendulum-v1"]
    assert "no method was run in every env: there is no comparison over all" in found[-1].notes
    paths = plot_comparison(found, tmp_path, title="both")
    assert all(path.is_file() for path in paths)


# Graphs


@pytest.mark.parametrize(
    ("title", "stem"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("ALE/Pong-v5", "Pong-v5"),
        ("LunarLander-v3 (Continuous)", "LunarLander-v3_Continuous"),
        ("../../etc/passwd", "passwd"),
    ],
)
def test_a_title_becomes_the_file_name_of_the_documents(title, stem):
    assert graph_stem(title) == stem


@pytest.mark.parametrize("title", ["", "..", "a/", "()"])
def test_a_title_that_is_no_name_is_refused(title):
    with pytest.raises(RunFolderError, match="--title"):
        graph_stem(title)


def test_the_multi_trial_graph_has_the_name_that_documents_refer_to(write_run, tmp_path):
    trials = [
        read_trial(write_run("ppo")),
        read_trial(write_run("dqn", algorithm="DQN", every=70, returns=[[1, 2, 3, 4]])),
    ]
    out = tmp_path / "docs"
    title = default_title(trials)
    (path,) = plot_multi_trial(trials, out, title=title)
    assert path.name == "CartPole-v1_multi_trial_graph_mean_returns_ma_vs_frames.png"
    assert path.stat().st_size > 5000
    raw, page = plot_multi_trial(trials, out, title=title, x=WALL_TIME, smooth=False, html=True)
    assert raw.name == "CartPole-v1_multi_trial_graph_mean_returns_vs_wall_t.png"
    text = page.read_text()
    assert text.index('"name":"DQN"') < text.index('"name":"PPO"')
    assert "target 400" in text


def test_two_runs_of_one_spec_have_names_of_their_own_in_a_graph(write_run, tmp_path):
    first = read_trial(write_run("ppo"))
    again = tmp_path / "ppo_2026_02_02_000000"
    first.folder.rename(again)
    trials = [
        read_trial(write_run("ppo")),
        read_trial(again),
        read_trial(write_run("dqn", algorithm="DQN")),
    ]
    page = plot_multi_trial(trials, tmp_path, title="a", html=True)[1].read_text()
    for name in ("PPO (ppo_2026_01_13_094433)", "PPO (ppo_2026_02_02_000000)", "DQN"):
        assert f'"name":"{name}"' in page


def test_an_axis_that_a_folder_lacks_is_named(write_run, tmp_path):
    trial = read_trial(write_run("ppo", tables=False))
    plot_multi_trial([trial], tmp_path, title="a", x=OPT_STEPS)
    with pytest.raises(RunFolderError, match="no wall_t; use --x frame"):
        plot_multi_trial([trial], tmp_path, title="a", x=WALL_TIME)


def test_a_comparison_is_drawn_and_its_numbers_are_kept(write_run, tmp_path):
    trials = [
        read_trial(write_run("ppo", returns=flat(400, 410, 420))),
        read_trial(write_run("dqn", algorithm="DQN", returns=flat(100))),
    ]
    *pngs, numbers = plot_comparison(compare(trials), tmp_path / "out", title="CartPole-v1")
    assert [path.name for path in pngs] == [
        "CartPole-v1_compare_intervals.png",
        "CartPole-v1_compare_profiles.png",
        "CartPole-v1_compare_improvement.png",
    ]
    assert all(path.stat().st_size > 5000 for path in pngs)
    (content,) = json.loads(numbers.read_text())
    assert content["methods"]["PPO"]["mean"]["value"] == 410
    assert content["improvements"][0]["verdict"] == "too few seeds to tell"
    *pngs, _ = plot_comparison(compare(trials[:1]), tmp_path / "out", title="one")
    assert len(pngs) == 2, "nothing to improve on"
