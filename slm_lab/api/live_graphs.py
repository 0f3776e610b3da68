"""Draw the graphs of a trial while it trains, in a process of their own.

    with live_graphs(layout, trial):
        ...train...

The process sees only the folder: when a table has grown, it draws the graphs again, as at the end.
It runs at low priority, draws at most 2 % of the time, and waits before its first graph, so that a
short run has none. It ends when its standard input does: with the block, or with the process that
trains, however that ends. An error in it stays in it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from loguru import logger

from slm_lab.runs.layout import RunLayout

FIRST_AFTER_SECONDS = 30.0
EVERY_SECONDS = 30.0
DRAWING_SHARE = 0.02  # of the time, at most
MODULE = "slm_lab.api.graph_process"


@contextmanager
def live_graphs(
    layout: RunLayout,
    trial: int,
    *,
    first_after: float = FIRST_AFTER_SECONDS,
    every: float = EVERY_SECONDS,
    share: float = DRAWING_SHARE,
) -> Iterator[None]:
    """Draw the graphs of a trial while the block runs, for at most this `share` of the time."""
    arguments = (layout.predir.resolve(), trial, first_after, every, share)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A group of its own, so that Ctrl-C does not reach it. No session of its own: Linux
            # shares the cores between sessions first, which would undo the low priority.
            process_group=0,
        )
    except OSError as error:  # no memory or no process left: the run matters more
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
    layout: RunLayout,
    trial: int,
    first_after: float,
    every: float,
    share: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.process_time,
) -> None:
    """Draw the graphs each time a table has grown, and rest in between, for ever."""
    rest, drawn = first_after, dict[Path, int]()
    while True:
        sleep(rest)
        tables = (layout.session_csv(trial, s, "train") for s in layout.sessions(trial))
        rest, state = every, {path: path.stat().st_mtime_ns for path in tables}
        if state == drawn:
            continue
        began = clock()
        with suppress(Exception):  # a table half written; it is drawn when it has grown
            _draw(layout, trial)
        rest = max(every, (clock() - began) / share)
        drawn = state


def _draw(layout: RunLayout, trial: int) -> None:
    # pandas and matplotlib take a second to import; a short run never imports them.
    from slm_lab.analysis.tables import read_sessions
    from slm_lab.analysis.trial_graphs import draw_trial

    sessions = [s for s in read_sessions(layout, trial) if not s.tables["train"].empty]
    if sessions:
        draw_trial(layout, trial, sessions)
