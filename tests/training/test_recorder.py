import copy
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from slm_lab.analysis.metrics import moving_average
from slm_lab.analysis.tables import read_session
from slm_lab.runs.layout import RunLayout
from slm_lab.training.recorder import Recorder

nan = math.nan


@pytest.fixture
def layout(tmp_path):
    return RunLayout.create("demo", "2026_01_01_000000", tmp_path)


def row(frame, total_reward, **more):
    return {
        "total_reward": total_reward,
        "loss": 0.5,
        "fps": 1000.0,
        "frame": frame,
        "wall_t": 0.0,
        "t": frame // 4,
        "epi": nan,
        "opt_step": frame // 10,
        "lr": 3e-4,
        **more,
    }


def csv(layout, mode="train"):
    return layout.session_csv(0, 0, mode)


def header(layout):
    return csv(layout).read_text().splitlines()[0].split(",")


def test_a_row_is_written_with_the_columns_in_their_order(layout):
    recorder = Recorder(layout, 0, 0)
    recorder.record(row(100, 20.0))
    assert csv(layout).read_text() == (
        "total_reward,total_reward_ma,loss,fps,frame,wall_t,t,epi,opt_step,lr\n"
        "20.0,20.0,0.5,1000.0,100,0.0,25,,10,0.0003\n"
    )


def test_further_columns_follow_the_base_in_the_order_given(layout):
    Recorder(layout, 0, 0).record(
        row(100, 1.0, grad_norm=0.5, clip_eps=0.2, entropy=0.6, surprise=0.1)
    )
    assert header(layout)[10:] == ["grad_norm", "clip_eps", "entropy", "surprise"]


def test_a_column_that_appears_later_is_empty_in_earlier_rows(layout):
    recorder = Recorder(layout, 0, 0)
    recorder.record(row(100, 1.0, kl=0.1))
    recorder.record(row(200, 2.0, kl=0.2, entropy=0.6))
    recorder.record(row(300, 3.0))
    table = read_session(csv(layout))
    assert list(table)[10:] == ["kl", "entropy"]
    assert table["entropy"].tolist() == pytest.approx([nan, 0.6, nan], nan_ok=True)
    assert table["kl"].tolist() == pytest.approx([0.1, 0.2, nan], nan_ok=True)


def test_the_moving_average_is_that_of_the_analysis(layout):
    recorder = Recorder(layout, 0, 0)
    rewards = [nan, *(float(i % 7) for i in range(130))]
    for i, reward in enumerate(rewards):
        recorder.record(row(100 * (i + 1), reward))
    table = read_session(csv(layout))
    assert table["total_reward_ma"].to_numpy() == pytest.approx(
        moving_average(rewards), rel=1e-6, nan_ok=True
    )
    assert recorder.total_reward_ma == table["total_reward_ma"].iloc[-1]


def test_a_checkpoint_that_ties_or_beats_the_best_average_says_so(layout):
    recorder = Recorder(layout, 0, 0)
    # moving averages: NaN, 10, 15, 13.3, 13.3... then back up to 15
    rewards = [nan, 10.0, 20.0, 10.0, 20.0]
    is_best = [recorder.record(row(100 * (i + 1), reward)) for i, reward in enumerate(rewards)]
    assert is_best == [False, True, True, False, True]
    assert recorder.best == 15.0


def test_nothing_is_best_before_the_first_gradient_step(layout):
    """With -1 a step the episodes that end first are short: an untrained agent seems the best."""
    recorder = Recorder(layout, 0, 0)
    rewards, steps = [-25.0, -68.0, -70.0, -30.0], [0, 0, 5, 10]
    rows = [
        row(100 * (i + 1), r, opt_step=s)
        for i, (r, s) in enumerate(zip(rewards, steps, strict=True))
    ]
    assert [recorder.record(each) for each in rows] == [False, False, True, True]
    assert recorder.best == pytest.approx(-(25 + 68 + 70 + 30) / 4)


def test_before_any_episode_ends_nothing_is_best(layout):
    recorder = Recorder(layout, 0, 0)
    assert not recorder.record(row(100, nan))
    assert math.isnan(recorder.best)
    assert math.isnan(recorder.total_reward_ma)


def test_values_are_float32_but_counters_are_exact(layout):
    recorder = Recorder(layout, 0, 0)
    recorder.record(row(16_777_217, 1 / 3))  # 2**24 + 1 is no float32
    table = read_session(csv(layout))
    assert table["frame"].item() == 16_777_217
    assert np.float32(table["total_reward"].item()) == np.float32(1 / 3)
    assert ",16777217," in csv(layout).read_text()


def test_the_same_run_writes_the_same_bytes(tmp_path):
    written = []
    for ts in ("a", "b"):
        layout = RunLayout.create("demo", ts, tmp_path)
        recorder = Recorder(layout, 0, 0)
        for i in range(1, 20):
            recorder.record(row(100 * i, math.sin(i), entropy=1 / i))
        recorder.close()
        written.append(csv(layout).read_bytes())
    assert written[0] == written[1]


def test_a_second_row_at_the_same_frame_replaces_the_first(layout):
    recorder = Recorder(layout, 0, 0)
    for frame, reward in [(100, 1.0), (200, 2.0), (200, 5.0)]:
        recorder.record(row(frame, reward))
    table = read_session(csv(layout))
    assert table["frame"].tolist() == [100, 200]
    assert table["total_reward_ma"].tolist() == [1.0, 3.0]


def test_frames_never_run_backwards(layout):
    recorder = Recorder(layout, 0, 0)
    recorder.record(row(200, 1.0))
    with pytest.raises(ValueError, match="frame: 100 recorded after 200"):
        recorder.record(row(100, 1.0))


def test_a_row_must_say_where_it_is_and_what_it_earned(layout):
    with pytest.raises(ValueError, match="row lacks frame, total_reward; found loss"):
        Recorder(layout, 0, 0).record({"loss": 1.0})


RECORD_AND_DIE = """
import os, sys
from pathlib import Path
from slm_lab.runs.layout import RunLayout
from slm_lab.training.recorder import Recorder

recorder = Recorder(RunLayout(Path(sys.argv[1]), "demo"), 0, 0)
recorder.record({"frame": 100, "total_reward": 1.0})
recorder.record({"frame": 200, "total_reward": 2.0})
os._exit(9)  # as a kill: nothing is closed, flushed or cleaned up
"""


def test_a_crash_leaves_every_row_recorded_so_far(layout):
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", RECORD_AND_DIE, str(layout.predir)]
    assert subprocess.run(command, cwd=root, check=False).returncode == 9
    assert read_session(csv(layout))["frame"].tolist() == [100, 200]
    assert scalars(layout, "total_reward/trial0_session0") == [(100, 1.0), (200, 2.0)]
    assert not csv(layout, "eval").exists()


# The eval table


def test_without_separate_evaluations_no_file_claims_to_be_one(layout):
    recorder = Recorder(layout, 0, 0)
    recorder.record(row(100, 1.0))
    assert recorder.write_tables()
    assert csv(layout).exists()
    assert not csv(layout, "eval").exists()


def test_separate_evaluations_have_a_table_and_an_average_of_their_own(layout):
    recorder = Recorder(layout, 0, 0)
    recorder.record(row(100, 1.0))
    recorder.record_eval(row(100, 7.0))
    recorder.record_eval(row(200, 9.0))
    recorder.close()
    assert read_session(csv(layout, "eval"))["total_reward_ma"].tolist() == [7.0, 8.0]
    assert read_session(csv(layout))["total_reward"].tolist() == [1.0]
    assert recorder.best == 1.0


def test_a_session_that_never_reached_a_checkpoint_leaves_an_empty_table(layout):
    Recorder(layout, 0, 0).write_tables()
    assert read_session(csv(layout)).empty


# Resume


def test_a_resumed_recorder_goes_on_as_if_it_had_never_stopped(tmp_path):
    rewards = [nan, 3.0, 9.0, 4.0, 8.0, 1.0]
    rows = [row(100 * (i + 1), reward, alpha=1 / (i + 1)) for i, reward in enumerate(rewards)]
    straight = RunLayout.create("demo", "straight", tmp_path)
    whole = Recorder(straight, 0, 0)
    best_straight = [whole.record(r) for r in rows]
    whole.close()

    resumed = RunLayout.create("demo", "resumed", tmp_path)
    first = Recorder(resumed, 0, 0)
    best_resumed = [first.record(r) for r in rows[:3]]
    state = copy.deepcopy(first.state_dict())
    first.record(row(350, 100.0))  # after the checkpoint, then killed
    second = Recorder(resumed, 0, 0)
    second.load_state_dict(state)
    assert read_session(csv(resumed))["frame"].tolist() == [100, 200, 300]
    best_resumed += [second.record(r) for r in rows[3:]]
    second.close()

    assert csv(resumed).read_bytes() == csv(straight).read_bytes()
    assert best_resumed == best_straight
    assert second.state_dict()["train"].keys() == whole.state_dict()["train"].keys()


def test_resuming_a_session_removes_the_copy_that_an_earlier_version_named_eval(layout):
    recorder = Recorder(layout, 0, 0)
    recorder.record(row(100, 1.0))
    recorder.write_tables()
    csv(layout, "eval").write_bytes(csv(layout).read_bytes())
    Recorder(layout, 0, 0).load_state_dict(recorder.state_dict())
    assert not csv(layout, "eval").exists()


# TensorBoard


def events(layout) -> EventAccumulator:
    accumulator = EventAccumulator(str(layout.log_dir()))
    accumulator.Reload()
    return accumulator


def scalars(layout, tag):
    return [(event.step, event.value) for event in events(layout).Scalars(tag)]


def test_tensorboard_shows_every_known_value_at_its_frame(layout):
    recorder = Recorder(layout, 2, 3)
    recorder.record(row(100, 1.5, loss=nan, alpha=0.25))
    recorder.record(row(200, 2.5, loss=0.5, alpha=0.125))
    recorder.record_eval(row(200, 8.0))
    recorder.close()
    (file,) = layout.log_dir().iterdir()
    assert file.name.startswith("events.out.tfevents.")
    assert file.name.endswith("demo_t2_s3")
    assert scalars(layout, "total_reward/trial2_session3") == [(100, 1.5), (200, 2.5)]
    assert scalars(layout, "loss/trial2_session3") == [(200, 0.5)]
    assert scalars(layout, "alpha/trial2_session3") == [(100, 0.25), (200, 0.125)]
    assert scalars(layout, "eval_total_reward/trial2_session3") == [(200, 8.0)]
