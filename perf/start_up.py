"""Measure how long a user waits for the help, a spec error, a first run and a whole trial.

    python perf/start_up.py

Every command is a process of its own, started as from a shell, three times (the trial: once with an
empty compile cache, once with a warm one). `first_learned` is the time from the command to the
first row of the curve after a gradient step with nothing cached: no graphs, no kernels, and none of
the precompiled headers that torch keeps in the folder for temporary files. `first_learned_on` is
the same with `meta.compile=on`, which compiles before the first step. Writes results/start_up.json.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
CLI = str(Path(sys.executable).parent / "slm-lab")
SPECS = (HERE.parent / "slm_lab" / "spec" / "benchmark").resolve()
PPO = [CLI, "run", str(SPECS / "ppo" / "ppo_cartpole.json"), "ppo_cartpole"]


def seconds(command: list[str], folder: Path, *, expected: int = 0, cache: Path) -> float:
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
    start = time.perf_counter()
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    took = time.perf_counter() - start
    if process.returncode != expected:
        sys.exit(f"{' '.join(command)}: exit {process.returncode}\n{process.stderr}")
    return took


def until_learned(folder: Path, *more: str) -> float:
    """Seconds from a command with nothing cached to the first row of its curve with a loss."""
    (folder / "tmp").mkdir(parents=True)
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
    sets = ["meta.max_session=1", "meta.log_frequency=1024", *more]
    command = [*PPO, "train", *(part for each in sets for part in ("-s", each))]
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | caches,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while process.poll() is None:
            time.sleep(0.02)
            if has_learned(folder):
                return time.perf_counter() - start
    finally:
        process.terminate()
        process.wait()
    sys.exit(f"{' '.join(command)} ended before it learned")


def has_learned(folder: Path) -> bool:
    for path in folder.glob("data/*/info/*_session_df_train.csv"):
        with path.open(newline="") as lines:
            return any(row.get("loss") for row in csv.DictReader(lines))
    return False


def main() -> None:
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, cache = Path(name), Path(name) / "cache"

        def middle(command: list[str], expected: int = 0) -> float:
            return statistics.median(
                seconds(command, folder, expected=expected, cache=cache) for _ in range(3)
            )

        found["help"] = middle([CLI, "--help"])
        found["spec_error"] = middle([*PPO, "train", "-s", "agent.algorithm.gama=1"], expected=2)
        found["dev_run"] = middle([*PPO, "dev", "-s", "env.max_frame=2000"])
        for kind, sets in (("first_learned", []), ("first_learned_on", ["meta.compile=on"])):
            found[kind] = statistics.median(
                until_learned(folder / f"{kind}_{i}", *sets) for i in range(3)
            )
        found["trial_cold"] = seconds([*PPO, "train"], folder, cache=folder / "cold")
        found["trial_warm"] = seconds([*PPO, "train"], folder, cache=folder / "cold")
    for key, value in found.items():
        print(f"{key:12} {value:8.2f} s")
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    path = HERE / "results" / "start_up.json"
    path.write_text(json.dumps({"machine": machine, "seconds": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
