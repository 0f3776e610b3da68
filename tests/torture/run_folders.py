"""Copies of real run folders, to be damaged: a finished run, a half-done one, a search."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

from slm_lab.runs.search_journal import Journal
from tests.torture.material import half_done, once, reference
from tests.torture.searches import SEARCH_SECONDS, TRIALS, search, write_search
from tests.torture.turns import search_in_turns
from tests.torture.victim import run_isolated

# A replay with priorities, and one with statistics; in the half-done one chunks of its rows.
FINISHED, HALF = "PPO", "DDQN+PER"
KINDS = ("finished", "half", "search")
OTHER = Path("data") / "other_2026_01_01_000000"


def copy_run(kind: str, scratch: Path, material: Path) -> Path:
    """Copy a run into `scratch`, with tiny.json beside data/; the path is relative to `scratch`.

    Beside it `OTHER` is a finished run, to compare with.
    """
    whole = reference(FINISHED, material).run
    source = {
        "finished": lambda: whole.parents[1],
        "half": lambda: half_done(HALF, material),
        "search": lambda: once(material / "search", _build_search),
    }[kind]()
    shutil.copy(source / "tiny.json", scratch / "tiny.json")
    shutil.copytree(source / "data", scratch / "data")
    shutil.copytree(whole, scratch / OTHER)
    (run,) = (path for path in (scratch / "data").iterdir() if path.name != OTHER.name)
    return run.relative_to(scratch)


def _build_search(folder: Path) -> None:
    """A search that was stopped on its way, with trials that ended and one that did not."""
    write_search(folder)

    def life() -> None:
        trained = Journal.start

        def start(journal: Journal, trial: int, *point: Any) -> None:
            if trial == TRIALS - 1:
                os.kill(os.getpid(), signal.SIGTERM)
            trained(journal, trial, *point)

        Journal.start = start  # type: ignore[method-assign,assignment]
        search_in_turns(search(folder))()

    ended = run_isolated(life, folder, SEARCH_SECONDS)
    assert ended.code == 128 + signal.SIGTERM, ended
