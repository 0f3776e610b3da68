"""Graphs while a trial trains: drawn beside it, and gone with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable

import psutil
import pytest

from slm_lab.api.live_graphs import MODULE, draw_whenever_it_grew, live_graphs
from slm_lab.runs.layout import RunLayout

HEADER = "total_reward,total_reward_ma,loss,fps,frame,wall_t,t,epi,opt_step,lr\n"
PATIENCE_SECONDS = 120.0  # the process gives way to all others


@pytest.fixture
def layout(tmp_path) -> RunLayout:
    """A run in its first minute: a session with two rows, one with none yet, one cut short."""
    layout = RunLayout.create("demo", "now", tmp_path)
    spec = json.dumps({"name": "demo", "env": {"name": "CartPole-v1"}})
    for path in (layout.spec_path(), layout.trial_spec_path(0)):
        path.write_text(spec)
    layout.session_csv(0, 0, "train").write_text(HEADER + "1.0,1.0,,9,100,0,50,,0,\n" * 2)
    layout.session_csv(0, 1, "train").write_text(HEADER)
    return layout


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "waited long enough"
        time.sleep(0.05)


def processes(layout: RunLayout) -> list[int]:
    """Ids of the processes that draw graphs of this folder."""
    wanted = {MODULE, str(layout.predir.resolve())}
    running = psutil.process_iter(["cmdline"])
    return [process.pid for process in running if wanted <= set(process.info["cmdline"] or ())]


@pytest.mark.slow
def test_graphs_appear_while_the_run_goes_on_and_follow_its_tables(layout):
    graph = layout.trial_graph_copy(0, "mean_returns_ma")
    with live_graphs(layout, 0, first_after=0.0, every=0.05, share=1.0):
        wait_until(layout.trial_graph_html(0).exists)
        before = graph.stat().st_ino  # replaced, not written into
        with layout.session_csv(0, 0, "train").open("a") as table:
            table.write("5.0,3.0,,9,300,0,150,,0,\n")
        wait_until(lambda: graph.stat().st_ino != before)
    assert processes(layout) == []
    assert not layout.trial_metrics(0).exists(), "numbers come at the end"


def test_a_short_run_never_meets_it(layout):
    with live_graphs(layout, 0):
        wait_until(lambda: bool(processes(layout)))
    assert processes(layout) == []
    assert list((layout.predir / "graph").iterdir()) == []


def test_it_ends_with_a_run_that_is_killed(layout):
    code = f"""
        import pathlib, time
        from slm_lab.runs.layout import RunLayout
        from slm_lab.api.live_graphs import live_graphs
        with live_graphs(RunLayout(pathlib.Path({str(layout.predir)!r}), "demo"), 0):
            time.sleep(600)
    """
    run = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    try:
        wait_until(lambda: bool(processes(layout)))
    finally:
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    wait_until(lambda: not processes(layout))


class Ended(Exception):
    """The end of a loop that would run for ever."""


def test_a_table_that_cannot_be_read_is_drawn_once_it_can_be(layout):
    table = layout.session_csv(0, 0, "train")
    whole = table.read_text()
    table.write_text("no table at all")
    os.utime(table, (1, 1))
    drawn: list[bool] = []

    def sleep(seconds: float) -> None:
        drawn.append(layout.trial_graph_html(0).exists())
        if len(drawn) == 2:
            table.write_text(whole)
            os.utime(table, (2, 2))
        if len(drawn) == 3:
            raise Ended

    with pytest.raises(Ended):
        draw_whenever_it_grew(layout, 0, 30.0, 30.0, 1.0, sleep=sleep, clock=lambda: 0.0)
    assert drawn == [False, False, True]


def test_it_rests_so_long_that_drawing_takes_its_share_of_the_time(layout):
    """30 s before the first graph; 2 s of drawing are 2 % of 100 s; nothing new: 30 s again."""
    rests: list[float] = []
    seconds = iter([10.0, 12.0])

    def sleep(rest: float) -> None:
        rests.append(rest)
        if len(rests) == 3:
            raise Ended

    with pytest.raises(Ended):
        draw_whenever_it_grew(layout, 0, 30.0, 30.0, 0.02, sleep=sleep, clock=lambda: next(seconds))
    assert rests == [30.0, 100.0, 30.0]


def test_a_run_goes_on_without_it_if_it_cannot_be_started(layout, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with live_graphs(layout, 0):
        reached = True
    assert reached


@pytest.mark.skipif(not hasattr(os, "getsid"), reason="sessions are POSIX's")
def test_it_shares_the_session_of_the_run_and_not_its_ctrl_c(layout):
    """In a session of its own Linux would give it as much of the cores as the training gets."""
    with live_graphs(layout, 0):
        wait_until(lambda: len(processes(layout)) == 1)
        (process,) = processes(layout)
        assert os.getsid(process) == os.getsid(0)
        assert os.getpgid(process) == process
