"""What a run folder has to show besides its curves, also when it is damaged or from elsewhere."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace

from perf.synthetic_runs import SyntheticRun, write_run
from slm_lab.dashboard.run_files import (
    LOG_LINES,
    benchmark_rows,
    log_names,
    log_text,
    operators,
    profiles,
    session_table,
    sessions_in_words,
    spec_diff,
    spec_leaves,
    trial_metrics,
    trial_table,
    versions,
    videos,
)
from slm_lab.runs.catalog import RunCatalog, read_run
from slm_lab.runs.lock import locked
from slm_lab.runs.search_journal import Journal, TrialReport
from slm_lab.training.console import format_profile

SMALL = SyntheticRun(sessions=1, rows=5, max_frame=100)


def test_a_spec_is_shown_as_dotted_keys_in_its_own_order(tmp_path):
    leaves = spec_leaves(read_run(write_run(tmp_path, SMALL).predir))
    assert next(iter(leaves)) == "agent.name"
    assert leaves["agent.net.hid_layers"] == "[64, 64]"
    assert leaves["env.name"] == '"CartPole-v1"'


def test_a_diff_has_every_key_of_both_and_tells_absent_from_null():
    found = spec_diff([{"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "null"}])
    assert list(found) == ["a", "b", "c"]
    assert found == {"a": ("1", "1"), "b": ("2", "3"), "c": (None, "null")}


def test_the_profile_is_the_last_that_the_log_holds(tmp_path):
    layout = write_run(tmp_path, SMALL)
    lines = (format_profile(1, 1, 1, 1), format_profile(3, 2, 4, 1))
    layout.log_path(0, 0).write_text("\n".join(lines) + "\n")
    shares = {"env": 0.3, "act": 0.2, "learn": 0.4, "other": 0.1}
    assert profiles(read_run(layout.predir)) == {0: shares}
    layout.log_path(0, 0).write_text("nothing here\n")
    assert profiles(read_run(layout.predir)) == {}


def test_until_a_session_ends_its_profile_is_in_the_log_of_the_trial(tmp_path):
    layout = write_run(tmp_path, replace(SMALL, share=0.5))
    layout.log_path(0, 0).write_text("")
    with layout.log_path(0).open("a") as log:
        told = f"Trial 0 session 0 | frame 50 of 100 (50%) | {format_profile(1, 1, 2, 0)}"
        log.write(f"2026-01-01 00:00:00 | INFO | PID:1 | console:update | {told}\n")
    shares = {"env": 0.25, "act": 0.25, "learn": 0.5, "other": 0.0}
    assert profiles(read_run(layout.predir)) == {0: shares}


def test_a_resumed_session_does_not_show_the_profile_of_its_former_end(tmp_path):
    layout = write_run(tmp_path, SMALL)
    former, resumed = format_profile(1, 1, 1, 1), "Session 0 goes on from frame 50"
    layout.log_path(0, 0).write_text(f"{former}\n{resumed}\n")
    assert profiles(read_run(layout.predir)) == {}
    told = f"Trial 0 session 0 | frame 50 of 100 (50%) | {format_profile(3, 2, 4, 1)}"
    layout.log_path(0).write_text(f"x | Resuming trial 0\nx | {told}\n")
    assert profiles(read_run(layout.predir))[0]["env"] == 0.3


def test_an_evaluation_counts_until_the_agent_learns_on(tmp_path):
    layout = write_run(tmp_path, replace(SMALL, share=0.5))
    evaluation = layout.trial_evaluation(0, best=True, sampled=False)
    evaluation.write_text('{"mean": 5.5}')
    assert read_run(layout.predir).evaluated == 5.5
    now = time.time()
    os.utime(evaluation, (now - 60, now - 60))
    assert read_run(layout.predir).evaluated is None


def test_metrics_and_versions_are_those_on_disk(tmp_path):
    layout = write_run(tmp_path, SMALL)
    layout.trial_metrics_scalar(0).write_text('{"strength": 1.5, "note": "x", "frame": 100}')
    layout.session_metrics_scalar(0, 0, "train").write_text('{"stability": 0.5}')
    table = layout.session_csv(0, 0, "train")
    table.write_text("total_reward_ma,frame,last_100_return\n3,50,4\n5,1000,9\n")
    run = read_run(layout.predir)
    assert trial_metrics(run) == {"strength": 1.5, "frame": 100.0}
    head, rows = session_table(run, str)
    assert head == ("session", "0")
    assert rows == [
        ("frames", "1,000"),
        ("return, last 100 episodes", "9.0"),
        ("return, moving average", "5.0"),
        ("stability", "0.5"),
    ]
    assert versions(run)["torch"] == "2.13.0"


def test_the_trials_of_a_search_are_a_table_with_short_names_and_values(tmp_path):
    layout = write_run(tmp_path, replace(SMALL, sessions=1))
    journal = Journal(layout.journal_path())
    values = {"agent.algorithm.gamma": 0.9500000000000001, "agent.net.optim_spec.lr": 1e-5}
    values |= {"agent.critic_net.optim_spec.lr": 3}
    journal.start(0, {"x": 0.5}, values)
    journal.report(0, TrialReport(100, 5.0, 1.0))
    journal.end(0, "completed", 5.0)
    run = read_run(layout.predir)
    head, rows = trial_table(run, str)
    assert head[4:] == ("gamma", *list(values)[1:])  # a last word that two have is not enough
    assert rows == [("0", "5.0", "completed", "100", "0.95", "1e-05", "3")]
    assert (run.finished, run.sessions) == (1, 1)


def test_a_trial_that_goes_on_shows_no_metrics_of_its_former_end(tmp_path):
    layout = write_run(tmp_path, SMALL)
    layout.trial_metrics_scalar(0).write_text('{"strength": 1.5, "total_reward_ma": 7}')
    layout.session_metrics_scalar(0, 0, "train").write_text('{"stability": 0.5}')
    with locked(layout.run_lock(), "test"):
        running = read_run(layout.predir)
    assert running.status == "running"
    assert running.score != 7
    assert trial_metrics(running) == {}
    assert "stability" not in [row[0] for row in session_table(running, str)[1]]
    assert trial_metrics(read_run(layout.predir))["strength"] == 1.5


def test_sessions_are_counted_as_finished_and_begun(tmp_path):
    whole = read_run(write_run(tmp_path, replace(SMALL, sessions=3)).predir)
    assert (whole.finished, whole.sessions) == (3, 3)
    assert sessions_in_words(whole) == "3 of 3 finished"
    half = read_run(write_run(tmp_path / "b", replace(SMALL, sessions=3, share=0.5)).predir)
    assert (half.finished, half.sessions) == (0, 3)
    assert sessions_in_words(half) == "0 of 3 finished, 3 begun"


def test_operators_of_a_profiled_run_come_slowest_first(tmp_path):
    layout = write_run(tmp_path, SMALL)
    folder = layout.predir / "profiler"
    folder.mkdir()
    rows = [{"name": "add", "self_cpu_us": 1}, {"name": "mm", "self_cpu_us": 9}, "damaged", {}]
    (folder / "profiler_summary.json").write_text(json.dumps({"operators": rows}))
    assert operators(read_run(layout.predir)) == [("mm", 9.0), ("add", 1.0)]


def test_a_log_is_shown_by_its_last_lines_and_only_if_it_is_one(tmp_path):
    layout = write_run(tmp_path, SMALL)
    layout.log_path(0).write_text("".join(f"line {i}\n" for i in range(2 * LOG_LINES)))
    (layout.predir / "secret.txt").write_text("secret")
    run = read_run(layout.predir)
    assert log_names(run) == ["ppo_cartpole_t0.log", "ppo_cartpole_t0_s0.log"]
    lines = log_text(run, "ppo_cartpole_t0.log").splitlines()
    assert (len(lines), lines[-1]) == (LOG_LINES, f"line {2 * LOG_LINES - 1}")
    for name in ("../secret.txt", "secret.txt", "/etc/passwd", ""):
        assert log_text(run, name) == ""


def test_links_to_logs_and_videos_elsewhere_are_not_followed(tmp_path):
    layout = write_run(tmp_path / "data", SMALL)
    secret = tmp_path / "secret.mp4"
    secret.write_text("secret")
    (layout.log_dir() / "linked.log").symlink_to(secret)
    folder = layout.predir / "video"
    folder.mkdir()
    (folder / "linked.mp4").symlink_to(secret)
    (folder / "own.mp4").write_bytes(b"video")
    (folder / "notes.txt").write_text("no video")
    run = read_run(layout.predir)
    assert "linked.log" not in log_names(run)
    assert [path.name for path in videos(run)] == ["own.mp4"]


def test_a_video_folder_that_is_a_link_shows_nothing(tmp_path):
    layout = write_run(tmp_path / "data", SMALL)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "private.mp4").write_bytes(b"private")
    (layout.predir / "video").symlink_to(elsewhere)
    assert videos(read_run(layout.predir)) == []


def test_the_benchmark_takes_the_best_trial_of_each_algorithm_in_each_env(tmp_path):
    for name, score in (("a", 390.0), ("b", 410.0), ("c", 1.0)):
        algorithm = "DQN" if name == "c" else "PPO"
        layout = write_run(tmp_path, replace(SMALL, name=name, algorithm=algorithm))
        layout.trial_metrics_scalar(0).write_text(json.dumps({"total_reward_ma": score}))
    write_run(tmp_path, replace(SMALL, name="d", env="Unknown-v0"))
    rows = benchmark_rows(RunCatalog(tmp_path).scan())
    told = ("algorithm", "score", "gap", "reached", "runs")
    assert [tuple(row[name] for name in told) for row in rows] == [
        ("PPO", 410.0, 10.0, "reached", 2),
        ("DQN", 1.0, -399.0, "below", 1),
    ]
    assert rows[0]["key"].startswith("b_")
