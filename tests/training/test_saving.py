"""When a session saves itself: by the clock, or every so many frames."""

from __future__ import annotations

from slm_lab.training.saving import SaveSchedule


def schedule(every_frames: int | None) -> SaveSchedule:
    return SaveSchedule(every_frames, clock=lambda: 0.0)


def test_without_a_frequency_the_clock_decides():
    saves = schedule(None)
    assert not saves.is_due(frame=10**9, now=19.9)
    assert saves.is_due(frame=0, now=20.0)


def test_saving_takes_no_more_than_a_hundredth_of_the_time():
    saves = schedule(None)
    saves.saved(frame=100, seconds=1.0)
    assert not saves.is_due(frame=200, now=99.9)
    assert saves.is_due(frame=200, now=100.0)


def test_with_a_frequency_frames_decide_and_a_late_save_moves_nothing():
    saves = schedule(100)
    assert not saves.is_due(frame=96, now=1e9)
    assert saves.is_due(frame=104, now=0.0)
    saves.saved(frame=104, seconds=1e3)
    assert not saves.is_due(frame=196, now=1e9)
    assert saves.is_due(frame=200, now=0.0)


def test_it_tells_what_saving_has_cost():
    saves = schedule(None)
    saves.bytes = 2_500_000
    saves.saved(frame=1, seconds=1.0)
    saves.saved(frame=2, seconds=1.0)
    text = saves.describe(training_seconds=99.0)
    assert text == "saved 2 time(s) in 2.00 s, 2.0% of its time; a checkpoint takes 2.5 MB"
