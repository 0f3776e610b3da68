"""Session tables: one row per checkpoint, as the recorder wrote them."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pandas as pd

CLOCK_COLUMNS = ("fps", "wall_t")


def read_session(path: Path) -> pd.DataFrame:
    """Read a session CSV as float64; a row that a crash cut short is left out."""
    text = path.read_text()
    whole_rows = text[: text.rfind("\n") + 1]
    if not whole_rows:
        raise ValueError(f"{path}: no complete line, expected a session table with a header")
    return pd.read_csv(StringIO(whole_rows)).astype("float64")


def drop_clock(table: pd.DataFrame) -> pd.DataFrame:
    """The table without what depends on the speed of the machine, to compare two runs exactly."""
    return table.drop(columns=[name for name in CLOCK_COLUMNS if name in table])
