"""Measure frames per second of slm_lab at a commit beside those of the working tree.

    python -m perf.two_states BASE [WORKLOAD ...]

Runs alternate (base, now, now, base, ...), so that other load on the machine affects both. Each run
is a process of its own, pinned to the cores of its workload, as in side_by_side.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from perf.side_by_side import pin, speeds
from perf.workloads import WORKLOADS, Workload, settings_of

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = ("ppo_cartpole", "dqn_cartpole", "sac_pendulum", "ppo_halfcheetah")


def steady_fps(tree: Path, workload: Workload, frames: int, seed: int) -> float:
    # What says no more than the default is left out: an older state may not know the key.
    sets = [key for key in workload.assignments(frames) if not key.startswith("meta.precision")]
    script = [sys.executable, "-m", "perf.contestant_slm_lab"]
    answer = subprocess.run(
        [*script, str(workload.spec_file), workload.spec_name, *sets, f"meta.random_seed={seed}"],
        cwd=ROOT.parent,  # not a tree, whose modules would come first
        env={**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    learning_starts = settings_of(workload.spec(frames), workload).get("learning_starts") or 0
    curve = json.loads(answer.stdout.splitlines()[-1])["curve"]
    return speeds(curve, learning_starts)[1]


def compare(name: str, base: Path, share: float, rounds: int) -> None:
    workload = WORKLOADS[name]
    frames = int(workload.frames * share)
    trees = {"base": base, "now": ROOT}
    found: dict[str, list[float]] = {state: [] for state in trees}
    for seed in range(rounds):
        for state in sorted(trees, reverse=bool(seed % 2)):
            found[state].append(steady_fps(trees[state], workload, frames, seed))
    ratios = [now / before for now, before in zip(found["now"], found["base"], strict=True)]
    speeds_ = {state: statistics.median(values) for state, values in found.items()}
    print(
        f"{name}: base {speeds_['base']:,.0f}, now {speeds_['now']:,.0f} frames/s steady, "
        f"now / base {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}, "
        f"{rounds} rounds of {frames:,} frames, {workload.cores} core(s))",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("base", metavar="BASE", help="a commit")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of a workload's frames")
    args = parser.parse_args()
    if os.getloadavg()[0] > 0.5:
        print("The machine is busy: trust the ratios more than the speeds, or come back later.")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), args.base], check=True)
        try:
            for name in args.workloads or DEFAULT:
                pin(WORKLOADS[name].cores)
                compare(name, tree, args.share, args.rounds)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


if __name__ == "__main__":
    main()
