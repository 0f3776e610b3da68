"""A data folder at a glance: each run with a status that its files bear out."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from perf.synthetic_runs import SyntheticRun, write_run
from slm_lab.dashboard.report import write_report
from slm_lab.runs.catalog import RunCatalog, read_run
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.lock import is_held, locked
from slm_lab.runs.search_journal import Journal, Status, TrialReport
from slm_lab.runs.summary import RunSummary
from slm_lab.spec.run_folder import RunFolderError
from slm_lab.training.options import RunOptions

SMALL = SyntheticRun(sessions=2, rows=10, max_frame=100)


def only(root: Path) -> RunSummary:
    (run,) = RunCatalog(root).scan()
    return run


def test_a_run_killed_after_its_last_session_has_metrics_and_graphs_left_to_write(tmp_path):
    layout = write_run(tmp_path, SMALL)
    layout.trial_provenance(0).write_text('{"sittings": [{"mode": "train", "end": "died"}]}')
    run = only(tmp_path)
    assert (run.status, run.reason) == ("resumable", "its metrics and graphs are left to write")


def test_a_finished_run_is_done_with_the_score_of_its_metrics(tmp_path):
    layout = write_run(tmp_path, SMALL)
    layout.trial_metrics_scalar(0).write_text('{"total_reward_ma": 123.5, "frame": 100.0}')
    run = only(tmp_path)
    assert (run.status, run.reason) == ("done", "")
    assert (run.key, run.name, run.kind) == (
        "ppo_cartpole_2026_01_01_000000",
        "ppo_cartpole",
        "trial",
    )
    assert (run.algorithm, run.env, run.target) == ("PPO", "CartPole-v1", 400)
    assert (run.score, run.frame, run.max_frame, run.progress) == (123.5, 100, 100, 1.0)
    assert (run.sessions, run.max_session, run.seed) == (2, 2, 0)
    assert run.started == datetime(2026, 1, 1)


def test_a_run_that_was_cut_short_is_resumable_with_the_score_so_far(tmp_path):
    layout = write_run(tmp_path, replace(SMALL, share=0.5))
    for session, score in ((0, 10.0), (1, 30.0)):
        table = layout.session_csv(0, session, "train")
        table.write_text(f"total_reward_ma,frame\n1.0,10\n{score},50\n99.0,6")  # a row half written
    run = only(tmp_path)
    assert (run.status, run.reason) == ("resumable", "2 of 2 session(s) left to finish")
    assert (run.score, run.frame, run.progress) == (20.0, 50, 0.5)


def test_a_run_whose_log_tells_of_a_crash_has_failed_for_that_reason(tmp_path):
    write_run(tmp_path, replace(SMALL, share=0.5, failure="ValueError: no"))
    run = only(tmp_path)
    assert (run.status, run.reason) == ("failed", "session 0 failed: ValueError: no")


def test_a_crash_before_the_latest_start_counts_no_more(tmp_path):
    layout = write_run(tmp_path, replace(SMALL, share=0.5, failure="ValueError: no"))
    with layout.log_path(0).open("a") as log:
        log.write("2026-01-02 00:00:00 | INFO | PID:1 | lab:_resume | Resuming trial 0 of it\n")
    assert only(tmp_path).status == "resumable"


def test_a_diverged_session_makes_a_failed_run(tmp_path):
    layout = write_run(tmp_path, replace(SMALL, share=0.5))
    layout.divergence_report(0, 1).write_text("{}")
    run = only(tmp_path)
    assert (run.status, run.reason) == ("failed", "session 1 diverged")


def test_workers_that_share_nets_go_on_as_other_sessions_do(tmp_path):
    write_run(tmp_path, replace(SMALL, share=0.5, values={"meta.distributed": "synced"}))
    assert only(tmp_path).status == "resumable"


def test_a_run_whose_lock_is_held_is_running_and_then_is_not(tmp_path):
    layout = write_run(tmp_path, replace(SMALL, share=0.5))
    catalog = RunCatalog(tmp_path)
    assert catalog.scan()[0].status == "resumable"
    with locked(layout.run_lock(), "the run"):
        assert catalog.scan()[0].status == "running"
    assert catalog.scan()[0].status == "resumable"


def test_looking_at_a_lock_does_not_take_it(tmp_path):
    path = tmp_path / "run.lock"
    assert not is_held(path)
    with locked(path, "the run"):
        assert is_held(path)
    assert not is_held(path)
    path.write_text(json.dumps({"pid": 1, "host": "elsewhere"}))
    assert is_held(path) is None


def test_a_run_of_another_machine_runs_while_its_files_change(tmp_path):
    layout = write_run(tmp_path, replace(SMALL, share=0.5))
    layout.run_lock().write_text(json.dumps({"pid": 1, "host": "elsewhere"}))
    catalog = RunCatalog(tmp_path)
    assert catalog.scan()[0].status == "running"
    for path in [layout.predir, *layout.predir.rglob("*")]:
        os.utime(path, (0, 0))
    assert catalog.scan()[0].status == "resumable"


def test_a_growing_run_is_read_again_and_a_settled_one_is_not(tmp_path):
    settled = write_run(tmp_path, SMALL)
    growing = write_run(tmp_path, replace(SMALL, name="other", share=0.5))
    catalog = RunCatalog(tmp_path)
    with locked(growing.run_lock(), "the run"):
        before = {run.name: run for run in catalog.scan()}
        version = catalog.version
        catalog.scan()
        assert catalog.version == version
        with growing.session_csv(0, 0, "train").open("a") as table:
            table.write(",".join(["7", "8", "0", "0", "90", *["0"] * 10]) + "\n")
        after = {run.name: run for run in catalog.scan()}
    assert catalog.version == version + 1
    assert after["other"].frame == (90 + 50) / 2
    assert after[settled.name] is before[settled.name]


def test_runs_that_come_and_go_are_seen(tmp_path):
    catalog = RunCatalog(tmp_path)
    assert catalog.scan() == ()
    layout = write_run(tmp_path, SMALL)
    assert [run.name for run in catalog.scan()] == ["ppo_cartpole"]
    key = layout.predir.name
    assert catalog.get(key) is catalog.scan()[0]
    shutil.rmtree(layout.predir)
    assert catalog.scan() == ()
    assert catalog.get(key) is None


def test_the_latest_run_comes_first_and_nested_folders_are_searched(tmp_path):
    write_run(tmp_path, replace(SMALL, name="old", ts="2026_01_01_000000"))
    write_run(tmp_path / "more" / "runs", replace(SMALL, name="new", ts="2026_02_01_000000"))
    keys = [run.key for run in RunCatalog(tmp_path).scan()]
    assert keys == ["more/runs/new_2026_02_01_000000", "old_2026_01_01_000000"]


def test_a_run_folder_is_a_data_folder_of_one(tmp_path):
    layout = write_run(tmp_path, SMALL)
    catalog = RunCatalog(layout.predir)
    (run,) = catalog.scan()
    assert run.key == layout.predir.name
    assert catalog.get(run.key) is run
    assert catalog.get(".") is None


def test_the_validation_runs_of_a_search_are_runs_too(tmp_path):
    layout = write_run(tmp_path, SMALL)
    again = write_run(layout.validation_dir(), replace(SMALL, name="again"))
    keys = {run.key for run in RunCatalog(tmp_path).scan()}
    name = layout.predir.name
    assert keys == {name, f"{name}/validation/{again.predir.name}"}


def search(root: Path, *ends: Status) -> Journal:
    layout = write_run(root, replace(SMALL, sessions=1, values={"meta.max_trial": 3}))
    journal = Journal(layout.journal_path())
    for trial, end in enumerate(ends):
        journal.start(trial, {"x": 0.5}, {"agent.algorithm.gamma": 0.9})
        journal.report(trial, TrialReport(100, 10.0 * trial, 1.0))
        if end != "running":
            journal.end(trial, end, 10.0 * trial)
    return journal


def test_a_search_has_the_score_of_its_best_trial_that_can_be_run_again(tmp_path):
    search(tmp_path, "completed", "stopped", "diverged")
    run = only(tmp_path)
    assert (run.kind, run.status) == ("search", "done")
    assert (run.score, run.trial, run.trials, run.max_trial) == (10.0, 1, 3, 3)


def test_a_search_with_trials_left_is_resumable(tmp_path):
    search(tmp_path, "completed", "running")
    run = only(tmp_path)
    assert (run.status, run.reason) == ("resumable", "2 of 3 trial(s) left")
    assert run.progress == pytest.approx(1 / 3)


def test_looking_at_a_journal_leaves_a_half_written_line_to_its_writer(tmp_path):
    journal = search(tmp_path, "completed")
    with journal.path.open("a") as file:
        file.write('{"event": "end", "tri')
    text = journal.path.read_text()
    assert only(tmp_path).trials == 1
    assert journal.path.read_text() == text


def test_a_search_without_one_good_trial_has_failed(tmp_path):
    search(tmp_path, "failed", "diverged", "failed")
    assert only(tmp_path).status == "failed"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"agent": 3, "env": null, "meta": []}', '{"env": {"max_frame": 1e999}}', "\0"],
)
def test_a_damaged_spec_is_still_a_run(tmp_path, text):
    layout = write_run(tmp_path, SMALL)
    layout.spec_path().write_text(text)
    run = only(tmp_path)
    assert run.status in ("failed", "resumable", "done")
    assert run.name == "ppo_cartpole"


@pytest.mark.parametrize("content", ["NaN", "[1]", '{"total_reward_ma": "x"}', "{" * 10_000])
def test_damaged_metrics_and_tables_give_no_score(tmp_path, content):
    layout = write_run(tmp_path, SMALL)
    layout.trial_metrics_scalar(0).write_text(content)
    for session in range(2):
        for mode in ("train", "eval"):
            layout.session_csv(0, session, mode).write_text(content)
    assert only(tmp_path).score is None


def test_links_that_lead_out_are_not_followed(tmp_path):
    outside = write_run(tmp_path / "outside", SMALL)
    root = tmp_path / "data"
    inside = write_run(root, replace(SMALL, name="inside", share=0.5))
    (root / "linked").symlink_to(outside.predir)
    table = inside.session_csv(0, 0, "train")
    table.unlink()
    table.symlink_to(outside.session_csv(0, 0, "train"))
    inside.log_path(0).unlink()
    inside.log_path(0).symlink_to(outside.log_path(0))
    (run,) = RunCatalog(root).scan()
    assert (run.name, run.frame) == ("inside", 50)  # of the session that is really there


def test_a_run_of_the_original_without_checkpoints_is_done_once_it_has_metrics(tmp_path):
    layout = write_run(tmp_path, SMALL)
    shutil.rmtree(layout.predir / "checkpoint")
    assert only(tmp_path).status == "done"


def test_one_folder_can_be_asked_for_and_another_is_refused(tmp_path):
    layout = write_run(tmp_path, SMALL)
    assert read_run(layout.predir).status == "done"
    with pytest.raises(RunFolderError, match="not a run folder"):
        read_run(tmp_path / "nothing")


def test_every_word_of_a_pattern_has_to_fit(tmp_path):
    write_run(tmp_path, SMALL)
    run = only(tmp_path)
    assert run.matches("")
    assert run.matches("PPO done cartpole")
    assert not run.matches("ppo failed")
    assert run.matches("p?o cart*v1")
    assert not run.matches("cart*v2")


@pytest.mark.slow
def test_a_real_training_is_found_done(tmp_path, make_spec):
    from slm_lab.api.run import run as train

    spec = make_spec(env__max_frame=64, meta__log_frequency=16)
    metrics = train(spec, "train", RunOptions(data_dir=str(tmp_path), log_level="ERROR"))
    run = only(tmp_path)
    assert (run.status, run.sessions, run.frame) == ("done", spec.meta.max_session, 64)
    assert run.score == pytest.approx(metrics.total_reward_ma)
    assert run.seed == only(tmp_path).seed


# Folders from elsewhere


def write_bad_run(root: Path) -> RunLayout:
    """A run that was cut short, beside a healthy one."""
    write_run(root, replace(SMALL, ts="2026_01_02_000000"))
    return write_run(root, replace(SMALL, share=0.5))


def replaced_by_pipe(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize(
    "place",
    [
        "checkpoint/run.lock",
        "log/ppo_cartpole_t0.log",
        "info/ppo_cartpole_t0_trial_metrics_scalar.json",
        "info/ppo_cartpole_t0_s0_session_df_train.csv",
        "info/ppo_cartpole_t0_s0_session_df_eval.csv",
        "checkpoint/ppo_cartpole_t0_s0/last/manifest.json",
        "ppo_cartpole_spec.json",
    ],
)
def test_a_pipe_in_the_place_of_a_file_neither_hangs_the_list_nor_hides_a_run(tmp_path, place):
    bad = write_bad_run(tmp_path)
    replaced_by_pipe(bad.predir / place)
    healthy, other = RunCatalog(tmp_path).scan()
    assert (healthy.status, other.folder) == ("done", bad.predir)
    write_report(bad.predir)


@pytest.mark.parametrize(
    "place", ["checkpoint/run.lock", "ppo_cartpole_spec.json", "log/ppo_cartpole_t0.log"]
)
def test_a_file_of_20_gigabytes_is_not_read_whole(tmp_path, place):
    bad = write_bad_run(tmp_path)
    (bad.predir / place).parent.mkdir(exist_ok=True)
    with (bad.predir / place).open("ab") as file:
        file.truncate(20 * 10**9)  # sparse: it takes no space
    assert len(RunCatalog(tmp_path).scan()) == 2
    write_report(bad.predir)


def test_a_spec_that_asks_for_ten_trillion_sessions_is_listed_at_once(tmp_path):
    write_run(tmp_path, replace(SMALL, share=0.5, values={"meta.max_session": 10**13}))
    run = only(tmp_path)
    assert (run.status, run.reason) == (
        "resumable",
        "10000000000000 of 10000000000000 session(s) left to finish",
    )


@pytest.mark.parametrize("frame", ["1e308", "-1e308", "NaN", "1" * 400])
def test_a_frame_that_no_run_can_have_counts_as_none(tmp_path, frame):
    layout = write_run(tmp_path, SMALL)
    text = f'{{"total_reward_ma": 1.0, "frame": {frame}}}'
    layout.trial_metrics_scalar(0).write_text(text)
    run = only(tmp_path)
    assert (run.frame, run.score, run.progress) == (0, 1.0, 0.0)
    write_report(layout.predir)


def test_a_stray_spec_in_the_data_folder_hides_no_run(tmp_path):
    (tmp_path / "my_spec.json").write_text("{}")
    catalog = RunCatalog(tmp_path)
    catalog.scan()  # the folder may be empty at first
    layout = write_run(tmp_path, SMALL)
    assert [run.folder for run in catalog.scan()] == [layout.predir]
    layout.predir.rename(tmp_path / "renamed")
    assert [run.key for run in RunCatalog(tmp_path).scan()] == ["renamed"]


def test_a_journal_with_impossible_numbers_stops_neither_the_list_nor_the_report(tmp_path):
    layout = write_run(tmp_path, SMALL)
    journal = Journal(layout.journal_path())
    journal.start(0, {}, {"agent.net.hid_layers": [1]})
    journal.report(0, TrialReport(10, 5.0, 1.0))
    with layout.journal_path().open("a") as file:
        file.write('{"event": "start", "trial": 1, "point": {}, "values": 3}\n')
        file.write('{"event": "report", "trial": 1, "frame": 1e308, "score": "x", "seconds": 1}\n')
        file.write(
            '{"event": "end", "trial": 1, "status": "completed", "score": 1, "reason": ""}\n'
        )
    assert only(tmp_path).kind == "search"
    write_report(layout.predir)


def test_whatever_is_wrong_with_a_folder_it_is_a_row_and_the_others_are_listed(
    tmp_path, monkeypatch
):
    bad = write_bad_run(tmp_path)

    def broken(layout, trial):
        if layout.predir == bad.predir:
            raise ZeroDivisionError
        return ()

    monkeypatch.setattr("slm_lab.runs.layout.RunLayout.sessions", broken)
    healthy, other = RunCatalog(tmp_path).scan()
    assert healthy.status == "done"
    assert (other.status, other.reason) == ("failed", "cannot be read: ZeroDivisionError()")


def test_a_lone_surrogate_in_a_spec_is_shown_as_a_question_mark(tmp_path):
    layout = write_run(tmp_path, SMALL)
    tree = json.loads(layout.spec_path().read_text())
    tree["env"]["name"] = "Cart\ud800Pole"
    layout.spec_path().write_text(json.dumps(tree))
    path = write_report(layout.predir)
    assert "Cart?Pole" in path.read_text(encoding="utf-8")
