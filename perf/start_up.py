"""Measure how long a user waits for the help, a spec error, a first run and a whole trial.

    python perf/start_up.py

Every command is a process of its own, started as from a shell, three times (the trial: once with an
empty compile cache, once with a warm one). Writes results/start_up.json.
"""

from __future__ import annotations

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
        found["trial_cold"] = seconds([*PPO, "train"], folder, cache=folder / "cold")
        found["trial_warm"] = seconds([*PPO, "train"], folder, cache=folder / "cold")
    for key, value in found.items():
        print(f"{key:12} {value:8.2f} s")
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    path = HERE / "results" / "start_up.json"
    path.write_text(json.dumps({"machine": machine, "seconds": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
