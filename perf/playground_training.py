"""Write the table and the curves of docs/PLAYGROUND.md from runs of `playground/<Name>`.

    python -m perf.playground_training [RUN_FOLDER ...]

The page is written from results/playground_training.json. A run folder replaces the older run of
its env in that file; without folders the page is only written again.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from perf.performance_page import IMAGES
from slm_lab.analysis.tables import read_trial
from slm_lab.benchmark.manifest import load_manifest

matplotlib.use("Agg")
from matplotlib import pyplot as plt

RESULTS = Path(__file__).parent / "results" / "playground_training.json"
PAGE = IMAGES.parent / "PLAYGROUND.md"
BEGIN, END = "<!-- training: begin -->", "<!-- training: end -->"
MOST_POINTS = 120  # of a curve

Run = dict[str, Any]


def read(folder: Path) -> Run:
    """Facts of the page on a run, taken from its first session."""
    trial = read_trial(folder)
    env = trial.env.removeprefix("playground/")
    rows = trial.sessions[min(trial.sessions)].dropna(subset=["total_reward"])
    every = math.ceil(len(rows) / MOST_POINTS)
    points = rows.iloc[::-every][::-1]  # with the last
    last = rows.iloc[-1]
    return {
        "env": env,
        "spec": trial.name.removesuffix(f"_{env.lower()}"),
        "frames": int(last["frame"]),
        "minutes": round(float(last["wall_t"]) / 60, 1),
        "total_reward_ma": round(float(last["total_reward_ma"]), 2),
        "last_100": round(float(last["total_reward"]), 2),
        "curve": [
            [int(f), round(float(r), 2)] for f, r in points[["frame", "total_reward"]].values
        ],
    }


def table(runs: dict[str, Run]) -> str:
    goals = {row.env: row for row in load_manifest().rows}
    lines = [
        "| env | spec | frames | minutes | MA | last 100 episodes | target | documents' best MA |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, run in runs.items():
        row = goals[f"playground/{name}"]
        best = f"{row.best.score:g}" if row.best else ""
        cells = [name, run["spec"], f"{run['frames'] / 1e6:.1f}M", f"{run['minutes']:.0f}"]
        cells += [f"{run['total_reward_ma']:.1f}", f"{run['last_100']:.1f}", f"{row.goal:g}", best]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(runs: dict[str, Run]) -> None:
    columns = 4
    figure, axes = plt.subplots(
        math.ceil(len(runs) / columns), columns, figsize=(13, 5), layout="constrained"
    )
    for axis in axes.flat[len(runs) :]:
        axis.axis("off")
    for axis, (name, run) in zip(axes.flat, runs.items(), strict=False):
        frames, returns = np.array(run["curve"]).T
        axis.plot(frames / 1e6, returns)
        axis.set(title=name, xlabel="million frames", ylim=(0, None))
        axis.grid(alpha=0.3)
    axes.flat[0].set_ylabel("mean return of 100 episodes")
    figure.savefig(IMAGES / "playground_training.png", dpi=75)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", nargs="*", type=Path)
    runs: dict[str, Run] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for folder in parser.parse_args().folders:
        run = read(folder)
        runs[run.pop("env")] = run
    RESULTS.write_text(json.dumps(runs) + "\n")
    draw(runs)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(runs)}\n{END}{rest.partition(END)[2]}")
    print(f"Written: {PAGE.name}")


if __name__ == "__main__":
    main()
