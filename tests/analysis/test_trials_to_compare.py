"""Results read back from folders that anyone may have written."""

from __future__ import annotations

import json
import os

import pytest

from slm_lab.analysis.tables import read_trial
from slm_lab.runs.find import find_folder
from slm_lab.spec.run_folder import RunFolderError


def test_a_folder_of_the_original_is_read_without_loading_its_spec_or_its_pickles(write_run):
    trial = read_trial(write_run("ppo_cartpole"))
    assert (trial.name, trial.trial, trial.algorithm) == ("ppo_cartpole", 0, "PPO")
    assert (trial.env, trial.target, trial.random_mean) == ("CartPole-v1", 400, 22.97)
    assert list(trial.sessions) == [0, 1]
    assert trial.sessions[1]["total_reward"].tolist() == [20, 30, 40]
    assert trial.sessions[1]["frame"].tolist() == [100, 200, 300]


def test_the_label_of_an_algorithm_takes_its_memory_into_account(write_run):
    options = {"algorithm": "DoubleDQN", "memory": "PrioritizedReplay"}
    assert read_trial(write_run("ddqn_per", **options)).algorithm == "DDQN+PER"


def test_without_tables_the_metrics_of_the_trial_serve(write_run):
    trial = read_trial(write_run("ppo_cartpole", tables=False, returns=[(1, 2, 3), (4, 5)]))
    assert trial.sessions[0]["opt_step"].tolist() == [100, 200, 300]
    assert trial.sessions[1]["total_reward"].tolist() == [4, 5]
    assert trial.sessions[1]["frame"].tolist() == [100, 200]


def test_a_row_that_a_crash_cut_short_is_left_out(write_run):
    folder = write_run("ppo_cartpole")
    path = folder / "info" / "ppo_cartpole_t0_s0_session_df_eval.csv"
    path.write_text(path.read_text() + "50.0,4")
    assert len(read_trial(folder).sessions[0]) == 3


def test_a_session_that_was_killed_is_read_from_its_training_table(write_run):
    folder = write_run("ppo_cartpole")
    (folder / "info" / "ppo_cartpole_t0_s1_session_df_eval.csv").unlink()
    assert list(read_trial(folder).sessions) == [0, 1]


def test_a_spec_of_version_4_with_lists_is_understood(write_run):
    folder = write_run("dqn_cartpole", algorithm="DQN", memory="Replay")
    for path in folder.glob("*_spec.json"):
        tree = json.loads(path.read_text())
        tree["agent"], tree["env"] = [tree["agent"]], [tree["env"]]
        path.write_text(json.dumps(tree))
    trial = read_trial(folder)
    assert (trial.algorithm, trial.env) == ("DQN", "CartPole-v1")


def test_a_yaml_spec_serves_too(write_run):
    folder = write_run("ppo_cartpole")
    for path in folder.glob("*_spec.json"):
        path.rename(path.with_suffix(".yaml"))  # JSON is YAML
    assert read_trial(folder).algorithm == "PPO"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("info/a_t0_s0_session_df_eval.csv", "frame,loss\n1,2\n", "lacks the column total_reward"),
        ("info/a_t0_s0_session_df_eval.csv", "frame,total_reward\n1,x\n", "not a session table"),
        ("info/a_t0_s0_session_df_eval.csv", '"\n' * 99, "not a session table"),
        ("a_t0_spec.json", "[1, 2]", "expected a mapping"),
        ("a_t0_spec.json", "{", "not valid JSON"),
    ],
)
def test_a_broken_file_is_named(write_run, file, content, message):
    folder = write_run("a")
    (folder / file).write_text(content)
    with pytest.raises(RunFolderError, match=message) as error:
        read_trial(folder)
    assert file.rsplit("/")[-1] in str(error.value)


@pytest.mark.parametrize("content", ["{}", "[]", '{"local": {"frames": 1, "mean_returns": 2}}'])
def test_broken_metrics_are_named(write_run, content):
    folder = write_run("a", tables=False)
    (folder / "info" / "a_t0_trial_metrics.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"a_t0_trial_metrics\.json: not a metrics file"):
        read_trial(folder)


def test_a_link_that_leads_out_is_not_followed(write_run, tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("frame,total_reward\n1,2\n")
    folder = write_run("a")
    path = folder / "info" / "a_t0_s0_session_df_eval.csv"
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(RunFolderError, match=r"eval\.csv: is a link"):
        read_trial(folder)


def test_a_pipe_in_place_of_a_table_does_not_hang(write_run):
    folder = write_run("a")
    path = folder / "info" / "a_t0_s0_session_df_eval.csv"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RunFolderError, match="expected a plain file"):
        read_trial(folder)


def test_a_folder_without_results_says_what_was_expected(write_run):
    folder = write_run("a", tables=False, metrics=False)
    with pytest.raises(RunFolderError, match=r"info/a_t0_s0_session_df_train\.csv"):
        read_trial(folder)


def test_a_folder_is_found_by_its_path_or_by_its_name_in_the_data_folder(write_run, tmp_path):
    folder = write_run("ppo_cartpole")
    assert find_folder(str(folder), tmp_path) == folder
    assert find_folder(folder.name, folder.parent) == folder
    with pytest.raises(RunFolderError, match="Did you mean ppo_cartpole_2026_01_13_094433"):
        find_folder("ppo_cartpol_2026_01_13_094433", folder.parent)
