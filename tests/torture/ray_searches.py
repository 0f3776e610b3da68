"""Kills of a search on Ray: of its process, or of one that Ray has started.

A resume ends with every trial and its files, and with no process: those of Ray that a SIGKILL of
the search left are ended by it. Starting Ray takes as long as many kills of other trainings.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

from slm_lab.runs.search_journal import read_records
from tests.torture.attack import Outcome, Result
from tests.torture.comparison import JOURNAL
from tests.torture.kills import MOST_RESUMES, Kill, Kind, expected_end, strike
from tests.torture.searches import SEARCH_SECONDS, TRIALS, newest_search, search, write_search
from tests.torture.victim import Victim

SECONDS = 14.0  # that such a search takes, or more where cores are busy
FILES = (
    "tiny_best_spec.json",
    "tiny_experiment_graph.html",
    *(f"tiny_t{trial}_trial_metrics_scalar.json" for trial in range(TRIALS)),
)


class RaySearches:
    name: str = "ray"
    seconds: float = 900.0
    share: float = 0.3

    def draw(self, random: Random) -> Kill:
        kinds: tuple[Kind, ...] = ("SIGKILL", "SIGTERM", "SIGINT", "child", "child")
        return Kill(random.choice(kinds), round(random.uniform(0.1, 1.0), 4))

    def run(self, drawn: Kill, scratch: Path, material: Path) -> Result:
        write_search(scratch)
        # Not bounded: Ray reserves a share of the memory.
        with Victim(search(scratch), scratch, is_bounded=False) as victim:
            time.sleep(drawn.moment * SECONDS)
            strike(victim, drawn)
            found = expected_end(drawn, victim.wait_alone(SEARCH_SECONDS))
            for _ in range(MOST_RESUMES):
                if found.outcome.is_bad:
                    return found
                with Victim(search(scratch), scratch, is_bounded=False) as again:
                    found = again.wait(SEARCH_SECONDS).result()
                if found.outcome is Outcome.OK:
                    return _complete(newest_search(scratch))
        return Result(Outcome.LOST, f"could not be resumed: {found.detail}")


def _complete(search: Path) -> Result:
    """Whether every trial has ended well and has its metrics; no two searches on Ray are alike."""
    records = read_records(search / "ray_tune" / JOURNAL)
    unfit = [r.trial for r in records.values() if r.status not in ("completed", "stopped")]
    if unfit or len(records) != TRIALS:
        return Result(Outcome.LOST, f"{len(records)} trials, of which {unfit} did not end well")
    if missing := [name for name in FILES if not (search / name).exists()]:
        return Result(Outcome.LOST, f"files are missing: {missing}")
    return Result(Outcome.EQUAL)
