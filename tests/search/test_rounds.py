"""One trial of a search: its sessions go together, and their mean is its score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="the extra `search` is not installed")

from slm_lab.analysis.tables import drop_clock, read_session
from slm_lab.runs.checkpoint_manifest import read_manifest
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.resume import is_finished
from slm_lab.search.worker import Round, SearchJob, StopFile, TrialRounds
from slm_lab.spec import Spec
from slm_lab.training.options import RunOptions

FLOOR = -7.0


@pytest.fixture
def run_rounds(tmp_path: Path):
    def run(spec: Spec, rounds: tuple[int, ...], **options: Any) -> tuple[RunLayout, list[Round]]:
        layout = RunLayout.create(spec.name, "now", tmp_path)
        trial = begin(spec, layout, rounds=rounds, **options)
        reports: list[Round] = []
        while not (reports and (reports[-1].done or reports[-1].interrupted)):
            reports.append(trial.advance())
        trial.close()
        return layout, reports

    return run


def last_average(layout: RunLayout, session: int) -> float:
    table = read_session(layout.session_csv(0, session, "train"))
    return float(table["total_reward_ma"].iloc[-1])


def test_the_sessions_advance_together_and_report_their_mean(make_spec, run_rounds):
    layout, reports = run_rounds(make_spec(meta__max_session=2), (100, 150, 200))
    assert [report.frame for report in reports] == [100, 150, 200]
    assert [report.done for report in reports] == [False, False, True]
    mean = (last_average(layout, 0) + last_average(layout, 1)) / 2
    assert reports[-1].score == pytest.approx(mean)
    assert last_average(layout, 0) != last_average(layout, 1)


def test_training_in_rounds_gives_the_curves_of_training_in_one_go(make_spec, run_rounds):
    spec = make_spec(meta__max_session=2)
    rounds, _ = run_rounds(spec, (70, 130, 200))
    at_once, _ = run_rounds(spec, (200,))
    for session in (0, 1):
        tables = [
            drop_clock(read_session(layout.session_csv(0, session, "train")))
            for layout in (rounds, at_once)
        ]
        assert tables[0].equals(tables[1])


def test_each_session_has_its_own_log(make_spec, run_rounds):
    layout, _ = run_rounds(make_spec(meta__max_session=2), (200,))
    for session, other in ((0, 1), (1, 0)):
        text = layout.log_path(0, session).read_text()
        assert f"tiny_t0_s{session}: PPO" in text
        assert f"tiny_t0_s{other}" not in text


def test_before_an_episode_ends_the_floor_stands_for_the_score(make_spec, run_rounds):
    spec = make_spec(env__name="CartPole-v1", meta__log_frequency=2)
    _, reports = run_rounds(spec, (2, 200))
    assert reports[0].score == FLOOR
    assert reports[-1].score > 8


def test_a_trial_that_diverges_ends_with_the_floor_and_says_why(make_spec, run_rounds, faulty):
    """Its env gives an infinite reward, so the loss is infinite and the return would be too."""
    spec = make_spec(env__name=faulty, env__fault="reward", meta__max_session=2)
    _, reports = run_rounds(spec, (100, 150, 200))
    assert [report.frame for report in reports] == [100, 100]  # the other session waits there
    assert reports[-1].done
    assert reports[-1].score == FLOOR
    assert reports[-1].diverged.startswith(
        "session 0: env.name: `faulty_env:Faulty-v0` gave reward = inf"
    )
    assert "diverged by it at frame 128" in reports[-1].diverged


def test_an_infinite_return_is_a_divergence_and_not_the_best_score(make_spec, run_rounds, faulty):
    """The return is infinite before anything was learned from it."""
    spec = make_spec(env__name=faulty, env__fault="reward", env__after=10, meta__log_frequency=24)
    _, reports = run_rounds(spec, (24, 200))
    assert (reports[-1].frame, reports[-1].done) == (24, True)
    assert reports[-1].score == FLOOR
    assert reports[-1].diverged == "a return is infinite"


def test_a_round_that_is_cut_short_says_so(make_spec, run_rounds):
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 60

    _, reports = run_rounds(make_spec(), (100, 200), should_stop=should_stop)
    assert reports[0] == Round(100, reports[0].score, reports[0].seconds)
    assert reports[1].interrupted
    assert not reports[1].done


def test_a_round_that_is_cut_short_is_on_disk_before_it_says_so(make_spec, tmp_path):
    layout = RunLayout.create("tiny", "now", tmp_path)
    asked = iter([False] * 30)
    trial = begin(make_spec(), layout, should_stop=lambda: next(asked, True))
    assert trial.advance().interrupted
    assert read_manifest(layout.checkpoint_dir(0, 0) / "last").frame == 60
    trial.close()


def test_a_session_that_a_callback_ended_waits_for_the_others_of_its_trial(make_spec, tmp_path):
    """Of EarlyStopping on `frame`, whose improvement never counts: both end at the third row."""
    ends = [{"name": "EarlyStopping", "patience": 60, "column": "frame", "least": 1000}]
    trial = begin(make_spec(meta__callbacks=ends), RunLayout.create("tiny", "one", tmp_path))
    assert not trial.advance().done
    end = trial.advance()
    assert (end.frame, end.done, end.interrupted) == (200, True, False)

    layout = RunLayout.create("tiny", "two", tmp_path)
    trial = begin(make_spec(meta__max_session=2, meta__callbacks=ends), layout)
    trial._sessions[1]._callbacks._all = ()
    assert not trial.advance().done
    end = trial.advance()
    assert (end.frame, end.done, end.interrupted) == (200, True, False)
    frames = [read_manifest(layout.checkpoint_dir(0, s) / "last").frame for s in (0, 1)]
    assert frames == [150, 200]


def test_a_stop_file_is_looked_for_now_and_then(tmp_path):
    now = 0.0
    stop = StopFile(tmp_path / "stop", clock=lambda: now)
    assert not stop()
    (tmp_path / "stop").touch()
    now = 0.1
    assert not stop(), "asked again at once, it does not look at the disk"
    now = 1.0
    assert stop()


# What is on disk when a trial says that it is over


def begin(spec: Spec, layout: RunLayout, **options: Any) -> TrialRounds:
    should_stop = options.pop("should_stop", lambda: False)
    lists = {"rounds": (100, 200), "rungs": (), **options}
    job = SearchJob(spec, "", "", RunOptions(mode="search", resume=True), floor=FLOOR, **lists)
    return TrialRounds(job, layout, 0, should_stop)


def test_a_trial_is_finished_on_disk_before_it_reports_that_it_is_done(make_spec, tmp_path):
    layout = RunLayout.create("tiny", "now", tmp_path)
    trial = begin(make_spec(meta__max_session=2), layout)
    assert not trial.advance().done
    assert [is_finished(layout, 0, session) for session in (0, 1)] == [False, False]
    assert trial.advance().done
    assert [is_finished(layout, 0, session) for session in (0, 1)] == [True, True]
    assert read_session(layout.session_csv(0, 1, "train"))["frame"].max() == 200


def test_where_a_trial_may_be_stopped_its_files_are_those_of_that_round(make_spec, tmp_path):
    layout = RunLayout.create("tiny", "now", tmp_path)
    trial = begin(make_spec(), layout, rungs=(100,))
    trial.advance()
    before = {path.name: path.stat().st_ino for path in (layout.predir / "model").iterdir()}
    assert read_manifest(layout.checkpoint_dir(0, 0) / "last").frame == 100
    assert len(read_session(layout.session_csv(0, 0, "train"))) == 2
    trial.close()  # stopped there: nothing is left to write
    after = {path.name: path.stat().st_ino for path in (layout.predir / "model").iterdir()}
    assert after == before


def test_a_trial_killed_between_the_ends_of_its_sessions_goes_on_to_the_same_end(
    make_spec, tmp_path
):
    spec = make_spec(meta__max_session=2)
    whole = begin(spec, RunLayout.create("tiny", "whole", tmp_path))
    whole.advance()
    expected = whole.advance()

    layout = RunLayout.create("tiny", "killed", tmp_path)
    killed = begin(spec, layout)
    killed.advance()
    for session in killed._sessions:
        session.advance(200)
    killed._sessions[0].close()
    killed._resources.close()
    resumed = begin(spec, layout)
    assert [session.frame for session in resumed._sessions] == [200, 0]
    resumed.advance()
    end = resumed.advance()
    assert (end.frame, end.score, end.done) == (200, expected.score, True)
