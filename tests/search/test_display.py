"""What a person sees of a search."""

from __future__ import annotations

from io import StringIO

import pytest
from loguru import logger
from rich.console import Console

from slm_lab.runs.search_journal import TrialRecord, TrialReport
from slm_lab.search.display import SearchDisplay, trial_table
from slm_lab.search.plan import SearchPlan
from slm_lab.search.space import Dimension

PLAN = SearchPlan(
    space=(Dimension("agent.algorithm.gamma", "uniform", (0.9, 1.0)),),
    sampler="random",
    max_trial=4,
    max_session=2,
    max_frame=1000,
    log_frequency=100,
    halving=None,
    cpu=1,
    gpu=0,
)


def record(trial: int, score: float, status: str, frame: int = 500) -> TrialRecord:
    values = {"agent.algorithm.gamma": 0.912345}
    return TrialRecord(trial, {}, values, status, [TrialReport(frame, score, 1.0)])  # type: ignore[arg-type]


RECORDS = {
    0: record(0, 10.0, "stopped"),
    1: record(1, 90.0, "completed", 1000),
    2: record(2, 20.0, "running"),
}


@pytest.fixture
def lines():
    kept: list[str] = []
    handler = logger.add(kept.append, format="{message}", level="INFO")
    yield kept
    logger.remove(handler)


def test_the_table_has_running_trials_first_and_then_the_best():
    screen = StringIO()
    Console(file=screen, width=100, force_terminal=False).print(trial_table(RECORDS, PLAN))
    text = screen.getvalue()
    assert "2 of 4 trials done, 1 of them stopped early" in text
    places = [text.index(word) for word in ("running", "completed", "│ stopped")]
    assert places == sorted(places)
    assert "0.9123" in text


def test_into_a_file_a_trial_speaks_now_and_then_and_at_its_end(lines):
    now = 0.0
    console = Console(file=StringIO(), force_terminal=False)
    with SearchDisplay(PLAN, console=console, clock=lambda: now) as display:
        display.report(RECORDS, 2)
        now = 1.0
        display.report(RECORDS, 2)
        display.ended(RECORDS, 1)
    assert [line.rstrip() for line in lines] == [
        "Trial 2 | frame 500 of 1,000 | score 20.00",
        "Trial 1 completed at frame 1,000 | score 90.00 | gamma 0.9123 | 2 of 4 trials done",
    ]
