"""Process of `live_graphs`: waits, and only then imports what draws.

Importing takes as much CPU time as thousands of frames on a small env, and a run that ends before
its first graph does not need it.
"""

from __future__ import annotations

import os
import sys
import threading
import time


def end_with_the_run() -> None:
    """End this process, also in the middle of a graph, when the one that trains ends."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    folder, trial, first_after, every, share = sys.argv[1:]
    threading.Thread(target=end_with_the_run, daemon=True).start()
    # At this priority it gets a fiftieth of a core that a session wants. At idle priority, the
    # first graph would take minutes on a fully used machine.
    if hasattr(os, "nice"):
        os.nice(19)
    time.sleep(float(first_after))

    from loguru import logger

    from slm_lab.api.live_graphs import draw_whenever_it_grew
    from slm_lab.runs.layout import RunLayout

    logger.remove()
    draw_whenever_it_grew(RunLayout.open(folder), int(trial), 0.0, float(every), float(share))
