"""Session tables: one row per checkpoint, as the recorder wrote them."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pandas as pd

from slm_lab.runs.files import MAX_TABLE_BYTES, read_text
from slm_lab.spec.run_folder import RunFolderError

CLOCK_COLUMNS = ("fps", "wall_t")


def read_session(path: Path, *, folder: Path | None = None) -> pd.DataFrame:
    """Read a session CSV as float64; a row that a crash cut short is left out.

    `folder` is the run folder, by default that of the file.
    """
    text = read_text(folder or path.parent, path, MAX_TABLE_BYTES)
    whole_rows = text[: text.rfind("\n") + 1]
    if not whole_rows:
        raise RunFolderError(f"{path}: no complete line, expected a session table with a header")
    try:
        return pd.read_csv(StringIO(whole_rows)).astype("float64")
    except (ValueError, TypeError) as error:  # a ParserError is a ValueError
        raise RunFolderError(f"{path}: not a session table ({error!s:.200})") from None


def drop_clock(table: pd.DataFrame) -> pd.DataFrame:
    """The table without what depends on the speed of the machine, to compare two runs exactly."""
    return table.drop(columns=[name for name in CLOCK_COLUMNS if name in table])
