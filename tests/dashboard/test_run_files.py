"""What a run folder has to show besides its curves, also when it is damaged or from elsewhere."""

from __future__ import annotations

import json
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
    spec_diff,
    spec_leaves,
    trial_metrics,
    versions,
    videos,
)
from slm_lab.runs.catalog import RunCatalog, read_run
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


def test_metrics_and_versions_are_those_on_disk(tmp_path):
    layout = write_run(tmp_path, SMALL)
    layout.trial_metrics_scalar(0).write_text('{"strength": 1.5, "note": "x", "frame": 100}')
    layout.session_metrics_scalar(0, 0, "eval").write_text('{"stability": 0.5}')
    run = read_run(layout.predir)
    assert trial_metrics(run) == {"strength": 1.5, "frame": 100.0}
    assert session_table(run, str) == (("session", "stability"), [("0", "0.5")])
    assert versions(run)["torch"] == "2.13.0"


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
