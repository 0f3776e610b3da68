"""Graphs of a trial while it trains, drawn by a process of their own.

    with live_graphs(layout, trial):
        ...train...

The process sees only the folder: when a table has grown it draws the graphs over, as at the end. It
gives way to whatever else wants the core, rests far longer than it draws, waits before its first
graph so that a short run never meets it, and ends when its standard input does: with the block, or
with the process that trains, however that ends. Whatever goes wrong in it stays in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from loguru import logger

from slm_lab.runs.layout import RunLayout
from slm_lab.training.lifetime import end_with

FIRST_AFTER_SECONDS = 30.0
EVERY_SECONDS = 30.0
DRAWING_SHARE = 0.02  # of the time, at most
MODULE = "slm_lab.api.live_graphs"


@contextmanager
def live_graphs(
    layout: RunLayout,
    trial: int,
    *,
    first_after: float = FIRST_AFTER_SECONDS,
    every: float = EVERY_SECONDS,
    share: float = DRAWING_SHARE,
) -> Iterator[None]:
    """Have the graphs of a trial drawn while the block runs; `share` is how much of the time."""
    arguments = (layout.predir.resolve(), trial, first_after, every, share)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A Ctrl-C is not for it. But not a session of its own: Linux shares the cores between
            # sessions first, and there a low priority is none.
            process_group=0,
        )
    except OSError as error:  # no memory or no process left for it: the run is worth more
        logger.debug(f"no graphs while training: {error}")
        yield
        return
    try:
        yield
    finally:
        process.kill()  # between two files: each is written beside and renamed
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def draw_whenever_it_grew(
    layout: RunLayout, trial: int, first_after: float, every: float, share: float
) -> None:
    """Draw, rest, look whether a table has grown, and so on for ever."""
    rest, drawn = first_after, ""
    while True:
        time.sleep(rest)
        rest, state = every, _state(layout, trial)
        if state == drawn:
            continue
        began = time.process_time()
        with suppress(Exception):  # a table cut short just now; the next round sees it whole
            _draw(layout, trial)
        rest = max(every, (time.process_time() - began) / share)
        drawn = state


def _draw(layout: RunLayout, trial: int) -> None:
    # pandas and matplotlib take a second to import; a run that ends before never pays it.
    from slm_lab.analysis.sessions import read_sessions
    from slm_lab.analysis.trial_graphs import draw_trial

    logger.remove()
    sessions = [s for s in read_sessions(layout, trial) if not s.tables["train"].empty]
    if sessions:
        draw_trial(layout, trial, sessions)


def _state(layout: RunLayout, trial: int) -> str:
    """Changes when a table does."""
    tables = (layout.session_csv(trial, s, "train") for s in layout.sessions(trial))
    return " ".join(f"{path.name}:{path.stat().st_mtime_ns}" for path in tables)


def _give_way() -> None:
    """To the sessions, which want every core: it gets a fiftieth of one that is wanted.

    Not less: as an idle process it would draw its first graph after minutes on a machine that is
    fully used, which is when somebody waits for it.
    """
    os.nice(19)


if __name__ == "__main__":
    folder, index, *pace = sys.argv[1:]
    end_with(sys.stdin.read)  # at once, also in the middle of a graph
    _give_way()
    draw_whenever_it_grew(RunLayout.open(folder), int(index), *map(float, pace))
