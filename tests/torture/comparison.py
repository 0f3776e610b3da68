"""Compare a run that was disturbed with one that was not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from slm_lab.analysis.tables import drop_clock, read_session
from tests.sessions import leaves
from tests.torture.attack import Outcome, Result

# Not logs, which tell of every life of a run; not locks, nor checkpoints, which depend on the past.
APART = ("log/", "checkpoint/")
REMAINS = (".writing", ".damaged", ".tmp")  # in a checkpoint folder at the end
JOURNAL = "journal.jsonl"
TIMESTAMP = re.compile(r"\d{4}_\d\d_\d\d_\d{6}")  # in names of folders that a search trains in


def compare_runs(ours: Path, theirs: Path, *, exactly: bool = True) -> Result:
    """Compare files, tables, models, and the journal of a search.

    `exactly` is for runs whose sessions do not race.
    """
    mine, other = _files(ours), _files(theirs)
    if missing := sorted(other.keys() - mine.keys()):
        return Result(Outcome.LOST, f"files are missing: {missing[:5]}")
    if extra := sorted(mine.keys() - other.keys()) + _remains(ours):
        return Result(Outcome.LEFT_BEHIND, f"files are left: {extra[:5]}")
    for name, path in mine.items():
        found = Result(Outcome.EQUAL)
        if "_session_df_" in name:
            found = _compare_tables(path, other[name], exactly=exactly)
        elif name.endswith(".pt") and exactly and not _same_model(path, other[name]):
            found = Result(Outcome.DIFFERENT, f"model {path.name}")
        elif name.endswith(JOURNAL) and exactly and _events(path) != _events(other[name]):
            found = Result(Outcome.DIFFERENT, "the journal")
        if found.outcome is not Outcome.EQUAL:
            return found
    return Result(Outcome.EQUAL)


def _compare_tables(ours: Path, theirs: Path, *, exactly: bool) -> Result:
    mine, other = (drop_clock(read_session(path)) for path in (ours, theirs))
    lost = len(mine) < len(other) if exactly else mine.empty and not other.empty
    if lost:
        return Result(Outcome.LOST, f"{ours.name}: {len(mine)} of {len(other)} rows")
    if exactly and mine.to_csv() != other.to_csv():
        return Result(Outcome.DIFFERENT, f"table {ours.name}")
    return Result(Outcome.EQUAL)


def _files(run: Path) -> dict[str, Path]:
    return dict(_named_files(run))


def _named_files(run: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(run.rglob("*")):
        name = TIMESTAMP.sub("TIME", path.relative_to(run).as_posix())
        is_apart = any(name.startswith(part) or f"/{part}" in name for part in APART)
        if path.is_file() and path.suffix != ".lock" and not is_apart:
            yield name, path


def _remains(run: Path) -> list[str]:
    found = (path for path in run.rglob("checkpoint/**/*"))
    return [path.name for path in found if path.suffix in REMAINS]


def _events(journal: Path) -> list[dict[str, Any]]:
    """What happened in a search, without times and places."""
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    return [{k: v for k, v in e.items() if k not in ("seconds", "node")} for e in events]


def _same_model(ours: Path, theirs: Path) -> bool:
    one, two = (leaves(torch.load(path, weights_only=True)) for path in (ours, theirs))
    if one.keys() != two.keys():
        return False
    return all(_equal(value, two[key]) for key, value in one.items())


def _equal(one: Any, two: Any) -> bool:
    return torch.equal(one, two) if isinstance(one, torch.Tensor) else bool(one == two)
