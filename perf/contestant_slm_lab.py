"""One run by slm_lab, as a user would start it from Python.

Called by side_by_side.py: `python -m perf.contestant_slm_lab SPEC_FILE SPEC_NAME SET...`.
Prints one line of JSON. Times come from the session's own CSV. They include the whole training loop
with its compilation, but neither imports nor the plots drawn at the end.
"""

import contextlib
import csv
import importlib.metadata
import json
import math
import sys
import tempfile
import time
from pathlib import Path

from perf.peak_memory import peak_mb
from slm_lab import load_spec, run


def main() -> None:
    spec_file, spec_name, *sets = sys.argv[1:]
    spec = load_spec(Path(spec_file).resolve(), spec_name, sets=sets)
    # The run folder data/ is written under the working directory.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        run(spec, mode="train")
        ended = time.time()
        (file,) = Path("data").glob("*/info/*_t0_s0_session_df_train.csv")
        with file.open(newline="") as lines:
            rows = [
                {key: float(value) for key, value in row.items() if value}
                for row in csv.DictReader(lines)
            ]
    # `total_reward` is the mean of the last 100 episodes, as SB3's buffer is.
    curve = [(r["frame"], seconds_of(r), r.get("total_reward", math.nan)) for r in rows]
    result = {
        "curve": curve,
        # Reckoned back from the end: what is written after the last row counts as start-up too.
        "began": ended - curve[-1][1],
        "peak_mb": peak_mb(),
        "versions": {
            name: importlib.metadata.version(name) for name in ("slm-lab", "torch", "gymnasium")
        },
    }
    print(json.dumps(result))


def seconds_of(row: dict[str, float]) -> float:
    """Elapsed seconds at a row: `frame / fps` if it agrees with `wall_t`, which is rounded."""
    sharp = row["frame"] / row["fps"] if row.get("fps") else row["wall_t"]
    return sharp if abs(sharp - row["wall_t"]) <= 1 else row["wall_t"]


if __name__ == "__main__":
    main()
