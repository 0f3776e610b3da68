"""Show the trials of a search: a live table on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from loguru import logger
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slm_lab.runs.glossary import format_value
from slm_lab.runs.search_journal import TrialRecord
from slm_lab.search.plan import SearchPlan
from slm_lab.training.console import Clock, Display

STYLES = {
    "running": "cyan",
    "completed": "green",
    "stopped": "yellow",
    "diverged": "red",
    "failed": "red",
}
ROWS_AROUND_TABLE = 8  # heading, rules and the lines above

Records = Mapping[int, TrialRecord]


class SearchDisplay(Display):
    """Shows the records of a journal; owns the screen while a search runs."""

    def __init__(
        self, plan: SearchPlan, *, console: Console | None = None, clock: Clock = time.monotonic
    ) -> None:
        super().__init__(console, clock, refresh_per_second=2)
        self._plan = plan

    def show(self, records: Records) -> None:
        if self._live:
            self._live.update(trial_table(records, self._plan, self._console.height))

    def report(self, records: Records, trial: int) -> None:
        self.show(records)
        if not self._live and self._is_due(trial):
            frame = f"frame {records[trial].frame:,} of {self._plan.max_frame:,}"
            logger.info(f"Trial {trial} | {frame} | score {_score(records[trial])}")

    def ended(self, records: Records, trial: int) -> None:
        self.show(records)
        record = records[trial]
        values = ", ".join(
            f"{dim.label} {_value(record.values[dim.path])}" for dim in self._plan.space
        )
        reason = f" | {record.reason}" if record.reason else ""
        ended = sum(not other.is_running for other in records.values())
        logger.info(
            f"Trial {trial} {record.status} at frame {record.frame:,} | score {_score(record)} | "
            f"{values}{reason} | {ended} of {self._plan.max_trial} trials done"
        )


def trial_table(records: Records, plan: SearchPlan, height: int = 40) -> Table:
    """Table of trials: running ones first, then the others by score, as many as fit."""
    order = sorted(records.values(), key=_rank)
    ended = [record for record in records.values() if not record.is_running]
    stopped = sum(record.status == "stopped" for record in ended)
    title = f"{len(ended)} of {plan.max_trial} trials done, {stopped} of them stopped early"
    table = Table(title=title, title_justify="left", expand=False)
    for heading in ("trial", "status", "frame", "score"):
        table.add_column(heading, justify="left" if heading == "status" else "right")
    for dim in plan.space:
        table.add_column(dim.label, justify="right")
    for record in order[: max(height - ROWS_AROUND_TABLE, 3)]:
        table.add_row(
            str(record.trial),
            Text(record.status, style=STYLES[record.status]),
            f"{record.frame / plan.max_frame:.0%}",
            _score(record),
            *(_value(record.values[dim.path]) for dim in plan.space),
        )
    return table


def _rank(record: TrialRecord) -> tuple[bool, float, int]:
    score = -math.inf if record.score is None else record.score
    return not record.is_running, -score, record.trial


def _score(record: TrialRecord) -> str:
    return "-" if record.score is None else format_value("total_reward_ma", record.score)


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
