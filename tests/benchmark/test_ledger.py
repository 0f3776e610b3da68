"""The ledger of a row: what it counts, and what of a gap it can see."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slm_lab.benchmark.ledger import LEDGER, attempts, gaps, last_entries, read_ledger, taken_out
from tests.benchmark.conftest import enter_attempt

RESULTS = Path("res")


@pytest.fixture
def ledger(kept) -> Path:
    """A row that was interrupted, and then finished in another folder."""
    (trial,) = kept.result.trials
    first = trial.model_copy(update={"folder": "tiny_first"})
    begun = kept.result.model_copy(update={"trials": (first,)})
    enter_attempt(kept.__class__(begun, kept.spec, None), RESULTS, "interrupted")
    enter_attempt(kept, RESULTS)
    return RESULTS / str(kept.result.row)


def git(*arguments: str) -> None:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, *arguments], check=True, capture_output=True)


def test_attempts_are_counted_by_run_folder_whatever_became_of_them(ledger, kept):
    entries = read_ledger(ledger)
    assert [entry.number for entry in entries] == [1, 2, 3, 4]
    assert [entry.folder for entry in attempts(entries)] == [
        "tiny_first",
        "tiny_actionmatters_2026_01_01_000000",
    ]
    ends = [(entry.event, entry.score) for entry in last_entries(entries).values()]
    assert ends == [("interrupted", None), ("finished", 0.625)]
    assert {entry.fingerprint for entry in entries} == {kept.result.fingerprint}
    assert gaps(ledger) == []


def test_an_end_without_a_start_and_a_seed_that_was_chosen_are_gaps(ledger, kept):
    enter_attempt(kept, ledger.parent / "x")  # makes lines that are right in themselves
    path, other = ledger / LEDGER, ledger.parent / "x" / kept.result.row / LEDGER
    path.write_text(other.read_text().splitlines()[1] + "\n")
    assert any("finished unstarted" in problem for problem in gaps(ledger))
    seed = kept.result.trials[0].seed
    path.write_text(other.read_text().replace(str(seed), "7"))
    assert any("line 1: seed 7 is not the derived one" in problem for problem in gaps(ledger))


def test_a_commit_that_takes_lines_out_of_a_ledger_is_named(ledger):
    path = ledger / LEDGER
    lines = path.read_text().splitlines(keepends=True)
    git("init", "-q", ".")
    for text in ("".join(lines[:2]), "".join(lines)):
        path.write_text(text)
        git("add", "-A")
        git("commit", "-q", "-m", "more")
    assert taken_out(RESULTS) == []
    path.write_text("".join(lines[:1]))  # whole as far as it goes
    assert gaps(ledger) == []
    git("commit", "-q", "-a", "-m", "fewer")
    (problem,) = taken_out(RESULTS)
    assert problem.endswith("took out 3 line(s)")
