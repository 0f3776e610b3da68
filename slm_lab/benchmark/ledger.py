"""The ledger of a row: every attempt at it, good or bad, in `results/<row>/attempts.jsonl`.

A line is added when an attempt starts and whenever it ends, goes on or ends again. Lines are
numbered, and each holds the SHA-256 of the one before, so that one taken out or changed shows.
An attempt is one run folder: one trial of one spec. Lines that were cut off at the end show only
in the history of the repository, where no commit may take out lines (`taken_out`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from slm_lab.benchmark.manifest import Part
from slm_lab.benchmark.seeds import derived_seed
from slm_lab.error import LabError
from slm_lab.runs.provenance import git

LEDGER = "attempts.jsonl"

# `entered`: a run that `benchmark run` did not start was collected.
Event = Literal["started", "resumed", "interrupted", "failed", "finished", "entered"]
BEGINNINGS = ("started", "entered")


class LedgerError(LabError):
    """A ledger that cannot be read; the message names the file and the line."""


class Attempt(Part):
    """One trial of one spec, in a run folder of its own."""

    fingerprint: str
    trial: int
    seed: int
    max_session: int
    folder: str


class Entry(Attempt):
    """One line; scores are `total_reward_ma`, known once the attempt has finished."""

    number: int
    time: str
    event: Event
    commit: str | None
    score: float | None = None
    sessions: Mapping[int, float] = {}
    reason: str = ""
    before: str  # SHA-256 of the line before, empty in the first

    @property
    def is_finished(self) -> bool:
        return self.event in ("finished", "entered")


def read_ledger(row_folder: Path) -> list[Entry]:
    """The lines of a row's ledger; none if there is no file."""
    path = row_folder / LEDGER
    lines = path.read_text().splitlines() if path.is_file() else []
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entries.append(Entry.model_validate_json(line))
        except ValidationError as error:
            what = error.errors()[0]["msg"]
            raise LedgerError(f"{path}: line {number}: not an entry of a ledger ({what})") from None
    return entries


def write_entry(
    row_folder: Path,
    attempt: Attempt,
    event: Event,
    *,
    commit: str | None,
    sessions: Mapping[int, float] | None = None,
    reason: str = "",
) -> None:
    """Add a line."""
    path = row_folder / LEDGER
    text = path.read_text() if path.is_file() else ""
    lines = text.splitlines()
    entry = Entry(
        **dict(attempt),
        number=len(lines) + 1,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        event=event,
        commit=commit,
        score=sum(sessions.values()) / len(sessions) if sessions else None,
        sessions=sessions or {},
        reason=reason[:300],
        before=_digest(lines[-1]) if lines else "",
    )
    row_folder.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(entry.model_dump(mode="json", exclude_defaults=True)) + "\n")


def attempts(entries: Sequence[Entry]) -> list[Entry]:
    """The first line of every attempt."""
    return [entry for entry in entries if entry.event in BEGINNINGS]


def last_entries(entries: Sequence[Entry]) -> dict[str, Entry]:
    """Run folder -> the last line about it."""
    return {entry.folder: entry for entry in entries}


def gaps(row_folder: Path) -> list[str]:
    """What shows that a ledger is not whole."""
    try:
        entries = read_ledger(row_folder)
    except LedgerError as error:
        return [str(error)]
    if not entries:
        return []
    lines, problems, begun = (row_folder / LEDGER).read_text().splitlines(), [], set()
    for number, (entry, before) in enumerate(zip(entries, ["", *lines], strict=False), 1):
        if entry.number != number:
            problems.append(f"{LEDGER}: line {number} has the number {entry.number}")
        elif entry.before != (_digest(before) if before else ""):
            problems.append(f"{LEDGER}: line {number} does not follow the line before it")
        if entry.seed != derived_seed(entry.fingerprint, entry.trial):
            problems.append(f"{LEDGER}: line {number}: seed {entry.seed} is not the derived one")
        if entry.event in BEGINNINGS:
            begun.add(entry.folder)
        elif entry.folder not in begun:
            problems.append(f"{LEDGER}: line {number}: {entry.folder} {entry.event} unstarted")
    return problems


def taken_out(results_dir: Path) -> list[str]:
    """Commits that took lines out of ledgers, or whole files away."""
    log = ("log", "--no-renames", "--format=%h", "--numstat", "--", f"*/{LEDGER}")
    commit, problems = "", []
    for line in (git(*log, root=results_dir) or "").splitlines():
        match line.split("\t"):
            case [sha] if sha:
                commit = sha
            case [_, removed, path] if removed != "0":
                problems.append(f"{path}: commit {commit} took out {removed} line(s)")
    return problems


def _digest(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()
