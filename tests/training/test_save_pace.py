"""When a session saves itself: by the clock, or every so many frames."""

from __future__ import annotations

import pytest

from slm_lab.training.save_pace import SavePace


@pytest.fixture(autouse=True)
def at_zero(monkeypatch):
    monkeypatch.setattr("slm_lab.training.save_pace.time.perf_counter", lambda: 0.0)


def test_without_a_frequency_the_clock_decides():
    pace = SavePace(None)
    assert not pace.is_due(frame=10**9, now=19.9)
    assert pace.is_due(frame=0, now=20.0)


def test_saving_takes_no_more_than_a_hundredth_of_the_time():
    pace = SavePace(None)
    pace.saved(frame=100, seconds=1.0)
    assert not pace.is_due(frame=200, now=99.9)
    assert pace.is_due(frame=200, now=100.0)


def test_with_a_frequency_frames_decide_and_a_late_save_moves_nothing():
    pace = SavePace(100)
    assert not pace.is_due(frame=96, now=1e9)
    assert pace.is_due(frame=104, now=0.0)
    pace.saved(frame=104, seconds=1e3)
    assert not pace.is_due(frame=196, now=1e9)
    assert pace.is_due(frame=200, now=0.0)


def test_it_tells_what_saving_has_cost():
    pace = SavePace(None)
    pace.bytes = 2_500_000
    pace.saved(frame=1, seconds=1.0)
    pace.saved(frame=2, seconds=1.0)
    text = pace.describe(training_seconds=99.0)
    assert text == "saved 2 time(s) in 2.00 s, 2.0% of its time; a checkpoint takes 2.5 MB"
