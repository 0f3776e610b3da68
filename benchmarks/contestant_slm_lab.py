"""One run by slm_lab, as a user would start it from Python.

Called by side_by_side.py: `python contestant_slm_lab.py SPEC_FILE SPEC_NAME FRAMES SEED SET...`.
Prints one line of JSON. Times come from the session's own CSV, so they hold the whole training
loop, compilation included, but neither imports nor the plots drawn at the end.
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

from slm_lab import load_spec, run


def main() -> None:
    spec_file, spec_name, frames, seed = sys.argv[1:5]
    sets = ["meta.max_session=1", f"meta.random_seed={seed}", f"env.max_frame={frames}"]
    sets += sys.argv[5:]
    spec = load_spec(Path(spec_file).resolve(), spec_name, sets=sets)
    # The run folder data/ is written under the working directory.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        start = time.perf_counter()
        run(spec, mode="train")
        call_seconds = time.perf_counter() - start
        (file,) = Path("data").glob("*/info/*_t0_s0_session_df_train.csv")
        with file.open(newline="") as lines:
            rows = [
                {key: float(value) for key, value in row.items() if value}
                for row in csv.DictReader(lines)
            ]
    result = {
        "curve": [(row["frame"], seconds_of(row)) for row in rows],
        "score": rows[-1].get("total_reward", math.nan),  # mean of the last 100 episodes
        "call_seconds": call_seconds,
        "versions": {
            name: importlib.metadata.version(name) for name in ("slm-lab", "torch", "gymnasium")
        },
    }
    print(json.dumps(result))


def seconds_of(row: dict[str, float]) -> float:
    """Elapsed time at a row: `wall_t` is in whole seconds, `frame / fps` sharper if it agrees."""
    sharp = row["frame"] / row["fps"] if row.get("fps") else row["wall_t"]
    return sharp if abs(sharp - row["wall_t"]) <= 1 else row["wall_t"]


if __name__ == "__main__":
    main()
